// SPDX-License-Identifier: Apache-2.0
// Compares prefill attention on wgmma with the mma.sync kernel.
#include <algorithm>
#include <cmath>
#include <random>

#include "base/log.h"
#include "cuda/backend.h"
#include "cuda/self_test/operands.h"
#include "cuda/self_test/self_test.h"

namespace koho::cuda {
namespace {

// Of relative L2, the operator's own tolerance: the softmax's weights have 8 bits or more.
constexpr double kAttentionErrorMax = 5e-3;
constexpr int kWidth = 128;
constexpr int kKvHeads = 2;
constexpr int kHeads = 12 * kKvHeads;
constexpr int kQueries = 47;  // several tiles, the last one short
constexpr int kContext = 331;
constexpr int kPageTokens = 64;
constexpr int kPages = (kContext + kPageTokens - 1) / kPageTokens;
constexpr int kCacheRows = kPages * kKvHeads * kPageTokens;
constexpr int kOut = kQueries * kHeads * kWidth;

class Random {
 public:
  std::vector<std::uint8_t> bf16(int count, float scale) {
    std::vector<std::uint8_t> bytes;
    for (int i = 0; i < count; ++i)
      self_test::append(bytes, koho::to_bf16(scale * normal_(random_)));
    return bytes;
  }
  std::vector<std::uint8_t> cache(bool quantized) {
    if (!quantized) return bf16(kCacheRows * kWidth, 1.0F);
    std::vector<std::uint8_t> bytes;
    for (int i = 0; i < kCacheRows * kWidth; ++i)
      bytes.push_back(to_e4m3(100.0F * normal_(random_)).bits);
    return bytes;
  }
  std::vector<float> scales() {
    std::vector<float> values;
    for (int i = 0; i < kCacheRows; ++i) values.push_back(0.01F * std::exp(normal_(random_)));
    return values;
  }

 private:
  std::mt19937 random_{7};
  std::normal_distribution<float> normal_;
};

/// `count` numbers from `first` on, upwards or downwards.
std::vector<std::int32_t> sequence(int first, int count, int step) {
  std::vector<std::int32_t> values;
  for (int i = 0; i < count; ++i) values.push_back(first + i * step);
  return values;
}

}  // namespace

struct SelfTest::AttentionCase {
  DeviceBlock q, k, v, k_scales, v_scales, positions, starts, contexts, tables, out;

  Attention parameters(bool quantized) const {
    return {.q = q.as<const Bf16>(),
            .k = k.as<const void>(),
            .v = v.as<const void>(),
            .k_scales = quantized ? k_scales.as<const float>() : nullptr,
            .v_scales = quantized ? v_scales.as<const float>() : nullptr,
            .pages = kPages,
            .positions = positions.as<const std::int32_t>(),
            .query_starts = starts.as<const std::int32_t>(),
            .context_lengths = contexts.as<const std::int32_t>(),
            .page_tables = tables.as<const std::int32_t>(),
            .page_tables_stride = kPages,
            .out = out.as<Bf16>(),
            .tokens = kQueries,
            .sequences = 1,
            .query_max = kQueries,
            .context_max = kContext,
            .query_heads = kHeads,
            .kv_heads = kKvHeads,
            .width = kWidth};
  }
};

Result<SelfTest::AttentionCase> SelfTest::make_attention_case(bool quantized) {
  Random random;
  AttentionCase of;
  KOHO_TRY_ASSIGN(of.q, send(random.bf16(kOut, 2.0F)));
  KOHO_TRY_ASSIGN(of.k, send(random.cache(quantized)));
  KOHO_TRY_ASSIGN(of.v, send(random.cache(quantized)));
  KOHO_TRY_ASSIGN(of.k_scales, send(random.scales()));
  KOHO_TRY_ASSIGN(of.v_scales, send(random.scales()));
  KOHO_TRY_ASSIGN(of.positions, send(sequence(kContext - kQueries, kQueries, 1)));
  KOHO_TRY_ASSIGN(of.starts, send(std::vector<std::int32_t>{0, kQueries}));
  KOHO_TRY_ASSIGN(of.contexts, send(std::vector<std::int32_t>{kContext}));
  KOHO_TRY_ASSIGN(of.tables, send(sequence(kPages - 1, kPages, -1)));
  KOHO_TRY_ASSIGN(of.out, allocate(2LL * kOut));
  return of;
}

Result<bool> SelfTest::attention(bool quantized) {
  KOHO_TRY_ASSIGN(const AttentionCase of, make_attention_case(quantized));
  Attention p = of.parameters(quantized);
  p.tile_counters = backend_.tile_counters_.as<std::uint32_t>();
  const std::int64_t upcast_bytes = attention_upcast_bytes(p, 0);
  KOHO_TRY_ASSIGN(const DeviceBlock upcast, allocate(std::max<std::int64_t>(upcast_bytes, 1)));
  p.upcast = upcast.as<void>();
  // e4m3 pages are upcast to f16 in the kernel, or before it.
  for (const bool upcast_before : {false, true}) {
    if (upcast_before && !quantized) break;
    const auto portable = [&]() -> Status {
      p.multiprocessors = backend_.device_.multiprocessors;
      KOHO_CUDA_TRY(launch_attention_prefill(p, backend_.stream_));
      return {};
    };
    const auto fast = [&]() -> Status {
      p.multiprocessors = 1;  // so that one CTA has many tiles
      p.upcast_bytes = upcast_before ? upcast_bytes : 0;
      KOHO_CUDA_TRY(launch_attention_wgmma(p, backend_.stream_));
      return {};
    };
    KOHO_TRY_ASSIGN(
        const double error,
        distance({.memory = of.out, .rows = kQueries * kHeads, .width = kWidth}, portable, fast));
    if (error <= kAttentionErrorMax) continue;
    log::warning(
        "self-test: prefill attention on wgmma over {} pages differs from the portable kernel by "
        "{:.1e}; the portable one is used",
        quantized ? "e4m3" : "bf16", error);
    return false;
  }
  return true;
}

}  // namespace koho::cuda
