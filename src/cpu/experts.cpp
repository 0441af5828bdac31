// SPDX-License-Identifier: Apache-2.0
// The operator experts: groups token-expert pairs by expert, so that a weight row read from memory
// serves every token that chose the expert; then adds each token's expert outputs in the order in
// which it chose them.
#include "cpu/experts.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/arithmetic.h"
#include "cpu/cpu_backend_impl.h"

namespace koho::cpu {
namespace {

/// One expert and the tokens that chose it. Its pairs (token, choice) are numbered consecutively.
struct ExpertGroup {
  const Mlp* mlp = nullptr;
  std::int64_t pair = 0;    // its first
  std::int64_t tokens = 0;  // number of its pairs
  std::int64_t panel = 0;   // its first panel of 16 pairs
};

/// A panel of a group, or a chunk of its rows: what a thread takes.
struct Piece {
  std::int32_t group = 0;
  std::int32_t panel = 0;
  RowChunk chunk;
};

/// Offsets of a slice's arrays.
struct Layout {
  Layout(const ExpertWidths& widths, std::int64_t tokens, std::int64_t top_k);

  std::int64_t ffn_max;
  std::int64_t panel_bytes;
  ScratchPlan plan;
  std::int64_t groups, token_of, pair_of, pieces, panels, scales, gate_up, down, sums;
};

std::int64_t panel_bytes_of(const Kernels& kernels, const Mlp& mlp) {
  const auto bytes = [&](const Matrix& matrix) {
    return kernels.panel_bytes(matrix.format(), matrix.columns());
  };
  return std::max({bytes(mlp.gate), bytes(mlp.up), bytes(mlp.down)});
}

Layout::Layout(const ExpertWidths& widths, std::int64_t tokens, std::int64_t top_k)
    : ffn_max(widths.ffn), panel_bytes(widths.panel_bytes) {
  const std::int64_t hidden = widths.hidden;
  const std::int64_t pairs_max = tokens * std::min(top_k, widths.experts) + tokens;
  const std::int64_t groups_max = widths.experts + 1;
  const std::int64_t panels_max = ceil_div(pairs_max, kPanelTokens) + groups_max;
  // Never more groups than pairs have tokens for.
  const std::int64_t active = std::min(groups_max, pairs_max);
  const std::int64_t pieces_max =
      std::max(panels_max, active * (2 * ceil_div(ffn_max, kRowsMax) + ceil_div(hidden, kRowsMax)));
  const std::int64_t blocks = ceil_div(std::max(hidden, ffn_max), kScaleBlock);
  groups = plan.add<ExpertGroup>(groups_max);
  token_of = plan.add<std::int32_t>(pairs_max);
  pair_of = plan.add<std::int32_t>(tokens * top_k);
  pieces = plan.add<Piece>(pieces_max);
  panels = plan.add<std::byte>(panels_max * panel_bytes);
  scales = plan.add<float>(pairs_max * blocks);
  gate_up = plan.add<BFloat16>(pairs_max * 2 * ffn_max);
  down = plan.add<BFloat16>(pairs_max * hidden);
  sums = plan.add<float>(tokens * hidden);
}

}  // namespace

ExpertWidths::ExpertWidths(const Kernels& kernels,
                           const PlacedExperts& placed,
                           std::int64_t hidden_size)
    : experts(static_cast<std::int64_t>(placed.experts.size())), hidden(hidden_size) {
  const auto visit = [&](const Mlp& mlp) {
    ffn = std::max(ffn, mlp.ffn());
    panel_bytes = std::max(panel_bytes, panel_bytes_of(kernels, mlp));
  };
  for (const Mlp& mlp : placed.experts) visit(mlp);
  if (placed.shared) visit(*placed.shared);
}

void ExpertWidths::cover(const ExpertWidths& other) {
  experts = std::max(experts, other.experts);
  hidden = std::max(hidden, other.hidden);
  ffn = std::max(ffn, other.ffn);
  panel_bytes = std::max(panel_bytes, other.panel_bytes);
}

std::int64_t experts_scratch_bytes(const ExpertWidths& widths,
                                   std::int64_t tokens,
                                   std::int64_t top_k) {
  return Layout(widths, tokens, top_k).plan.bytes();
}

/// The work of one slice of tokens.
class ExpertsSlice {
 public:
  ExpertsSlice(CpuBackend& cpu,
               const Layout& layout,
               const PlacedExperts& placed,
               const Experts& weights)
      : cpu_(cpu), layout_(layout), placed_(placed), weights_(weights) {}

