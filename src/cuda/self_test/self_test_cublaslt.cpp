// SPDX-License-Identifier: Apache-2.0
// Compares cuBLASLt's FP8 GEMM, in the mode that the backend opened, with the portable kernel.
#include "base/log.h"
#include "cuda/backend.h"
#include "cuda/self_test/operands.h"
#include "cuda/self_test/self_test.h"

namespace koho::cuda {

/// A GEMM neither side of which is a multiple of cuBLASLt's tiles, without and with a bias.
Result<bool> SelfTest::cublaslt() {
  constexpr int kTokensOdd = 157;
  constexpr int kRowsOdd = 112;
  static_assert(kTokensOdd <= self_test::kTokensMany && kRowsOdd <= self_test::kRows);
  CublasLtGemm& library = *backend_.cublaslt_;
  const cudaStream_t stream = backend_.stream_;
  const self_test::Operands operands(static_cast<std::uint32_t>(TileType::fp8) + 1, 1);
  const self_test::Operands bf16(1, 2);
  KOHO_TRY_ASSIGN(const DeviceBlock source, send(operands.weight));
  KOHO_TRY_ASSIGN(const DeviceBlock x, send(operands.x));
  KOHO_TRY_ASSIGN(const DeviceBlock row_scales, send(operands.row_scales));
  KOHO_TRY_ASSIGN(const DeviceBlock x_scales, send(operands.token_scales));
  KOHO_TRY_ASSIGN(const DeviceBlock bias, send(bf16.weight));
  KOHO_TRY_ASSIGN(const DeviceBlock sums, allocate(cublaslt_sums_bytes(kRowsOdd, kTokensOdd)));
  KOHO_TRY_ASSIGN(const DeviceBlock out, allocate(2 * kTokensOdd * kRowsOdd));
  KOHO_TRY_ASSIGN(const TiledWeights weight,
                  tile(source, TileType::fp8, kRowsOdd, self_test::kColumns));
  Gemm p = weight.parameters();
  p.row_scales = row_scales.as<const float>();
  p.x = x.as<const std::uint8_t>();
  p.x_stride_bytes = self_test::kColumns;
  p.x_bytes = self_test::kColumns;
  p.x_scales = x_scales.as<const float>();
  p.tokens = kTokensOdd;
  p.out = out.as<void>();
  p.out_stride = kRowsOdd;
  p.token_tiles = 8;
  for (const bool biased : {false, true}) {
    p.bias = biased ? bias.as<const Bf16>() : nullptr;
    const auto portable = [&] { return run_portable(p); };
    bool refused = false;
    const auto fast = [&]() -> Status {
      const Result<bool> multiplied = library.multiply(
          {.gemm = p, .weight = source.as<const void>(), .sums = sums.as<float>()}, stream);
      if (!multiplied.ok()) log::warning("self-test: {}", multiplied.error().message);
      refused = !multiplied.ok() || !*multiplied;
      return {};
    };
    KOHO_TRY_ASSIGN(
        const double error,
        distance({.memory = out, .rows = kTokensOdd, .width = kRowsOdd}, portable, fast));
    if (refused) return false;
    if (error <= self_test::kErrorMaxRounded) continue;
    log::warning("self-test: cuBLASLt ({} scales{}) differs from the portable kernel by {:.1e}",
                 library.scales() == CublasLtScales::fused ? "row and column" : "scalar",
                 biased ? ", bias" : "", error);
    return false;
  }
  return true;
}

}  // namespace koho::cuda
