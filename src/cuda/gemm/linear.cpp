// SPDX-License-Identifier: Apache-2.0
// The linear operator: each segment of a layer's weight through the kernel that choose_gemm()
// names. Also the scratch memory that operators share.
#include "base/arithmetic.h"
#include "cuda/backend.h"
#include "cuda/gemm/choose_gemm.h"
#include "cuda/gemm/gemm_operands.h"
#include "cuda/gemm/launch_gemm_sm90.h"

namespace koho::cuda {

Gemm TiledWeights::parameters() const {
  Gemm p;
  p.weight = weight.as<const std::uint8_t>();
  p.row_scales = row_scales.as<const float>();
  p.block_scales = block_scales.as<const float>();
  p.bias = bias.as<const Bf16>();
  p.tiles = static_cast<int>(tiles);
  p.rows = static_cast<int>(rows);
  p.width_bytes = static_cast<int>(width_bytes);
  p.type = type;
  return p;
}

Result<std::byte*> CudaBackend::scratch(std::int64_t bytes) {
  if (scratch_.bytes() < bytes) {
    if (*graphs_alive_ > 0)
      return make_error(
          ErrorCode::internal,
          "an operator needs {} bytes of scratch memory, and captured CUDA graphs hold on to {}",
          bytes, scratch_.bytes());
    KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
    scratch_ = DeviceBlock();
    KOHO_TRY_ASSIGN(scratch_, DeviceBlock::allocate(memory_, bytes, "scratch memory"));
  }
  return scratch_.as<std::byte>();
}

Status CudaBackend::run_decode_gemm(const Gemm& p) {
  return launch_decode_gemm(p, choose_decode_gemm_config(p, device_.multiprocessors), stream_);
}

Status CudaBackend::run_grouped_decode_gemm(const Gemm& p) {
  KOHO_CUDA_TRY(wgmma_ ? launch_gemm_grouped_decode_sm90(p, device_.multiprocessors, stream_)
                       : launch_gemm_grouped_decode_portable(p, device_.multiprocessors, stream_));
  return {};
}

Status CudaBackend::run_prefill_gemm(const Gemm& p,
                                     std::int64_t rows,
                                     int columns,
                                     int multiprocessors) {
  return launch_prefill_gemm(p, rows, columns, multiprocessors, stream_);
}

Result<bool> CudaBackend::multiply_with_cublaslt(const Gemm& p, const LinearSegment& segment) {
  CublasLtProblem problem{.gemm = p, .weight = segment.rows.as<void>(), .sums = nullptr};
  if (cublaslt_->scales() == CublasLtScales::separate) {
    KOHO_TRY_ASSIGN(std::byte * sums, scratch(cublaslt_sums_bytes(p.rows, p.tokens)));
    problem.sums = reinterpret_cast<float*>(sums);
  }
  return cublaslt_->multiply(problem, stream_);
}

Status CudaBackend::pad_rows(Gemm& p, std::int64_t rows, std::int64_t width_bytes) {
  KOHO_TRY_ASSIGN(std::byte * padded, scratch(rows * width_bytes));
  KOHO_CUDA_TRY(launch_pad_rows({.out = reinterpret_cast<std::uint8_t*>(padded),
                                 .out_stride = width_bytes,
                                 .x = p.x,
                                 .x_stride = p.x_stride_bytes,
                                 .rows = rows,
                                 .bytes = p.x_bytes},
                                stream_));
  p.x = reinterpret_cast<const std::uint8_t*>(padded);
  p.x_stride_bytes = width_bytes;
  p.x_bytes = static_cast<int>(width_bytes);
  return {};
}

Status CudaBackend::multiply_segment(TensorView out,
                                     const Activation& x,
                                     const LinearSegment& segment) {
  const TiledWeights& weight = segment.weight;
  const std::int64_t tokens = out.size(0);
  Gemm p = weight.parameters();
  set_activation(p, activation_for(x, weight.type));
  p.tokens = static_cast<int>(tokens);
  p.out = out.data + segment.first_column * dtype_bytes(out.dtype);
  p.out_stride = out.stride(0);
  p.epilogue = out.dtype == DType::f32 ? Epilogue::f32 : Epilogue::bf16;
  GemmSupport support{.wgmma = wgmma_,
                      .cublaslt = segment.rows.bytes() > 0,
                      .prefill_portable = prefill_portable_,
                      .multiprocessors = device_.multiprocessors};
  GemmKernel kernel = choose_gemm(p, support);
  if (kernel == GemmKernel::cublaslt) {
    KOHO_TRY_ASSIGN(const bool multiplied, multiply_with_cublaslt(p, segment));
    if (multiplied) return {};
    support.cublaslt = false;
    kernel = choose_gemm(p, support);
  }
  if (kernel == GemmKernel::prefill_192)
    return run_prefill_gemm(p, tokens, kPrefillTokensMax, device_.multiprocessors);
  if (!has_aligned_rows(p)) KOHO_TRY(pad_rows(p, tokens, weight.width_bytes));
  p.token_tiles = choose_token_tiles(tokens);
  p.split_k = choose_split_k(p.tiles, p.width_bytes);
  if (kernel == GemmKernel::grouped_decode) return run_grouped_decode_gemm(p);
  if (kernel == GemmKernel::prefill_portable) {
    KOHO_CUDA_TRY(launch_gemm_prefill_portable(p, device_.multiprocessors, stream_));
    return {};
  }
  return kernel == GemmKernel::decode ? run_decode_gemm(p)
                                      : run_prefill_gemm(p, tokens, 128, device_.multiprocessors);
}

Status CudaBackend::do_linear(TensorView out, const Activation& x, const Linear& weight) {
  KOHO_TRY(bind());
  KOHO_TRY(finish_loading());
  const auto& placed = static_cast<const PlacedLinear&>(*weight.placed);
  for (const LinearSegment& segment : placed.segments) KOHO_TRY(multiply_segment(out, x, segment));
  return {};
}

}  // namespace koho::cuda
