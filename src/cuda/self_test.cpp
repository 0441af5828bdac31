// SPDX-License-Identifier: Apache-2.0
#include "cuda/self_test.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <span>

#include "base/log.h"
#include "cuda/backend.h"
#include "cuda/device/tensor_map.h"
#include "cuda/gemm/gemm_sm90.h"
#include "cuda/gemm/tiled_layout.h"
#include "cuda/kernels.h"
#include "tensor/number.h"

namespace koho::cuda {
namespace {

constexpr int kRows = 320;  // a prompt's block of four tiles and one more; three unswapped blocks
constexpr int kColumns = 1088;  // more than four stages, the last one short
constexpr int kTokens = 61;
constexpr int kTokensTwo = 125;
constexpr int kTokensMany = 256;
static_assert(kTokensMany >= kPrefillTokensMax + kTokens);
constexpr int kOneCluster = 2;  // multiprocessors: it takes all items of a prompt's matrix
constexpr int kBlocks = (kColumns + kBlockWidth - 1) / kBlockWidth;
constexpr double kErrorMax = 2e-3;  // f32 sums of both; wgmma keeps fewer bits within a stage
constexpr double kErrorMaxRounded = kErrorMax + 1.0 / 256.0;  // of both to bf16

void append(std::vector<std::uint8_t>& bytes, BFloat16 value) {
  bytes.push_back(static_cast<std::uint8_t>(value.bits & 0xFFU));
  bytes.push_back(static_cast<std::uint8_t>(value.bits >> 8U));
}

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
    scales(block_scales, kRows / kTileRows * 2 * kBlocks);
    scales(token_block_scales, kTokens * kBlocks);
  }
};

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

Status launched(cudaError_t status) {
  KOHO_CUDA_TRY(status);
  return {};
}

void set_end(Gemm& p, Epilogue end) {
  p.epilogue = end;
  p.out_stride = end == Epilogue::silu_mul ? kRows / 2 : kRows;
}

}  // namespace

/// Where a kernel writes rows of `width` bf16 or f32.
struct SelfTest::Output {
  const DeviceBlock& memory;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  bool f32 = false;
  FastPathFault fault = FastPathFault::none;  // that clears the first row of a fast kernel's
};

/// A small matrix of one type and what multiplies it.
struct SelfTest::MatrixCase {
  TileType type = TileType::fp8;
  TiledWeights matrix;
  DeviceBlock x, row_scales, block_scales, x_scales, bias, out;
  Gemm product;  // of kTokens tokens in f32, without the bias
};

template <typename T>
Result<DeviceBlock> SelfTest::send(const std::vector<T>& values) {
  return backend_.to_device(std::as_bytes(std::span(values)), "self-test");
}

Result<DeviceBlock> SelfTest::room(std::int64_t bytes) {
  return DeviceBlock::allocate(backend_.memory_, bytes, "self-test");
}

Status SelfTest::run_portable(const Gemm& p) {
  return launched(
      launch_gemm_grouped_decode_portable(p, backend_.device_.multiprocessors, backend_.stream_));
}

