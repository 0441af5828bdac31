// SPDX-License-Identifier: Apache-2.0
// The operators linear and route: the threads stage all tokens once, then take chunks of weight
// rows.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/arithmetic.h"
#include "cpu/cpu_backend_impl.h"

namespace koho::cpu {

void CpuBackend::stage_panel(const Staged& staged,
                             const Activation& x,
                             const std::int32_t* rows,
                             std::int64_t first,
                             std::int64_t panel) {
  const Form form = staged.form;
  const TensorView& source = form.format != Format::e4m3 ? x.values
                             : form.block_scales         ? x.block_quantized
                                                         : x.quantized;
  const std::int64_t row_bytes = source.stride(0) * dtype_bytes(source.dtype);
  const std::int64_t begin = panel * kPanelTokens;
  const std::int64_t count = std::min(kPanelTokens, staged.tokens - begin);
  const std::int64_t blocks = ceil_div(staged.columns, kScaleBlock);
  std::array<const void*, kPanelTokens> pointers{};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = rows != nullptr ? rows[begin + i] : first + begin + i;
    pointers[static_cast<std::size_t>(i)] = source.data + row * row_bytes;
    if (form.format != Format::e4m3) continue;
    if (form.block_scales)
      std::copy_n(x.block_scales.as<float>() + row * x.block_scales.stride(0), blocks,
                  staged.scales + (begin + i) * blocks);
    else
      staged.scales[begin + i] = x.scales.as<float>()[row];
  }
  kernels_.stage({.format = form.format,
                  .block_scales = form.block_scales,
                  .tokens = staged.tokens,
                  .rows = pointers.data(),
                  .count = count,
                  .columns = staged.columns,
                  .panel = staged.panels + panel * staged.panel_bytes});
}

void CpuBackend::stage(const Staged& staged,
                       const Activation& x,
                       const std::int32_t* rows,
                       std::int64_t first) {
  pool_.run(ceil_div(staged.tokens, kPanelTokens),
            [&](std::int64_t panel, int) { stage_panel(staged, x, rows, first, panel); });
}

void CpuBackend::multiply(const RowChunk& chunk,
                          const std::byte* next,
                          const Staged& staged,
                          TensorView out,
                          int worker) {
  const Matrix& matrix = *chunk.matrix;
  float* sums = sums_scratch(worker);
  MultiplyTask task{.format = staged.form.format,
                    .weight = chunk.weight(),
                    .row_bytes = matrix.row_bytes(),
                    .rows = chunk.rows,
                    .columns = staged.columns,
                    .panels = staged.panels,
                    .panel_bytes = staged.panel_bytes,
                    .tokens = staged.tokens,
                    .sums = sums,
                    .scratch = kernel_scratch(worker),
                    .next = next};
  StoreTask store{.sums = sums,
                  .tokens = staged.tokens,
                  .rows = chunk.rows,
                  .bias = matrix.bias.empty() ? nullptr : matrix.bias.data() + chunk.first,
                  .out_stride = out.stride(0)};
  if (staged.form.block_scales) {
    const std::int64_t blocks = ceil_div(staged.columns, kScaleBlock);
    task.token_scales = staged.scales;
    task.weight_scales = matrix.scales.data() + chunk.first / kScaleBlock * blocks;
  } else if (staged.form.format == Format::e4m3) {
    store.token_scales = staged.scales;
    store.weight_scales = matrix.scales.data() + chunk.first;
  }
  if (out.dtype == DType::f32)
    store.out_f32 = out.as<float>() + chunk.out;
  else
    store.out_bf16 = out.as<BFloat16>() + chunk.out;
  kernels_.multiply(task);
  kernels_.store(store);
}

Status CpuBackend::do_linear(TensorView out, const Activation& x, const Linear& weight) {
  const auto& placed = static_cast<const PlacedLinear&>(*weight.placed);
  const std::int64_t columns = weight.in_features;
  const std::int64_t tokens = out.size(0);
  const std::int64_t slice = std::min(tokens, kSliceTokens);
  // The row blocks of one layer may have different formats: one pass for each format.
  std::array<Form, 3> forms{};
  std::size_t form_count = 0;
  std::int64_t panel_bytes = 0;
  for (const Matrix& matrix : placed.matrices) {
    const Form form = form_of(matrix);
    if (std::find(forms.begin(), forms.begin() + form_count, form) != forms.begin() + form_count)
      continue;
    forms[form_count++] = form;
    panel_bytes = std::max(panel_bytes, kernels_.panel_bytes(form.format, columns));
  }
  ScratchPlan plan;
  const std::int64_t panels = plan.add<std::byte>(ceil_div(slice, kPanelTokens) * panel_bytes);
  const std::int64_t scales = plan.add<float>(slice * ceil_div(columns, kScaleBlock));
  KOHO_TRY(scratch_.ensure(plan.bytes()));
  KOHO_TRY(ensure_worker_scratch(columns));

  for (std::int64_t first = 0; first < tokens; first += slice) {
    const std::int64_t count = std::min(slice, tokens - first);
    const TensorView part = out.slice(0, first, count);
    for (std::size_t i = 0; i < form_count; ++i) {
      const Staged staged{.form = forms[i],
                          .tokens = count,
                          .columns = columns,
                          .panels = scratch_.at<std::byte>(panels),
                          .panel_bytes = kernels_.panel_bytes(forms[i].format, columns),
                          .scales = scratch_.at<float>(scales)};
      stage(staged, x, nullptr, first);
      pool_.run(static_cast<std::int64_t>(placed.chunks.size()),
                [&](std::int64_t index, int worker) {
                  const RowChunk* chunk = &placed.chunks[static_cast<std::size_t>(index)];
                  const RowChunk* next = chunk == &placed.chunks.back() ? chunk : chunk + 1;
                  if (form_of(*chunk->matrix) == staged.form)
                    multiply(*chunk, next->weight(), staged, part, worker);
                });
    }
  }
  return {};
}

