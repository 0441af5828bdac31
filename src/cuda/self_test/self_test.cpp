// SPDX-License-Identifier: Apache-2.0
#include "cuda/self_test/self_test.h"

#include <cmath>
#include <random>

#include "cuda/backend.h"
#include "cuda/load/repack.h"
#include "cuda/self_test/operands.h"

namespace koho::cuda {
namespace self_test {

void append(std::vector<std::uint8_t>& bytes, BFloat16 value) {
  bytes.push_back(static_cast<std::uint8_t>(value.bits & 0xFFU));
  bytes.push_back(static_cast<std::uint8_t>(value.bits >> 8U));
}

Operands::Operands(std::uint32_t seed, int element_bytes) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> near_one(0.5F, 1.5F);
  const auto fill = [&](std::vector<std::uint8_t>& bytes, int count) {
    bytes.reserve(static_cast<std::size_t>(count * element_bytes));
    for (int i = 0; i < count; ++i) {
      if (element_bytes == 1)
        bytes.push_back(to_e4m3(normal(random)).bits);
      else
        append(bytes, koho::to_bf16(normal(random)));
    }
  };
  const auto scales = [&](std::vector<float>& values, int count) {
    for (int i = 0; i < count; ++i) values.push_back(near_one(random));
  };
  fill(weight, kRows * kColumns);
  fill(x, kTokensMany * kColumns);
  scales(row_scales, kRows);
  scales(token_scales, kTokensMany);
  scales(block_scales, kRows / kTileRows * 2 * kScaleBlocks);
  scales(token_block_scales, kTokensMany * kScaleBlocks);
}

}  // namespace self_test

namespace {

/// |a - b| / |b| over all elements; NaN anywhere counts as a difference.
double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    size += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  const double error = std::sqrt(difference / size);
  return std::isnan(error) ? INFINITY : error;
}

}  // namespace

Status CudaBackend::test_kernels() {
  SelfTest test(*this);
  if (wgmma_) {
    KOHO_TRY_ASSIGN(wgmma_, test.gemm());
  }
  if (wgmma_) {
    KOHO_TRY_ASSIGN(wgmma_, test.experts_down());
  }
  if (wgmma_) {
    KOHO_TRY_ASSIGN(wgmma_, test.experts_thin());
  }
  if (!wgmma_) {
    KOHO_TRY_ASSIGN(prefill_portable_, test.prefill_portable());
  }
  for (const bool quantized : {false, true}) {
    if (!wgmma_attention_) break;
    KOHO_TRY_ASSIGN(wgmma_attention_, test.attention(quantized));
  }
  return {};
}

Result<DeviceBlock> SelfTest::send_bytes(std::span<const std::byte> bytes) {
  return backend_.to_device(bytes, "self-test");
}

Result<DeviceBlock> SelfTest::allocate(std::int64_t bytes) {
  return DeviceBlock::allocate(backend_.memory_, bytes, "self-test");
}

Status SelfTest::run_portable(const Gemm& p) {
  KOHO_CUDA_TRY(
      launch_gemm_grouped_decode_portable(p, backend_.device_.multiprocessors, backend_.stream_));
  return {};
}

Result<TiledWeights> SelfTest::tile(const DeviceBlock& source,
                                    TileType type,
                                    int rows,
                                    int columns) {
  const std::int64_t row_bytes = columns * (type == TileType::bf16 ? 2 : 1);
  const MatrixSize size{rows, columns};
  KOHO_TRY_ASSIGN(TiledWeights weight, backend_.make_tiles(type, false, 1, size, size));
  KOHO_CUDA_TRY(launch_repack({.tiles = weight.weight.as<std::uint8_t>(),
                               .source = source.as<const std::uint8_t>(),
                               .source_stride_bytes = row_bytes,
                               .rows = rows,
                               .row_bytes = row_bytes,
                               .width_bytes = weight.width_bytes},
                              backend_.stream_));
  return weight;
}

Result<std::vector<float>> SelfTest::output_of(const Output& out, const Launch& launch) {
  void* const memory = out.memory.as<void>();
  const auto bytes = static_cast<std::size_t>(out.memory.bytes());
  KOHO_CUDA_TRY(cudaMemsetAsync(memory, 0xFF, bytes, backend_.stream_));
  KOHO_TRY(launch());
  KOHO_CUDA_TRY(cudaStreamSynchronize(backend_.stream_));
  std::vector<float> values(static_cast<std::size_t>(out.rows * out.width));
  if (out.f32) {
    KOHO_CUDA_TRY(cudaMemcpy(values.data(), memory, 4 * values.size(), cudaMemcpyDeviceToHost));
    return values;
  }
  std::vector<BFloat16> rounded(values.size());
  KOHO_CUDA_TRY(cudaMemcpy(rounded.data(), memory, 2 * values.size(), cudaMemcpyDeviceToHost));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = to_float(rounded[i]);
  return values;
}

Result<double> SelfTest::distance(const Output& out, const Launch& portable, const Launch& fast) {
  KOHO_TRY_ASSIGN(const std::vector<float> expected, output_of(out, portable));
  KOHO_TRY_ASSIGN(const std::vector<float> found, output_of(out, fast));
  return relative_error(found, expected);
}

}  // namespace koho::cuda