template <typename Launch>
Result<std::vector<float>> SelfTest::results_of(const Output& out, const Launch& launch) {
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

template <typename Portable, typename Fast>
Result<double> SelfTest::distance(const Output& out, const Portable& portable, const Fast& fast) {
  KOHO_TRY_ASSIGN(const std::vector<float> expected, results_of(out, portable));
  KOHO_TRY_ASSIGN(
      const std::vector<float> found, results_of(out, [&]() -> Status {
        KOHO_TRY(fast());
        if (backend_.options_.fault == out.fault)
          KOHO_CUDA_TRY(cudaMemsetAsync(out.memory.as<void>(), 0,
                                        static_cast<std::size_t>(2 * out.width), backend_.stream_));
        return {};
      }));
  return relative_error(found, expected);
}

template <typename Launch>
Result<bool> SelfTest::equal(const char* kernel,
                             const MatrixCase& of,
                             const Gemm& shape,
                             const Launch& launch) {
  const bool f32 = shape.epilogue == Epilogue::f32;
  const Output out{.memory = of.out,
                   .rows = shape.tokens,
                   .width = shape.out_stride,
                   .f32 = f32,
                   .fault = FastPathFault::gemm};
  const auto portable = [&] { return run_portable(shape); };
  const auto fast = [&] { return launch(shape); };
  KOHO_TRY_ASSIGN(const double error, distance(out, portable, fast));
  if (error <= (f32 ? kErrorMax : kErrorMaxRounded)) return true;
  log::warning(
      "self-test: the {} kernel differs from the portable one by {:.1e} (type {}, {} tokens, {} "
      "parts); the portable one is used",
      kernel, error, static_cast<int>(of.type), shape.tokens, shape.split_k);
  return false;
}

Result<SelfTest::MatrixCase> SelfTest::make_case(TileType type) {
  const int element = type == TileType::bf16 ? 2 : 1;
  const bool block = type == TileType::fp8_block;
  const Operands operands(static_cast<std::uint32_t>(type) + 1, element);
  std::vector<std::uint8_t> biases;  // as products are, and no two neighbours alike
  for (int row = 0; row < kRows; ++row) append(biases, koho::to_bf16(static_cast<float>(row % 64)));
  MatrixCase of;
  of.type = type;
  KOHO_TRY_ASSIGN(const DeviceBlock source, send(operands.weight));
  KOHO_TRY_ASSIGN(of.x, send(operands.x));
  KOHO_TRY_ASSIGN(of.row_scales, send(operands.row_scales));
  KOHO_TRY_ASSIGN(of.block_scales, send(operands.block_scales));
  KOHO_TRY_ASSIGN(of.x_scales, send(block ? operands.token_block_scales : operands.token_scales));
  KOHO_TRY_ASSIGN(of.bias, send(biases));
  KOHO_TRY_ASSIGN(of.out, room(kTokensMany * kRows * 4));
  KOHO_TRY_ASSIGN(of.matrix, backend_.make_tiles(type, false, 1, kRows, kColumns));
  KOHO_CUDA_TRY(launch_repack({.tiles = of.matrix.weight.as<std::uint8_t>(),
                               .source = source.as<const std::uint8_t>(),
                               .source_stride_bytes = kColumns * element,
                               .rows = kRows,
                               .row_bytes = kColumns * element,
                               .width_bytes = of.matrix.width_bytes},
                              backend_.stream_));
  KOHO_CUDA_TRY(cudaStreamSynchronize(backend_.stream_));  // the source goes
  Gemm& p = of.product;
  p = of.matrix.parameters();
  p.row_scales = of.row_scales.as<const float>();
  p.block_scales = of.block_scales.as<const float>();
  p.x = of.x.as<const std::uint8_t>();
  p.x_stride_bytes = kColumns * element;
  p.x_bytes = kColumns * element;
  p.x_scales = of.x_scales.as<const float>();
  p.x_scales_stride = kBlocks;
  p.tokens = kTokens;
  p.token_tiles = 8;
  p.out = of.out.as<void>();
  p.out_stride = kRows;
  p.epilogue = Epilogue::f32;
  return of;
}

Result<bool> SelfTest::gemm() {
  for (const TileType type : {TileType::bf16, TileType::fp8, TileType::fp8_block}) {
    KOHO_TRY_ASSIGN(const MatrixCase of, make_case(type));
    KOHO_TRY_ASSIGN(bool right, decode_forms(of));
    if (type != TileType::fp8_block) {
      KOHO_TRY_ASSIGN(const bool one, one_matrix(of));
      KOHO_TRY_ASSIGN(const bool unswapped, unswapped_configs(of));
      right = right && one && unswapped;
    }
    if (type == TileType::fp8) {
      KOHO_TRY_ASSIGN(const bool experts, prompts_experts(of));
      KOHO_TRY_ASSIGN(const bool matrix, prompts_matrix(of));
      right = right && experts && matrix;
    }
    if (!right) return false;
  }
  return true;
}

/// The kernel of experts' entries and of block scales.
Result<bool> SelfTest::decode_forms(const MatrixCase& of) {
  const auto launch = [&](const Gemm& shape) {
    return launched(
        launch_gemm_grouped_decode_sm90(shape, backend_.device_.multiprocessors, backend_.stream_));
  };
  bool all = true;
  for (const int tiles : {1, 2, 4, 8}) {
    if (tiles == 2 && of.type != TileType::fp8_block) continue;  // not there
    Gemm p = of.product;
    p.token_tiles = tiles;
    p.split_k = tiles % 4 == 0 ? 2 : 1;
    KOHO_TRY_ASSIGN(const bool same, equal("grouped decode", of, p, launch));
    all = all && same;
  }
  if (of.type != TileType::fp8) return all;
  for (const Epilogue end : {Epilogue::f32, Epilogue::silu_mul}) {
    Gemm pairs = of.product;
    pairs.token_tiles = 4;
    pairs.row_tiles = 2;
    set_end(pairs, end);
    KOHO_TRY_ASSIGN(const bool same, equal("grouped decode of two tiles", of, pairs, launch));
    all = all && same;
  }
  return all;
}

/// Up to 128 tokens of one matrix, whole and in parts, results in f32 and in bf16 with a bias, in
/// decode's kernel and in that of many tokens.
Result<bool> SelfTest::one_matrix(const MatrixCase& of) {
  bool all = true;
  for (const int tokens : {1, 8, 11, 29, kTokens, kTokensTwo}) {
    for (const int split_k : {1, 2, 3}) {
      for (const Epilogue end : {Epilogue::f32, Epilogue::bf16}) {
        Gemm p = of.product;
        p.tokens = tokens;
        p.split_k = split_k;
        if (end == Epilogue::bf16) p.bias = of.bias.as<const Bf16>();
        set_end(p, end);
        KOHO_TRY_ASSIGN(const bool dense, equal("swap-AB decode", of, p, [&](const Gemm& shape) {
                          return backend_.run_decode_gemm(shape);
                        }));
        KOHO_TRY_ASSIGN(const bool prefill, equal("prefill", of, p, [&](const Gemm& shape) {
                          return backend_.run_prefill_gemm(shape, shape.tokens, 128, kOneCluster);
                        }));
        all = all && dense && prefill;
      }
    }
  }
  return all;
}

/// All of the unswapped kernel, most of which such a matrix does not choose: one slice of tokens and
/// two, results straight from registers and not, blocks one after the other.
Result<bool> SelfTest::unswapped_configs(const MatrixCase& of) {
  bool all = true;
  for (const int tokens : {kTokens, kTokensTwo}) {
    for (const Epilogue end : {Epilogue::f32, Epilogue::bf16}) {
      Gemm p = of.product;
      p.tokens = tokens;
      p.split_k = of.type == TileType::fp8 && tokens == kTokens && end == Epilogue::f32 ? 2 : 1;
      if (end == Epilogue::bf16) p.bias = of.bias.as<const Bf16>();
      set_end(p, end);
      for (DecodeGemmConfig form : cuda::unswapped_configs(p)) {
        const int blocks = ceil_div(kRows, form.rows);
        if (is_persistent(form)) form.ctas = blocks / 2;
        // CTAs of bf16 are pairs.
        if (is_persistent(form) && blocks <= round_up(form.ctas, 2))
          return make_error(ErrorCode::internal, "self-test: no CTA has two of {} blocks", blocks);
        KOHO_TRY_ASSIGN(const bool same, equal("unswapped", of, p, [&](const Gemm& shape) {
                          return launch_decode_gemm(shape, form, backend_.stream_);
                        }));
        all = all && same;
      }
    }
  }
  return all;
}

/// Each form of the loop that multiplies many tokens by experts, its last columns without a token;
/// behind it a shorter entry of the same expert, and the second block of rows of both.
Result<bool> SelfTest::prompts_experts(const MatrixCase& of) {
  bool all = true;
  for (int form = 0; form < num_prefill_widths(kPrefillTokensMax); ++form) {
    const int count = prefill_width(kPrefillTokensMax, form) - form - 1;
    KOHO_TRY_ASSIGN(
        const DeviceBlock token_blocks,
        send(std::vector<ExpertTokenBlock>{
            {.expert = 0, .first = 0, .count = count, .block_of_expert = 0, .blocks_of_expert = 2},
            {.expert = 0,
             .first = count,
             .count = kTokens - form,
             .block_of_expert = 1,
             .blocks_of_expert = 2}}));
    KOHO_TRY_ASSIGN(const DeviceBlock token_block_count, send(std::vector<std::int32_t>{2}));
    for (const Epilogue end : {Epilogue::bf16, Epilogue::silu_mul}) {
      Gemm p = of.product;
      p.tokens = count + kTokens - form;
      set_end(p, end);
      KOHO_TRY_ASSIGN(const bool same, equal("experts' prefill", of, p, [&](Gemm shape) {
                        shape.token_blocks = token_blocks.as<const ExpertTokenBlock>();
                        shape.token_block_count = token_block_count.as<const std::int32_t>();
                        return backend_.run_prefill_gemm(shape, kTokensMany, kPrefillTokensMax,
                                                         kOneCluster);
                      }));
      all = all && same;
    }
  }
  return all;
}

/// A matrix with a bias in slices, the last columns of the last one without a token: by one cluster
/// and by all.
Result<bool> SelfTest::prompts_matrix(const MatrixCase& of) {
  bool all = true;
  for (const int multiprocessors : {kOneCluster, backend_.device_.multiprocessors}) {
    Gemm p = of.product;
    p.tokens = kTokensMany - 5;
    p.bias = of.bias.as<const Bf16>();
    set_end(p, Epilogue::bf16);
    KOHO_TRY_ASSIGN(const bool same, equal("prompt", of, p, [&](const Gemm& shape) {
                      return backend_.run_prefill_gemm(shape, shape.tokens, kPrefillTokensMax,
                                                       multiprocessors);
                    }));
    all = all && same;
  }
  return all;
}

/// Rows of one stage, of two and, for few tokens, of whole experts; entries of few and of many
/// tokens, one after the other in the same CTAs. The portable kernel gets the rows' quantised values.
Result<bool> SelfTest::experts_down() {
  constexpr int kEntries = 6;
  constexpr int kRowsMax = 29 * kEntries;
  const cudaStream_t stream = backend_.stream_;
  const Operands operands(1, 1);
  const Operands rows(2, 2);
  KOHO_TRY_ASSIGN(const DeviceBlock source, send(operands.weight));
  KOHO_TRY_ASSIGN(const DeviceBlock x, send(rows.x));
  KOHO_TRY_ASSIGN(const DeviceBlock row_scales, send(operands.row_scales));
  KOHO_TRY_ASSIGN(const DeviceBlock quantized, room(kRowsMax * kColumns));
  KOHO_TRY_ASSIGN(const DeviceBlock scales, room(4 * kRowsMax));
  KOHO_TRY_ASSIGN(const DeviceBlock out, room(2 * kRowsMax * kRows));
  // Copies of 16 bytes end behind a row of 184: initcheck counts what they leave out as read.
  KOHO_CUDA_TRY(cudaMemsetAsync(quantized.as<void>(), 0, kRowsMax * kColumns, stream));
  for (const int columns : {184, 392, kColumns}) {
    KOHO_TRY_ASSIGN(const TiledWeights matrix,
                    backend_.make_tiles(TileType::fp8, false, 1, kRows, columns));
    KOHO_CUDA_TRY(launch_repack({.tiles = matrix.weight.as<std::uint8_t>(),
                                 .source = source.as<const std::uint8_t>(),
                                 .source_stride_bytes = columns,
                                 .rows = kRows,
                                 .row_bytes = columns,
                                 .width_bytes = matrix.width_bytes},
                                stream));
    for (const int tiles : {1, 4}) {
      if (matrix.width_bytes > kDownThinWidth && tiles > 1) continue;
      std::vector<ExpertTokenBlock> token_blocks;
      int count = 0;
      for (int i = 0; i < kEntries; ++i) {
        token_blocks.push_back({.expert = 0,
                                .first = count,
                                .count = (tiles == 1 ? 8 : 29) - i,
                                .block_of_expert = 0,
                                .blocks_of_expert = 1});
        count += token_blocks.back().count;
      }
      KOHO_TRY_ASSIGN(const DeviceBlock list, send(token_blocks));
      KOHO_TRY_ASSIGN(const DeviceBlock list_size, send(std::vector<std::int32_t>{kEntries}));
      Gemm p = matrix.parameters();
      p.row_scales = row_scales.as<const float>();
      p.token_blocks = list.as<const ExpertTokenBlock>();
      p.token_block_count = list_size.as<const std::int32_t>();
      p.out = out.as<void>();
      p.out_stride = kRows;
      p.token_tiles = tiles;
      const auto portable = [&]() -> Status {
        KOHO_CUDA_TRY(launch_quantize_rows({.quantized = quantized.as<std::uint8_t>(),
                                            .quantized_stride = kColumns,
                                            .scales = scales.as<float>()},
                                           {.x = x.as<const Bf16>(),
                                            .stride = kColumns,
                                            .rows = count,
                                            .width = columns,
                                            .multiprocessors = backend_.device_.multiprocessors},
                                           stream));
        p.x = quantized.as<const std::uint8_t>();
        p.x_stride_bytes = kColumns;
        p.x_bytes = columns;
        p.x_scales = scales.as<const float>();
        return run_portable(p);
      };
      const auto fast = [&] {
        p.x = x.as<const std::uint8_t>();
        p.x_stride_bytes = 2 * kColumns;
        p.x_bytes = 2 * columns;
        return launched(launch_experts_down_wgmma(p, 1, stream));
      };
      KOHO_TRY_ASSIGN(
          const double error,
          distance(
              {.memory = out, .rows = count, .width = kRows, .fault = FastPathFault::experts_down},
              portable, fast));
      if (error <= kErrorMaxRounded) continue;
      log::warning(
          "self-test: the kernel of experts' second matrix differs from the portable one by {:.1e} "
          "({} columns, {} tokens an entry); the portable one is used",
          error, columns, 8 * tiles);
      return false;
    }
  }
  return true;
}

/// A product of which neither side is a multiple of the library's tiles, with a bias and without.
Result<bool> SelfTest::cublaslt() {
  constexpr int kTokensOdd = 157;
  constexpr int kRowsOdd = 112;
  static_assert(kTokensOdd <= kTokensMany && kRowsOdd <= kRows);
  CublasLtGemm& library = *backend_.cublaslt_;
  const cudaStream_t stream = backend_.stream_;
  const Operands operands(static_cast<std::uint32_t>(TileType::fp8) + 1, 1);
  const Operands halves(1, 2);  // bf16 numbers around 0, for the bias
  KOHO_TRY_ASSIGN(const DeviceBlock source, send(operands.weight));
  KOHO_TRY_ASSIGN(const DeviceBlock x, send(operands.x));
  KOHO_TRY_ASSIGN(const DeviceBlock row_scales, send(operands.row_scales));
  KOHO_TRY_ASSIGN(const DeviceBlock x_scales, send(operands.token_scales));
  KOHO_TRY_ASSIGN(const DeviceBlock bias, send(halves.weight));
  KOHO_TRY_ASSIGN(const DeviceBlock sums, room(cublaslt_sums_bytes(kRowsOdd, kTokensOdd)));
  KOHO_TRY_ASSIGN(const DeviceBlock out, room(2 * kTokensOdd * kRowsOdd));
  KOHO_TRY_ASSIGN(const TiledWeights matrix,
                  backend_.make_tiles(TileType::fp8, false, 1, kRowsOdd, kColumns));
  KOHO_CUDA_TRY(launch_repack({.tiles = matrix.weight.as<std::uint8_t>(),
                               .source = source.as<const std::uint8_t>(),
                               .source_stride_bytes = kColumns,
                               .rows = kRowsOdd,
                               .row_bytes = kColumns,
                               .width_bytes = matrix.width_bytes},
                              stream));
  Gemm p = matrix.parameters();
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
    const auto portable = [&] { return run_portable(p); };
    bool refused = false;
    const auto fast = [&]() -> Status {
      const Result<bool> multiplied = library.multiply(
          {.gemm = p, .weight = source.as<const void>(), .sums = sums.as<float>()}, stream);
      if (!multiplied.ok()) log::warning("self-test: {}", multiplied.error().message);
      refused = !multiplied.ok() || !*multiplied;
      return {};
    };
    KOHO_TRY_ASSIGN(const double error, distance({.memory = out,
                                                  .rows = kTokensOdd,
                                                  .width = kRowsOdd,
                                                  .fault = FastPathFault::cublaslt},
                                                 portable, fast));
    if (refused) return false;
    if (error <= kErrorMaxRounded) continue;
    log::warning("self-test: cuBLASLt ({} scales{}) differs from the portable kernel by {:.1e}",
                 library.scales() == CublasLtScales::fused ? "row and column" : "scalar",
                 biased ? ", bias" : "", error);
    return false;
  }
  return true;
}