  void run(TensorView out, const Activation& x, const Routing& routing);

 private:
  template <typename T>
  T* at(std::int64_t offset) const {
    return cpu_.scratch_.at<T>(offset);
  }

  void permute_tokens(const Routing& routing, std::int64_t tokens);
  void gate_and_up(const Activation& x);
  void gate_and_up_of(const Activation& x, bool second);
  void activate();
  void down();
  void combine(TensorView out, const Routing& routing);
  Staged staged(const ExpertGroup& group, const Matrix& reader) const;
  void add_chunks(const ExpertGroup& group, const Matrix& matrix, std::int64_t out);
  void multiply_pieces(const Matrix Mlp::*reader, std::int64_t out_offset, std::int64_t width);

  CpuBackend& cpu_;
  const Layout& layout_;
  const PlacedExperts& placed_;
  const Experts& weights_;
  std::int64_t groups_ = 0;
  std::int64_t panels_ = 0;
  std::int64_t pieces_ = 0;
  std::int64_t shared_pair_ = -1;
};

void ExpertsSlice::permute_tokens(const Routing& routing, std::int64_t tokens) {
  ExpertGroup* groups = at<ExpertGroup>(layout_.groups);
  std::int32_t* token_of = at<std::int32_t>(layout_.token_of);
  std::int32_t* pair_of = at<std::int32_t>(layout_.pair_of);
  const std::int32_t* ids = routing.ids.as<std::int32_t>();
  const std::int64_t top_k = routing.ids.size(1);
  std::int64_t pair = 0;
  const auto add = [&](const Mlp& mlp, std::int64_t first) {
    if (pair == first) return;
    groups[groups_++] = {&mlp, first, pair - first, panels_};
    panels_ += ceil_div(pair - first, kPanelTokens);
  };
  std::fill_n(pair_of, tokens * top_k, -1);
  for (std::int64_t e = 0; e < weights_.count; ++e) {
    const std::int64_t first = pair;
    for (std::int64_t i = 0; i < tokens * top_k; ++i) {
      if (ids[i] != weights_.first + e) continue;
      token_of[pair] = static_cast<std::int32_t>(i / top_k);
      pair_of[i] = static_cast<std::int32_t>(pair++);
    }
    add(placed_.experts[static_cast<std::size_t>(e)], first);
  }
  if (!placed_.shared) return;
  shared_pair_ = pair;
  for (std::int64_t t = 0; t < tokens; ++t) token_of[pair++] = static_cast<std::int32_t>(t);
  add(*placed_.shared, shared_pair_);
}

Staged ExpertsSlice::staged(const ExpertGroup& group, const Matrix& reader) const {
  const std::int64_t blocks = ceil_div(std::max(weights_.hidden, layout_.ffn_max), kScaleBlock);
  return {.form = form_of(reader),
          .tokens = group.tokens,
          .columns = reader.columns(),
          .panels = at<std::byte>(layout_.panels) + group.panel * layout_.panel_bytes,
          .panel_bytes = layout_.panel_bytes,
          .scales = at<float>(layout_.scales) + group.pair * blocks};
}

void ExpertsSlice::add_chunks(const ExpertGroup& group, const Matrix& matrix, std::int64_t out) {
  Piece* pieces = at<Piece>(layout_.pieces);
  const auto index = static_cast<std::int32_t>(&group - at<ExpertGroup>(layout_.groups));
  for (std::int64_t first = 0; first < matrix.rows(); first += kRowsMax)
    pieces[pieces_++] = {
        index, 0, {&matrix, first, std::min(kRowsMax, matrix.rows() - first), out + first}};
}

/// The chunks in pieces_, each times its group's staged tokens, into rows of `width` at out_offset.
void ExpertsSlice::multiply_pieces(const Matrix Mlp::*reader,
                                   std::int64_t out_offset,
                                   std::int64_t width) {
  cpu_.pool_.run(pieces_, [&](std::int64_t index, int worker) {
    const Piece* pieces = at<Piece>(layout_.pieces);
    const Piece& piece = pieces[index];
    const Piece& next = pieces[std::min(index + 1, pieces_ - 1)];
    const ExpertGroup& group = at<ExpertGroup>(layout_.groups)[piece.group];
    const TensorView out(
        reinterpret_cast<std::byte*>(at<BFloat16>(out_offset) + group.pair * width), DType::bf16,
        {group.tokens, width});
    cpu_.multiply(piece.chunk, next.chunk.weight(), staged(group, group.mlp->*reader), out, worker);
  });
}

/// Stages the tokens for gate (and for up, if it reads the same form), or for the ups that differ.
void ExpertsSlice::gate_and_up_of(const Activation& x, bool second) {
  const ExpertGroup* groups = at<ExpertGroup>(layout_.groups);
  Piece* pieces = at<Piece>(layout_.pieces);
  const auto takes_part = [&](const ExpertGroup& group) {
    return !second || form_of(group.mlp->gate) != form_of(group.mlp->up);
  };
  const Matrix Mlp::*reader = second ? &Mlp::up : &Mlp::gate;
  pieces_ = 0;
  for (std::int64_t g = 0; g < groups_; ++g) {
    if (!takes_part(groups[g])) continue;
    for (std::int64_t panel = 0; panel < ceil_div(groups[g].tokens, kPanelTokens); ++panel)
      pieces[pieces_++] = {static_cast<std::int32_t>(g), static_cast<std::int32_t>(panel), {}};
  }
  cpu_.pool_.run(pieces_, [&](std::int64_t index, int) {
    const ExpertGroup& group = groups[pieces[index].group];
    cpu_.stage_panel(staged(group, group.mlp->*reader), x,
                     at<std::int32_t>(layout_.token_of) + group.pair, 0, pieces[index].panel);
  });
  pieces_ = 0;
  for (std::int64_t g = 0; g < groups_; ++g) {
    const Mlp& mlp = *groups[g].mlp;
    if (!takes_part(groups[g])) continue;
    if (!second) add_chunks(groups[g], mlp.gate, 0);
    if (second || form_of(mlp.gate) == form_of(mlp.up)) add_chunks(groups[g], mlp.up, mlp.ffn());
  }
  multiply_pieces(reader, layout_.gate_up, 2 * layout_.ffn_max);
}

void ExpertsSlice::gate_and_up(const Activation& x) {
  gate_and_up_of(x, false);
  const ExpertGroup* groups = at<ExpertGroup>(layout_.groups);
  const bool differ = std::any_of(groups, groups + groups_, [](const ExpertGroup& group) {
    return form_of(group.mlp->gate) != form_of(group.mlp->up);
  });
  if (differ) gate_and_up_of(x, true);
}

/// SiLU, quantisation and staging for down, a panel of pairs at a time.
void ExpertsSlice::activate() {
  const ExpertGroup* groups = at<ExpertGroup>(layout_.groups);
  Piece* pieces = at<Piece>(layout_.pieces);
  pieces_ = 0;
  for (std::int64_t g = 0; g < groups_; ++g)
    for (std::int64_t panel = 0; panel < ceil_div(groups[g].tokens, kPanelTokens); ++panel)
      pieces[pieces_++] = {static_cast<std::int32_t>(g), static_cast<std::int32_t>(panel), {}};
  cpu_.pool_.run(pieces_, [&](std::int64_t index, int worker) {
    const ExpertGroup& group = groups[pieces[index].group];
    const std::int64_t first = pieces[index].panel * kPanelTokens;
    const std::int64_t count = std::min(kPanelTokens, group.tokens - first);
    const std::int64_t ffn = group.mlp->ffn();
    const Form form = form_of(group.mlp->down);
    // This panel's rows of silu_mul, in the form `down` reads, in this thread's memory.
    const std::int64_t blocks = ceil_div(ffn, kScaleBlock);
    std::byte* memory = reinterpret_cast<std::byte*>(cpu_.row_scratch(worker));
    Activation inner;
    inner.values = TensorView(memory, DType::bf16, {count, ffn});
    memory += kPanelTokens * ffn * 2;
    const TensorView scales(memory, DType::f32, {count, blocks});
    memory += kPanelTokens * blocks * 4;
    const TensorView quantized(memory, DType::f8_e4m3, {count, ffn});
    if (form.format == Format::e4m3 && form.block_scales) {
      inner.block_quantized = quantized;
      inner.block_scales = scales;
    } else if (form.format == Format::e4m3) {
      inner.quantized = quantized;
      inner.scales = TensorView(scales.data, DType::f32, {count});
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const BFloat16* gate =
          at<BFloat16>(layout_.gate_up) + (group.pair + first + i) * 2 * layout_.ffn_max;
      BFloat16* values = inner.values.as<BFloat16>() + i * ffn;
      cpu_.kernels_.silu_mul_row(values, gate, gate + ffn, ffn);
      cpu_.write_activation(inner, i, values);
    }
    cpu_.stage_panel(staged(group, group.mlp->down), inner, nullptr, -first, pieces[index].panel);
  });
}

void ExpertsSlice::down() {
  const ExpertGroup* groups = at<ExpertGroup>(layout_.groups);
  pieces_ = 0;
  for (std::int64_t g = 0; g < groups_; ++g) add_chunks(groups[g], groups[g].mlp->down, 0);
  multiply_pieces(&Mlp::down, layout_.down, weights_.hidden);
}

void ExpertsSlice::combine(TensorView out, const Routing& routing) {
  const std::int64_t hidden = weights_.hidden;
  const std::int64_t top_k = routing.ids.size(1);
  const BFloat16* rows = at<BFloat16>(layout_.down);
  cpu_.for_rows(out.size(0), [&](std::int64_t t, int) {
    float* sums = at<float>(layout_.sums) + t * hidden;
    std::fill_n(sums, hidden, 0.0F);
    for (std::int64_t a = 0; a < top_k; ++a) {
      const std::int64_t pair = at<std::int32_t>(layout_.pair_of)[t * top_k + a];
      if (pair < 0) continue;
      cpu_.kernels_.add_weighted_row(sums, rows + pair * hidden,
                                     routing.weights.as<float>()[t * top_k + a], hidden);
    }
    const BFloat16* shared = shared_pair_ < 0 ? nullptr : rows + (shared_pair_ + t) * hidden;
    cpu_.kernels_.round_row(out.as<BFloat16>() + t * hidden, sums, shared, hidden);
  });
}

void ExpertsSlice::run(TensorView out, const Activation& x, const Routing& routing) {
  permute_tokens(routing, out.size(0));
  gate_and_up(x);
  activate();
  down();
  combine(out, routing);
}

Status CpuBackend::do_experts(TensorView out,
                              const Activation& x,
                              const Routing& routing,
                              const Experts& weights) {
  const auto& placed = static_cast<const PlacedExperts&>(*weights.placed);
  const std::int64_t tokens = out.size(0);
  const std::int64_t slice = std::min(tokens, kSliceTokens);
  const Layout layout(ExpertWidths(kernels_, placed, weights.hidden), slice, routing.ids.size(1));
  KOHO_TRY(scratch_.ensure(layout.plan.bytes()));
  KOHO_TRY(ensure_worker_scratch(std::max(weights.hidden, layout.ffn_max)));
  for (std::int64_t first = 0; first < tokens; first += slice) {
    const std::int64_t count = std::min(slice, tokens - first);
    const auto part = [&](const TensorView& view) {
      return view.empty() ? view : view.slice(0, first, count);
    };
    const Activation x_part{part(x.values), part(x.quantized), part(x.scales),
                            part(x.block_quantized), part(x.block_scales)};
    ExpertsSlice(*this, layout, placed, weights)
        .run(part(out), x_part, {part(routing.ids), part(routing.weights)});
  }
  return {};
}

}  // namespace koho::cpu
