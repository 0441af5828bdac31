// SPDX-License-Identifier: Apache-2.0
// The start-up self-test compares the fast kernels (Hopper's GEMMs, experts and prefill attention,
// and cuBLASLt) with the portable kernels on random data, and the portable prefill GEMM with the
// portable decode GEMM. The backend does not use what differs by
// more than rounding; the log says so, and the engine runs on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/error.h"
#include "cuda/device/runtime.h"
#include "cuda/gemm/gemm.h"

namespace koho::cuda {

class CudaBackend;
struct TiledWeights;

/// Tests a backend that is being opened. Each test returns whether its kernels may be used. Errors:
/// resource_exhausted, device_error.
class SelfTest {
 public:
  explicit SelfTest(CudaBackend& backend) : backend_(backend) {}

  /// Hopper's GEMM kernels, all but the next one.
  Result<bool> gemm();
  /// experts_down_wgmma.cu.
  Result<bool> experts_down();
  /// experts_thin_sm90.cu, against the kernels of the two tests before.
  Result<bool> experts_thin();
  /// gemm_prefill_portable.cu, whose rows have the bits of gemm_grouped_decode_portable.cu.
  Result<bool> prefill_portable();
  /// Prefill attention on wgmma over pages of bf16, or of e4m3 if `quantized`.
  Result<bool> attention(bool quantized);
  /// The backend's cuBLASLt.
  Result<bool> cublaslt();

 private:
  struct GemmCase;
  struct DownCase;
  struct PrefillCase;
  struct AttentionCase;
  /// Enqueues a kernel.
  using Launch = std::function<Status()>;
  /// Where a kernel writes `rows` rows of `width` bf16 or f32.
  struct Output {
    const DeviceBlock& memory;
    std::int64_t rows = 0;
    std::int64_t width = 0;
    bool f32 = false;
  };

  // ---- self_test.cpp
  Result<DeviceBlock> send_bytes(std::span<const std::byte> bytes);
  template <typename T>
  Result<DeviceBlock> send(const std::vector<T>& values) {
    return send_bytes(std::as_bytes(std::span(values)));
  }
  Result<DeviceBlock> allocate(std::int64_t bytes);
  /// Tiles a row-major weight; enqueues only.
  Result<TiledWeights> tile(const DeviceBlock& source, TileType type, int rows, int columns);
  Status run_portable(const Gemm& p);
  /// What `launch` writes into memory that was all NaN before.
  Result<std::vector<float>> output_of(const Output& out, const Launch& launch);
  /// The relative L2 distance between what `fast` and `portable` write; infinite if either writes a
  /// NaN.
  Result<double> distance(const Output& out, const Launch& portable, const Launch& fast);

  // ---- self_test_gemm.cpp
  Result<GemmCase> make_case(TileType type);
  Result<bool> matches_portable(const char* kernel,
                                const GemmCase& of,
                                const Gemm& p,
                                const std::function<Status(const Gemm&)>& launch);
  Result<bool> grouped_decode(const GemmCase& of);
  Result<bool> linear_layer(const GemmCase& of);
  Result<bool> unswapped(const GemmCase& of);
  Result<bool> prefill_experts(const GemmCase& of, int columns);
  Result<bool> prefill_linear(const GemmCase& of);

  // ---- self_test_prefill_portable.cpp
  Result<bool> prefill_portable_matches(const PrefillCase& of, const Gemm& p, const Gemm& decode);

  // ---- self_test_attention.cpp
  Result<AttentionCase> make_attention_case(bool quantized);

  // ---- self_test_experts.cpp
  Result<bool> down_projection(const DownCase& of, int columns, int token_tiles);

  CudaBackend& backend_;
};

}  // namespace koho::cuda
