// SPDX-License-Identifier: Apache-2.0
// Attention: a task is (sequence, tile of tokens, KV head), the longest contexts first. The kernel
// computes a row alike whatever tile it is in.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "cpu/cpu_backend_impl.h"

namespace koho::cpu {
namespace {

/// Consecutive tokens of one sequence.
struct QueryTile {
  std::int32_t sequence = 0;
  std::int32_t first = 0;
  std::int32_t tokens = 0;
  std::int32_t context = 0;
};

/// Cuts the step's tokens into query_tiles; those of the longest contexts come first. Returns their
/// number.
std::int64_t make_query_tiles(QueryTile* query_tiles, const Batch& batch) {
  const std::int32_t* starts = batch.query_starts.as<std::int32_t>();
  const std::int32_t* contexts = batch.context_lengths.as<std::int32_t>();
  std::int64_t count = 0;
  for (std::int32_t s = 0; s < batch.sequences; ++s) {
    if (contexts[s] <= 0) continue;
    for (std::int32_t first = starts[s]; first < starts[s + 1]; first += kAttendTokensMax) {
      const std::int32_t tokens =
          std::min(static_cast<std::int32_t>(kAttendTokensMax), starts[s + 1] - first);
      const std::int32_t last = batch.positions.as<std::int32_t>()[first + tokens - 1];
      query_tiles[count++] = {s, first, tokens, last + 1};
    }
  }
  std::sort(query_tiles, query_tiles + count, [](const QueryTile& a, const QueryTile& b) {
    return a.context != b.context ? a.context > b.context : a.first < b.first;
  });
  return count;
}

}  // namespace

Status CpuBackend::do_attention(const Activation& out,
                                ConstTensorView q,
                                const KvLayer& kv,
                                const Batch& batch,
                                const HeadShape& heads) {
  const std::int64_t width = heads.query_heads * heads.width;
  ScratchPlan plan;
  const std::int64_t query_tiles_at = plan.add<QueryTile>(batch.tokens);
  const std::int64_t values_at = plan.add<BFloat16>(out.values.empty() ? batch.tokens * width : 0);
  KOHO_TRY(scratch_.ensure(plan.bytes()));
  KOHO_TRY(ensure_worker_scratch(width));
  BFloat16* values =
      out.values.empty() ? scratch_.at<BFloat16>(values_at) : out.values.as<BFloat16>();
  const std::int64_t stride = out.values.empty() ? width : out.values.stride(0);
  QueryTile* query_tiles = scratch_.at<QueryTile>(query_tiles_at);
  const std::int64_t count = make_query_tiles(query_tiles, batch);

  const std::int64_t group = heads.query_heads / heads.kv_heads;
  const std::int64_t head_elements = kPageTokens * heads.width;
  const std::int64_t element = dtype_bytes(kv.k.dtype);
  const bool fp8_pages = kv.k.dtype == DType::f8_e4m3;
  // Rows of padding belong to no tile: they are zeros.
  for_rows(batch.tokens,
           [&](std::int64_t row, int) { std::fill_n(values + row * stride, width, BFloat16{}); });
  pool_.run(count * heads.kv_heads, [&](std::int64_t index, int worker) {
    const QueryTile& tile = query_tiles[index / heads.kv_heads];
    const std::int64_t head = index % heads.kv_heads;
    const std::int32_t context = batch.context_lengths.as<std::int32_t>()[tile.sequence];
    std::array<std::int64_t, kAttendTokensMax> visible{};
    for (std::int32_t t = 0; t < tile.tokens; ++t)
      visible[static_cast<std::size_t>(t)] =
          std::clamp(batch.positions.as<std::int32_t>()[tile.first + t] + 1, 1, context);
    kernels_.attend({.q = q.as<BFloat16>() + tile.first * width + head * group * heads.width,
                     .q_stride = width,
                     .out = values + tile.first * stride + head * group * heads.width,
                     .out_stride = stride,
                     .tokens = tile.tokens,
                     .group = group,
                     .width = heads.width,
                     .visible = visible.data(),
                     .pages = batch.page_tables.as<std::int32_t>() +
                              tile.sequence * batch.page_tables.stride(0),
                     .k = kv.k.data + head * head_elements * element,
                     .v = kv.v.data + head * head_elements * element,
                     .k_scales = fp8_pages ? kv.k_scales.as<float>() + head * kPageTokens : nullptr,
                     .v_scales = fp8_pages ? kv.v_scales.as<float>() + head * kPageTokens : nullptr,
                     .page_stride = heads.kv_heads * head_elements,
                     .scale_page_stride = heads.kv_heads * kPageTokens,
                     .scale = 1.0F / std::sqrt(static_cast<float>(heads.width)),
                     .scratch = kernel_scratch(worker)});
  });
  if (out.quantized.empty() && out.block_quantized.empty()) return {};
  for_rows(batch.tokens,
           [&](std::int64_t row, int) { write_activation(out, row, values + row * stride); });
  return {};
}

}  // namespace koho::cpu
