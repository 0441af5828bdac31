// SPDX-License-Identifier: Apache-2.0
// The start-up self-test: Hopper's matrix and attention kernels, and cuBLASLt, against the portable
// kernels on random data. A difference beyond rounding switches the fast one off and says so; the
// engine runs on.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/log.h"
#include "cuda/backend.h"
#include "cuda/kernels.h"
#include "cuda/matmul_hopper.h"
#include "cuda/tensor_map.h"
#include "cuda/tiles.h"
#include "tensor/number.h"

namespace koho::cuda {
namespace {

constexpr int kRows = 128;
constexpr int kColumns = 1088;  // more than four stages, the last one short
constexpr int kTokens = 61;
constexpr int kTokensTwo = 125;
constexpr int kTokensMany = kPrefillColumns;
constexpr int kBlocks = (kColumns + kBlockWidth - 1) / kBlockWidth;

/// Random operands in every form; scales around 1.
struct Operands {
  std::vector<std::uint8_t> weight, x;
  std::vector<float> row_scales, token_scales, block_scales, token_block_scales;

  explicit Operands(std::uint32_t seed, int element_bytes) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> near_one(0.5F, 1.5F);
    const auto fill = [&](std::vector<std::uint8_t>& bytes, int count) {
      bytes.reserve(static_cast<std::size_t>(count * element_bytes));
      for (int i = 0; i < count; ++i) {
        const float value = normal(random);
        if (element_bytes == 1) {
          bytes.push_back(to_e4m3(value).bits);
        } else {
          const std::uint16_t bits = koho::to_bf16(value).bits;
          bytes.push_back(static_cast<std::uint8_t>(bits & 0xFFU));
          bytes.push_back(static_cast<std::uint8_t>(bits >> 8U));
        }
      }
    };
    const auto scales = [&](std::vector<float>& values, int count) {
      for (int i = 0; i < count; ++i) values.push_back(near_one(random));
    };
    fill(weight, kRows * kColumns);
    fill(x, kTokensMany * kColumns);
    scales(row_scales, kRows);
    scales(token_scales, kTokensMany);
    scales(block_scales, kRows / kTileRows * 2 * kBlocks);
    scales(token_block_scales, kTokens * kBlocks);
  }
};

/// Results of the kind that `end` names.
Result<std::vector<float>> results_of(const DeviceBlock& out, MatmulEnd end, std::size_t count) {
  std::vector<float> values(count);
  if (end == MatmulEnd::f32) {
    KOHO_CUDA_TRY(
        cudaMemcpy(values.data(), out.as<const void>(), 4 * count, cudaMemcpyDeviceToHost));
    return values;
  }
  std::vector<BFloat16> rounded(count);
  KOHO_CUDA_TRY(
      cudaMemcpy(rounded.data(), out.as<const void>(), 2 * count, cudaMemcpyDeviceToHost));
  for (std::size_t i = 0; i < count; ++i) values[i] = to_float(rounded[i]);
  return values;
}

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

Status CudaBackend::run_self_test() {
  constexpr double kErrorMax = 2e-3;  // f32 sums of both; wgmma keeps fewer bits within a stage
  constexpr double kRounding = 1.0 / 256.0;  // of both to bf16
  for (const TileType type : {TileType::bf16, TileType::fp8, TileType::fp8_block}) {
    const int element = type == TileType::bf16 ? 2 : 1;
    const Operands operands(static_cast<std::uint32_t>(type) + 1, element);
    const auto bytes_to_device =
        [&](const std::vector<std::uint8_t>& bytes) -> Result<DeviceBlock> {
      KOHO_TRY_ASSIGN(
          DeviceBlock block,
          DeviceBlock::allocate(memory_, static_cast<std::int64_t>(bytes.size()), "self-test"));
      KOHO_CUDA_TRY(
          cudaMemcpy(block.as<void>(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
      return block;
    };
    KOHO_TRY_ASSIGN(const DeviceBlock source, bytes_to_device(operands.weight));
    KOHO_TRY_ASSIGN(const DeviceBlock x, bytes_to_device(operands.x));
    KOHO_TRY_ASSIGN(const DeviceBlock row_scales, to_device(operands.row_scales, "self-test"));
    KOHO_TRY_ASSIGN(const DeviceBlock block_scales, to_device(operands.block_scales, "self-test"));
    const bool block = type == TileType::fp8_block;
    KOHO_TRY_ASSIGN(
        const DeviceBlock x_scales,
        to_device(block ? operands.token_block_scales : operands.token_scales, "self-test"));
    KOHO_TRY_ASSIGN(const TiledMatrices matrix, make_tiles(type, false, 1, kRows, kColumns));
    KOHO_CUDA_TRY(launch_repack({.tiles = matrix.weight.as<std::uint8_t>(),
                                 .source = source.as<const std::uint8_t>(),
                                 .source_stride_bytes = kColumns * element,
                                 .rows = kRows,
                                 .row_bytes = kColumns * element,
                                 .width_bytes = matrix.width_bytes},
                                stream_));
    KOHO_TRY_ASSIGN(const DeviceBlock out,
                    DeviceBlock::allocate(memory_, kTokensMany * kRows * 4, "self-test"));
    KOHO_TRY_ASSIGN(const DeviceBlock list,
                    DeviceBlock::allocate(memory_, sizeof(MatmulEntry) + 4, "self-test"));
    Matmul p = matrix.parameters();
    p.row_scales = row_scales.as<const float>();
    p.block_scales = block_scales.as<const float>();
    p.x = x.as<const std::uint8_t>();
    p.x_stride_bytes = kColumns * element;
    p.x_bytes = kColumns * element;
    p.x_scales = x_scales.as<const float>();
    p.x_scales_stride = kBlocks;
    p.tokens = kTokens;
    p.out = out.as<void>();
    p.out_stride = kRows;
    p.end = MatmulEnd::f32;
    // Runs `launch`, then the portable form of the same; false if they differ.
    const auto equal = [&](const char* kernel, const Matmul& shape,
                           const auto& launch) -> Result<bool> {
      std::vector<float> results[2];
      for (int form = 0; form < 2; ++form) {
        KOHO_CUDA_TRY(cudaMemsetAsync(out.as<void>(), 0xFF, kTokensMany * kRows * 4, stream_));
        if (form == 0)
          KOHO_CUDA_TRY(launch_matmul_portable(shape, device_.multiprocessors, stream_));
        else
          KOHO_TRY(launch(shape));
        if (form == 1) KOHO_TRY(spoil(FastPathFault::matrices, out.as<void>(), 2 * kRows));
        KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
        KOHO_TRY_ASSIGN(results[form],
                        results_of(out, shape.end, static_cast<std::size_t>(shape.tokens) * kRows));
      }
      const double error = relative_error(results[1], results[0]);
      if (error <= kErrorMax + (shape.end == MatmulEnd::bf16 ? kRounding : 0.0)) return true;
      log::warning(
          "self-test: the {} kernel differs from the portable one by {:.1e} (type {}, {} tokens, "
          "{} parts); the portable one is used",
          kernel, error, static_cast<int>(type), shape.tokens, shape.parts);
      return false;
    };
    bool all = true;
    for (const int tiles : {1, 2, 4, 8}) {
      if (tiles == 2 && type != TileType::fp8_block) continue;  // not there
      p.token_tiles = tiles;
      p.parts = tiles % 4 == 0 ? 2 : 1;
      KOHO_TRY_ASSIGN(const bool same, equal("wgmma matrix", p, [&](const Matmul& shape) -> Status {
                        KOHO_CUDA_TRY(launch_matmul_wgmma(shape, device_.multiprocessors, stream_));
                        return {};
                      }));
      all = all && same;
    }
    if (type == TileType::fp8) {
      Matmul pairs = p;
      pairs.token_tiles = 4;
      pairs.row_tiles = 2;
      pairs.parts = 1;
      KOHO_TRY_ASSIGN(const bool same,
                      equal("wgmma matrix of two tiles", pairs, [&](const Matmul& shape) -> Status {
                        KOHO_CUDA_TRY(launch_matmul_wgmma(shape, device_.multiprocessors, stream_));
                        return {};
                      }));
      all = all && same;
    }
    if (type != TileType::fp8_block) {
      for (const int tokens : {1, 8, 11, 29, kTokens}) {
        p.tokens = tokens;
        p.token_tiles = 8;
        p.parts = 1 + tokens % 3;
        KOHO_TRY_ASSIGN(const bool dense,
                        equal("dense", p, [&](const Matmul& shape) { return run_dense(shape); }));
        KOHO_TRY_ASSIGN(const bool prefill, equal("prefill", p, [&](const Matmul& shape) {
                          return run_prefill(shape, shape.tokens, 128);
                        }));
        all = all && dense && prefill;
      }
    }
    // All of the turned kernel, most of which such a matrix does not choose: one slice of tokens
    // and two, results rounded (straight from registers) and not, blocks one after the other.
    for (const int tokens : {kTokens, kTokensTwo}) {
      if (type == TileType::fp8_block) break;
      Matmul whole = p;
      whole.tokens = tokens;
      whole.parts = type == TileType::fp8 && tokens == kTokens ? 2 : 1;
      if (type == TileType::fp8 && tokens == kTokensTwo) whole.end = MatmulEnd::bf16;
      for (DenseForm form : turned_forms(whole)) {
        form.ctas = turned_repeats(form) ? 1 : 0;
        KOHO_TRY_ASSIGN(const bool turned, equal("turned", whole, [&](const Matmul& shape) {
                          return launch_dense_form(shape, form, stream_);
                        }));
        all = all && turned;
      }
    }
    // Each form of the loop that multiplies many tokens by experts, its last columns without a
    // token.
    for (int form = 0; type == TileType::fp8 && form < prefill_forms(kPrefillColumns); ++form) {
      const int count = prefill_form_columns(kPrefillColumns, form) - form - 1;
      const MatmulEntry entry{.expert = 0, .first = 0, .count = count, .place = 0, .places = 1};
      const std::int32_t entry_count = 1;
      KOHO_CUDA_TRY(cudaMemcpy(list.as<void>(), &entry, sizeof entry, cudaMemcpyHostToDevice));
      KOHO_CUDA_TRY(
          cudaMemcpy(list.as<std::byte>() + sizeof entry, &entry_count, 4, cudaMemcpyHostToDevice));
      p.tokens = count;
      p.parts = 1;
      p.end = MatmulEnd::bf16;
      KOHO_TRY_ASSIGN(const bool experts, equal("experts' prefill", p, [&](Matmul shape) {
                        shape.entries = list.as<const MatmulEntry>();
                        shape.entry_count = reinterpret_cast<const std::int32_t*>(
                            list.as<const std::byte>() + sizeof entry);
                        return run_prefill(shape, kTokensMany, kPrefillColumns);
                      }));
      all = all && experts;
    }
    if (type == TileType::fp8) {  // in two slices, the last columns of the second without a token
      std::vector<std::uint8_t> biases;
      for (int row = 0; row < kRows; ++row) {
        const std::uint16_t bits = koho::to_bf16(0.25F * static_cast<float>(row)).bits;
        biases.push_back(static_cast<std::uint8_t>(bits & 0xFFU));
        biases.push_back(static_cast<std::uint8_t>(bits >> 8U));
      }
      KOHO_TRY_ASSIGN(const DeviceBlock bias, bytes_to_device(biases));
      p.tokens = kTokensMany - 5;
      p.bias = bias.as<const Bf16>();
      KOHO_TRY_ASSIGN(const bool prompt, equal("prompt", p, [&](const Matmul& shape) {
                        return run_prefill(shape, shape.tokens, kPrefillColumns);
                      }));
      all = all && prompt;
    }
    if (all) continue;
    wgmma_ = false;
    return {};
  }
  return {};
}

/// Rows of one stage, of two and, for few tokens, of whole experts; entries of few and of many
/// tokens, one after the other in the same CTAs. The portable kernel gets the rows' codes.
Status CudaBackend::run_experts_down_self_test() {
  if (!wgmma_) return {};
  constexpr double kErrorMax = 2e-3 + 1.0 / 256.0;  // as above, rounded to bf16
  constexpr int kEntries = 6;
  constexpr int kRowsMax = 29 * kEntries;
  const Operands operands(1, 1);
  const Operands rows(2, 2);
  const auto to_block = [&](const void* data, std::size_t bytes) -> Result<DeviceBlock> {
    KOHO_TRY_ASSIGN(DeviceBlock block,
                    DeviceBlock::allocate(memory_, static_cast<std::int64_t>(bytes), "self-test"));
    KOHO_CUDA_TRY(cudaMemcpy(block.as<void>(), data, bytes, cudaMemcpyHostToDevice));
    return block;
  };
  KOHO_TRY_ASSIGN(const DeviceBlock source, to_block(operands.weight.data(), kRows * kColumns));
  KOHO_TRY_ASSIGN(const DeviceBlock x, to_block(rows.x.data(), 2 * kRowsMax * kColumns));
  KOHO_TRY_ASSIGN(const DeviceBlock row_scales, to_device(operands.row_scales, "self-test"));
  KOHO_TRY_ASSIGN(const DeviceBlock codes,
                  DeviceBlock::allocate(memory_, kRowsMax * kColumns, "self-test"));
  KOHO_TRY_ASSIGN(const DeviceBlock scales,
                  DeviceBlock::allocate(memory_, 4 * kRowsMax, "self-test"));
  KOHO_TRY_ASSIGN(const DeviceBlock out,
                  DeviceBlock::allocate(memory_, 2 * kRowsMax * kRows, "self-test"));
  // Copies of 16 bytes end behind a row of 184: initcheck counts what they leave out as read.
  KOHO_CUDA_TRY(cudaMemsetAsync(codes.as<void>(), 0, kRowsMax * kColumns, stream_));
  for (const int columns : {184, 392, kColumns}) {
    KOHO_TRY_ASSIGN(const TiledMatrices matrix,
                    make_tiles(TileType::fp8, false, 1, kRows, columns));
    KOHO_CUDA_TRY(launch_repack({.tiles = matrix.weight.as<std::uint8_t>(),
                                 .source = source.as<const std::uint8_t>(),
                                 .source_stride_bytes = columns,
                                 .rows = kRows,
                                 .row_bytes = columns,
                                 .width_bytes = matrix.width_bytes},
                                stream_));
    for (const int tiles : {1, 4}) {
      if (matrix.width_bytes > kDownThinWidth && tiles > 1) continue;
      std::vector<MatmulEntry> entries;
      int count = 0;
      for (int i = 0; i < kEntries; ++i) {
        entries.push_back({.expert = 0,
                           .first = count,
                           .count = (tiles == 1 ? 8 : 29) - i,
                           .place = 0,
                           .places = 1});
        count += entries.back().count;
      }
      const std::int32_t entry_count = kEntries;
      KOHO_TRY_ASSIGN(const DeviceBlock list,
                      to_block(entries.data(), entries.size() * sizeof(MatmulEntry)));
      KOHO_TRY_ASSIGN(const DeviceBlock list_size, to_block(&entry_count, sizeof entry_count));
      Matmul p = matrix.parameters();
      p.row_scales = row_scales.as<const float>();
      p.entries = list.as<const MatmulEntry>();
      p.entry_count = list_size.as<const std::int32_t>();
      p.out = out.as<void>();
      p.out_stride = kRows;
      p.token_tiles = tiles;
      std::vector<float> results[2];
      for (int form = 0; form < 2; ++form) {
        KOHO_CUDA_TRY(cudaMemsetAsync(out.as<void>(), 0xFF, 2 * kRowsMax * kRows, stream_));
        if (form == 0) {
          KOHO_CUDA_TRY(launch_quantise_rows({.codes = codes.as<std::uint8_t>(),
                                              .codes_stride = kColumns,
                                              .scales = scales.as<float>()},
                                             x.as<const Bf16>(), kColumns, count, nullptr, columns,
                                             device_.multiprocessors, stream_));
          p.x = codes.as<const std::uint8_t>();
          p.x_stride_bytes = kColumns;
          p.x_bytes = columns;
          p.x_scales = scales.as<const float>();
          KOHO_CUDA_TRY(launch_matmul_portable(p, device_.multiprocessors, stream_));
        } else {
          p.x = x.as<const std::uint8_t>();
          p.x_stride_bytes = 2 * kColumns;
          p.x_bytes = 2 * columns;
          KOHO_CUDA_TRY(launch_experts_down(p, 1, stream_));
          KOHO_TRY(spoil(FastPathFault::experts_down, out.as<void>(), 2 * kRows));
        }
        KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
        KOHO_TRY_ASSIGN(results[form],
                        results_of(out, MatmulEnd::bf16, static_cast<std::size_t>(count) * kRows));
      }
      const double error = relative_error(results[1], results[0]);
      if (error <= kErrorMax) continue;
      log::warning(
          "self-test: the kernel of experts' second matrix differs from the portable one by {:.1e} "
          "({} columns, {} tokens an entry); the portable one is used",
          error, columns, 8 * tiles);
      wgmma_ = false;
      return {};
    }
  }
  return {};
}

/// A product of which neither side is a multiple of the library's tiles, with a bias and without.
Result<bool> CudaBackend::library_is_right() {
  constexpr double kErrorMax = 2e-3 + 1.0 / 256.0;  // as above, rounded to bf16
  constexpr int kTokensOdd = 157;
  constexpr int kRowsOdd = 112;
  static_assert(kTokensOdd <= kTokensMany && kRowsOdd <= kRows);
  const Operands operands(static_cast<std::uint32_t>(TileType::fp8) + 1, 1);
  const Operands halves(1, 2);  // bf16 numbers around 0, for the bias
  const auto to_block = [&](const void* data, std::size_t bytes) -> Result<DeviceBlock> {
    KOHO_TRY_ASSIGN(DeviceBlock block,
                    DeviceBlock::allocate(memory_, static_cast<std::int64_t>(bytes), "self-test"));
    KOHO_CUDA_TRY(cudaMemcpy(block.as<void>(), data, bytes, cudaMemcpyHostToDevice));
    return block;
  };
  KOHO_TRY_ASSIGN(const DeviceBlock source, to_block(operands.weight.data(), kRowsOdd * kColumns));
  KOHO_TRY_ASSIGN(const DeviceBlock x, to_block(operands.x.data(), kTokensOdd * kColumns));
  KOHO_TRY_ASSIGN(const DeviceBlock row_scales, to_device(operands.row_scales, "self-test"));
  KOHO_TRY_ASSIGN(const DeviceBlock x_scales, to_device(operands.token_scales, "self-test"));
  KOHO_TRY_ASSIGN(const DeviceBlock bias, to_block(halves.weight.data(), 2 * kRowsOdd));
  KOHO_TRY_ASSIGN(
      const DeviceBlock sums,
      DeviceBlock::allocate(memory_, library_sums_bytes(kRowsOdd, kTokensOdd), "self-test"));
  constexpr int kOutBytes = 2 * kTokensOdd * kRowsOdd;
  KOHO_TRY_ASSIGN(const DeviceBlock out, DeviceBlock::allocate(memory_, kOutBytes, "self-test"));
  KOHO_TRY_ASSIGN(const TiledMatrices matrix,
                  make_tiles(TileType::fp8, false, 1, kRowsOdd, kColumns));
  KOHO_CUDA_TRY(launch_repack({.tiles = matrix.weight.as<std::uint8_t>(),
                               .source = source.as<const std::uint8_t>(),
                               .source_stride_bytes = kColumns,
                               .rows = kRowsOdd,
                               .row_bytes = kColumns,
                               .width_bytes = matrix.width_bytes},
                              stream_));
  Matmul p = matrix.parameters();
  p.row_scales = row_scales.as<const float>();
  p.x = x.as<const std::uint8_t>();
  p.x_stride_bytes = kColumns;
  p.x_bytes = kColumns;
  p.x_scales = x_scales.as<const float>();
  p.tokens = kTokensOdd;
  p.out = out.as<void>();
  p.out_stride = kRowsOdd;
  p.token_tiles = 8;
  for (const bool biased : {false, true}) {
    p.bias = biased ? bias.as<const Bf16>() : nullptr;
    std::vector<float> results[2];
    for (int form = 0; form < 2; ++form) {
      KOHO_CUDA_TRY(cudaMemsetAsync(out.as<void>(), 0xFF, kOutBytes, stream_));
      if (form == 0) {
        KOHO_CUDA_TRY(launch_matmul_portable(p, device_.multiprocessors, stream_));
      } else {
        const Result<bool> multiplied = library_->multiply(
            {.matmul = p, .weight = source.as<const void>(), .sums = sums.as<float>()}, stream_);
        if (!multiplied.ok()) log::warning("self-test: {}", multiplied.error().message);
        if (!multiplied.ok() || !*multiplied) return false;
        KOHO_TRY(spoil(FastPathFault::library, out.as<void>(), 2 * kRowsOdd));
      }
      KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
      KOHO_TRY_ASSIGN(results[form], results_of(out, MatmulEnd::bf16, kTokensOdd * kRowsOdd));
    }
    const double error = relative_error(results[1], results[0]);
    if (error <= kErrorMax) continue;
    log::warning("self-test: cuBLASLt ({} scales{}) differs from the portable kernel by {:.1e}",
                 library_->scales() == LibraryScales::library ? "row and column" : "scalar",
                 biased ? ", bias" : "", error);
    return false;
  }
  return true;
}

Status CudaBackend::spoil(FastPathFault fault, void* out, std::size_t bytes) {
  if (options_.fault == fault) KOHO_CUDA_TRY(cudaMemsetAsync(out, 0, bytes, stream_));
  return {};
}

Status CudaBackend::run_attention_self_test(bool codes) {
  // The operator's own gate: the softmax's weights have 8 bits or more.
  constexpr double kErrorMax = 5e-3;
  constexpr int kWidth = 128;
  constexpr int kKvHeads = 2;
  constexpr int kHeads = 12 * kKvHeads;
  constexpr int kQueries = 47;  // several tiles, the last one short
  constexpr int kContext = 331;
  constexpr int kPages = (kContext + 63) / 64;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto values = [&](int count, float scale) -> Result<DeviceBlock> {
    std::vector<std::uint16_t> bits;
    for (int i = 0; i < count; ++i) bits.push_back(koho::to_bf16(scale * normal(random)).bits);
    KOHO_TRY_ASSIGN(DeviceBlock block, DeviceBlock::allocate(memory_, 2LL * count, "self-test"));
    KOHO_CUDA_TRY(
        cudaMemcpy(block.as<void>(), bits.data(), 2 * bits.size(), cudaMemcpyHostToDevice));
    return block;
  };
  const auto cache = [&]() -> Result<DeviceBlock> {
    constexpr int kElements = kPages * kKvHeads * 64 * kWidth;
    if (!codes) return values(kElements, 1.0F);
    std::vector<std::uint8_t> bits;
    for (int i = 0; i < kElements; ++i) bits.push_back(to_e4m3(100.0F * normal(random)).bits);
    KOHO_TRY_ASSIGN(DeviceBlock block, DeviceBlock::allocate(memory_, kElements, "self-test"));
    KOHO_CUDA_TRY(cudaMemcpy(block.as<void>(), bits.data(), bits.size(), cudaMemcpyHostToDevice));
    return block;
  };
  const auto scales = [&] {
    std::vector<float> host;
    for (int i = 0; i < kPages * kKvHeads * 64; ++i)
      host.push_back(0.01F * std::exp(normal(random)));
    return to_device(host, "self-test");
  };
  const auto numbers = [&](const std::vector<std::int32_t>& host) -> Result<DeviceBlock> {
    const std::size_t bytes = 4 * host.size();
    KOHO_TRY_ASSIGN(DeviceBlock block,
                    DeviceBlock::allocate(memory_, static_cast<std::int64_t>(bytes), "self-test"));
    KOHO_CUDA_TRY(cudaMemcpy(block.as<void>(), host.data(), bytes, cudaMemcpyHostToDevice));
    return block;
  };
  std::vector<std::int32_t> position_values;
  for (int i = kContext - kQueries; i < kContext; ++i) position_values.push_back(i);
  std::vector<std::int32_t> page_values;
  for (int i = kPages - 1; i >= 0; --i) page_values.push_back(i);
  KOHO_TRY_ASSIGN(const DeviceBlock q, values(kQueries * kHeads * kWidth, 2.0F));
  KOHO_TRY_ASSIGN(const DeviceBlock k, cache());
  KOHO_TRY_ASSIGN(const DeviceBlock v, cache());
  KOHO_TRY_ASSIGN(const DeviceBlock k_scales, scales());
  KOHO_TRY_ASSIGN(const DeviceBlock v_scales, scales());
  KOHO_TRY_ASSIGN(const DeviceBlock positions, numbers(position_values));
  KOHO_TRY_ASSIGN(const DeviceBlock starts, numbers({0, kQueries}));
  KOHO_TRY_ASSIGN(const DeviceBlock contexts, numbers({kContext}));
  KOHO_TRY_ASSIGN(const DeviceBlock tables, numbers(page_values));
  constexpr int kOut = kQueries * kHeads * kWidth;
  KOHO_TRY_ASSIGN(const DeviceBlock out, DeviceBlock::allocate(memory_, 2LL * kOut, "self-test"));
  Attention p{.q = q.as<const Bf16>(),
              .k = k.as<const void>(),
              .v = v.as<const void>(),
              .k_scales = codes ? k_scales.as<const float>() : nullptr,
              .v_scales = codes ? v_scales.as<const float>() : nullptr,
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
              .width = kWidth,
              .tickets = tickets_.as<std::uint32_t>()};
  const std::int64_t widened_bytes = attention_widened_bytes(p, 0);
  KOHO_TRY_ASSIGN(
      const DeviceBlock widened,
      DeviceBlock::allocate(memory_, std::max<std::int64_t>(widened_bytes, 1), "self-test"));
  p.widened = widened.as<void>();
  std::vector<float> results[3];  // portable, on wgmma, and with codes widened before
  double error = 0.0;
  for (int form = 0; form < (codes ? 3 : 2); ++form) {
    p.widened_bytes = form == 2 ? widened_bytes : 0;
    p.multiprocessors = form == 0 ? device_.multiprocessors : 1;  // so that one CTA has many tiles
    KOHO_CUDA_TRY(cudaMemsetAsync(out.as<void>(), 0xFF, 2 * kOut, stream_));
    KOHO_CUDA_TRY(form == 0 ? launch_attention_prefill(p, stream_)
                            : launch_attention_wgmma(p, stream_));
    if (form > 0) KOHO_TRY(spoil(FastPathFault::attention, out.as<void>(), 2 * kWidth));
    KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
    std::vector<std::uint16_t> bits(kOut);
    KOHO_CUDA_TRY(cudaMemcpy(bits.data(), out.as<void>(), 2 * bits.size(), cudaMemcpyDeviceToHost));
    for (const std::uint16_t one : bits) results[form].push_back(koho::to_float(BFloat16{one}));
    if (form > 0) error = std::max(error, relative_error(results[form], results[0]));
  }
  if (error <= kErrorMax) return {};
  wgmma_attention_ = false;
  log::warning(
      "self-test: prefill attention of {} pages on wgmma differs from the portable form by {:.1e}; "
      "the portable one is used",
      codes ? "e4m3" : "bf16", error);
  return {};
}

}  // namespace koho::cuda