namespace {

/// The score that decides the choice; NaN becomes the lowest.
float selection_score(float score) {
  return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
}

/// The sum of a group's two largest scores.
float group_score(const float* scores, std::int64_t count) {
  float first = -std::numeric_limits<float>::infinity();
  float second = first;
  for (std::int64_t i = 0; i < count; ++i) {
    if (scores[i] > first) {
      second = first;
      first = scores[i];
    } else if (scores[i] > second) {
      second = scores[i];
    }
  }
  return count > 1 ? first + second : first;
}

/// Sets the scores of all but the best `kept` groups to -infinity (ties to the lower group).
void mask_groups(float* scores, std::int64_t experts, const RouterSettings& settings) {
  const std::int64_t size = experts / settings.groups;
  const auto score_of = [&](std::int64_t group) {
    return group_score(scores + group * size, size);
  };
  // The scores are changed at the end only: `better` counts the groups before this one in rank.
  std::array<bool, 256> kept{};
  for (std::int64_t group = 0; group < settings.groups; ++group) {
    const float mine = score_of(group);
    std::int64_t better = 0;
    for (std::int64_t other = 0; other < settings.groups; ++other) {
      const float theirs = score_of(other);
      if (theirs > mine || (theirs == mine && other < group)) ++better;
    }
    kept[static_cast<std::size_t>(group)] = better < settings.groups_kept;
  }
  for (std::int64_t group = 0; group < settings.groups; ++group)
    if (!kept[static_cast<std::size_t>(group)])
      std::fill_n(scores + group * size, size, -std::numeric_limits<float>::infinity());
}

/// Chooses one token's experts from the router's logits. `scores` is scratch, [E].
void choose(std::int32_t* ids,
            float* weights,
            float* sigmoids,
            float* scores,
            const float* bias,
            std::int64_t experts,
            const RouterSettings& settings) {
  for (std::int64_t e = 0; e < experts; ++e) {
    sigmoids[e] = 1.0F / (1.0F + std::exp(-sigmoids[e]));
    scores[e] = selection_score(sigmoids[e] + bias[e]);
  }
  if (settings.groups > 1) mask_groups(scores, experts, settings);
  float sum = 0.0F;
  for (std::int64_t a = 0; a < settings.top_k; ++a) {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < experts; ++e) {
      const bool taken = std::find(ids, ids + a, static_cast<std::int32_t>(e)) != ids + a;
      if (!taken && (best < 0 || scores[e] > scores[best])) best = e;
    }
    ids[a] = static_cast<std::int32_t>(best);
    weights[a] = sigmoids[best];
    sum += weights[a];
  }
  for (std::int64_t a = 0; a < settings.top_k; ++a) {
    if (settings.normalize) weights[a] /= sum + 1e-20F;
    weights[a] *= settings.scale;
  }
}

}  // namespace

Status CpuBackend::do_route(const Routing& out,
                            ConstTensorView x,
                            ConstTensorView weight,
                            ConstTensorView bias,
                            const RouterSettings& settings) {
  Matrix matrix;
  matrix.weight = weight;
  const std::int64_t experts = weight.size(0);
  const std::int64_t columns = weight.size(1);
  const std::int64_t tokens = x.size(0);
  const std::int64_t slice = std::min(tokens, kSliceTokens);
  const std::int64_t panel_bytes = kernels_.panel_bytes(matrix.format(), columns);
  ScratchPlan plan;
  const std::int64_t panels = plan.add<std::byte>(ceil_div(slice, kPanelTokens) * panel_bytes);
  const std::int64_t logits_at = plan.add<float>(slice * experts);
  const std::int64_t scores_at = plan.add<float>(slice * experts);
  KOHO_TRY(scratch_.ensure(plan.bytes()));
  KOHO_TRY(ensure_worker_scratch(columns));
  // Only read: an Activation's views are mutable because most operators write them.
  Activation values;
  values.values = TensorView(const_cast<std::byte*>(x.data), x.dtype, x.shape);
  values.values.strides = x.strides;

  for (std::int64_t first = 0; first < tokens; first += slice) {
    const std::int64_t count = std::min(slice, tokens - first);
    const Staged staged{.form = form_of(matrix),
                        .tokens = count,
                        .columns = columns,
                        .panels = scratch_.at<std::byte>(panels),
                        .panel_bytes = panel_bytes};
    stage(staged, values, nullptr, first);
    float* logits = scratch_.at<float>(logits_at);
    const TensorView logits_view(scratch_.at<std::byte>(logits_at), DType::f32, {count, experts});
    pool_.run(ceil_div(experts, kRowsMax), [&](std::int64_t index, int worker) {
      const std::int64_t row = index * kRowsMax;
      const RowChunk chunk{&matrix, row, std::min(kRowsMax, experts - row), row};
      multiply(chunk, chunk.weight(), staged, logits_view, worker);
    });
    for_rows(count, [&](std::int64_t t, int) {
      choose(out.ids.as<std::int32_t>() + (first + t) * settings.top_k,
             out.weights.as<float>() + (first + t) * settings.top_k, logits + t * experts,
             scratch_.at<float>(scores_at) + t * experts, bias.as<float>(), experts, settings);
    });
  }
  return {};
}

}  // namespace koho::cpu