Result<bool> SelfTest::attention(bool quantized) {
  // The operator's own gate: the softmax's weights have 8 bits or more.
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
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto values = [&](int count, float scale) {
    std::vector<std::uint8_t> bytes;
    for (int i = 0; i < count; ++i) append(bytes, koho::to_bf16(scale * normal(random)));
    return send(bytes);
  };
  const auto cache = [&] {
    if (!quantized) return values(kCacheRows * kWidth, 1.0F);
    std::vector<std::uint8_t> bytes;
    for (int i = 0; i < kCacheRows * kWidth; ++i)
      bytes.push_back(to_e4m3(100.0F * normal(random)).bits);
    return send(bytes);
  };
  const auto scales = [&] {
    std::vector<float> host;
    for (int i = 0; i < kCacheRows; ++i) host.push_back(0.01F * std::exp(normal(random)));
    return send(host);
  };
  std::vector<std::int32_t> position_values;
  for (int i = kContext - kQueries; i < kContext; ++i) position_values.push_back(i);
  std::vector<std::int32_t> page_values;
  for (int i = kPages - 1; i >= 0; --i) page_values.push_back(i);
  KOHO_TRY_ASSIGN(const DeviceBlock q, values(kOut, 2.0F));
  KOHO_TRY_ASSIGN(const DeviceBlock k, cache());
  KOHO_TRY_ASSIGN(const DeviceBlock v, cache());
  KOHO_TRY_ASSIGN(const DeviceBlock k_scales, scales());
  KOHO_TRY_ASSIGN(const DeviceBlock v_scales, scales());
  KOHO_TRY_ASSIGN(const DeviceBlock positions, send(position_values));
  KOHO_TRY_ASSIGN(const DeviceBlock starts, send(std::vector<std::int32_t>{0, kQueries}));
  KOHO_TRY_ASSIGN(const DeviceBlock contexts, send(std::vector<std::int32_t>{kContext}));
  KOHO_TRY_ASSIGN(const DeviceBlock tables, send(page_values));
  KOHO_TRY_ASSIGN(const DeviceBlock out, room(2LL * kOut));
  Attention p{.q = q.as<const Bf16>(),
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
              .width = kWidth,
              .tile_counters = backend_.tile_counters_.as<std::uint32_t>()};
  const std::int64_t upcast_bytes = attention_upcast_bytes(p, 0);
  KOHO_TRY_ASSIGN(const DeviceBlock upcast, room(std::max<std::int64_t>(upcast_bytes, 1)));
  p.upcast = upcast.as<void>();
  for (const bool before : {false, true}) {  // whether quantised values are upcast before
    if (before && !quantized) break;
    const auto portable = [&] {
      p.multiprocessors = backend_.device_.multiprocessors;
      return launched(launch_attention_prefill(p, backend_.stream_));
    };
    const auto fast = [&] {
      p.multiprocessors = 1;  // so that one CTA has many tiles
      p.upcast_bytes = before ? upcast_bytes : 0;
      return launched(launch_attention_wgmma(p, backend_.stream_));
    };
    KOHO_TRY_ASSIGN(const double error, distance({.memory = out,
                                                  .rows = kQueries * kHeads,
                                                  .width = kWidth,
                                                  .fault = FastPathFault::attention},
                                                 portable, fast));
    if (error <= kAttentionErrorMax) continue;
    log::warning(
        "self-test: prefill attention of {} pages on wgmma differs from the portable form by "
        "{:.1e}; the portable one is used",
        quantized ? "e4m3" : "bf16", error);
    return false;
  }
  return true;
}

}  // namespace koho::cuda
