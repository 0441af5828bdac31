// SPDX-License-Identifier: Apache-2.0
// FP8 GEMMs of many tokens through cuBLASLt, with one scale per token and one per weight row. On
// Hopper cuBLASLt multiplies by these scales itself. Elsewhere it has one scale per matrix at most,
// and gemm_scale_epilogue.cu scales its f32 sums. An algorithm is chosen once per shape and power
// of two of tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <cublasLt.h>

#include "base/arithmetic.h"
#include "cuda/device/runtime.h"
#include "cuda/gemm/gemm.h"

namespace koho::cuda {

/// Where the sums are multiplied by the scales of tokens and of weight rows.
enum class CublasLtScales : std::uint8_t {
  fused,    // in cuBLASLt's epilogue, which writes bf16
  separate  // in gemm_scale_epilogue.cu: cuBLASLt writes f32
};

struct CublasLtProblem {
  Gemm gemm;                     // fp8, bf16 out, K = x_bytes; its tiled weight is not read
  const void* weight = nullptr;  // [N, K] e4m3, row-major, aligned to 256 bytes
  float* sums = nullptr;         // cublaslt_sums_bytes() of scratch memory, where the kernel scales
};

/// The f32 sums that are computed and scaled at a time have at most so many bytes: less than the L2
/// cache of a B200.
constexpr std::int64_t kCublasLtSumsBytes = 64LL << 20;

/// The most tokens whose sums for `rows` weight rows are computed at a time.
constexpr std::int64_t cublaslt_tokens_max(std::int64_t rows) {
  constexpr std::int64_t kTile = 128;  // tokens of a cuBLASLt tile, about
  return std::max(kCublasLtSumsBytes / (4 * rows) / kTile * kTile, kTile);
}
/// Tokens of each piece but the last of a GEMM of `tokens` tokens: as equal as multiples of 16 can
/// be.
constexpr std::int64_t cublaslt_piece(std::int64_t rows, std::int64_t tokens) {
  const std::int64_t pieces = ceil_div(tokens, cublaslt_tokens_max(rows));
  return round_up<std::int64_t>(ceil_div(tokens, pieces), 16);
}
/// Scratch memory for the sums of up to `tokens` tokens.
constexpr std::int64_t cublaslt_sums_bytes(std::int64_t rows, std::int64_t tokens) {
  return 4 * rows * std::min(round_up<std::int64_t>(tokens, 16), cublaslt_tokens_max(rows));
}

class CublasLtGemm {
 public:
  /// Errors: unsupported (cuBLASLt says that it has no FP8 GEMM with `scales` here),
  /// resource_exhausted, device_error.
  static Result<std::unique_ptr<CublasLtGemm>> open(const std::shared_ptr<DeviceMemory>& memory,
                                                    CublasLtScales scales);
  ~CublasLtGemm();
  CublasLtGemm(const CublasLtGemm&) = delete;
  CublasLtGemm& operator=(const CublasLtGemm&) = delete;

  /// True if multiply() takes this shape.
  static bool takes(std::int64_t rows, std::int64_t columns);
  CublasLtScales scales() const { return scales_; }

  /// Announces GEMMs of this shape, which prepare() prepares for.
  void expect(std::int64_t rows, std::int64_t columns, bool bias);
  /// Scratch memory that the expected GEMMs of up to `tokens` tokens take.
  std::int64_t scratch_bytes(std::int64_t tokens) const;
  /// Chooses algorithms for the expected GEMMs of up to `tokens` tokens and runs each once on a
  /// small GEMM, so that no step chooses one or loads its kernel. Synchronises. Errors:
  /// resource_exhausted, device_error.
  Status prepare(std::int64_t tokens, cudaStream_t stream);

  /// False: the library has no algorithm for this GEMM after all, and the caller must write out by
  /// other means. Errors: device_error.
  Result<bool> multiply(const CublasLtProblem& problem, cudaStream_t stream);

 private:
  struct Shape {
    std::int64_t rows = 0;     // N
    std::int64_t columns = 0;  // K
    bool bias = false;         // that the library adds

    auto operator<=>(const Shape&) const = default;
  };
  using Key = std::pair<Shape, std::int64_t>;  // and tokens, a power of two

  CublasLtGemm() = default;
  Shape shape_of(std::int64_t rows, std::int64_t columns, bool bias) const;
  /// A GEMM all of whose operands lie at `memory`.
  CublasLtProblem stand_in(const Shape& shape, void* memory) const;
  /// Asks cuBLASLt; nothing: it has no algorithm.
  Result<std::optional<cublasLtMatmulAlgo_t>> choose(const CublasLtProblem& problem,
                                                     std::int64_t tokens);
  /// choose(), cached; logs once if there is none.
  Result<const cublasLtMatmulAlgo_t*> algorithm(const Key& key, const CublasLtProblem& problem);
  cublasStatus_t run(const CublasLtProblem& problem,
                     const cublasLtMatmulAlgo_t& algorithm,
                     cudaStream_t stream);
  Result<bool> multiply_piece(const CublasLtProblem& problem, cudaStream_t stream);

  std::shared_ptr<DeviceMemory> memory_;
  CublasLtScales scales_ = CublasLtScales::fused;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  DeviceBlock workspace_;
  std::set<Shape> expected_;
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> algorithms_;
};

}  // namespace koho::cuda
