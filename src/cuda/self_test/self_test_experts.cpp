// SPDX-License-Identifier: Apache-2.0
// Compares the down projection that quantises its input itself (moe/experts_down.cuh) on wgmma with
// quantisation followed by the portable GEMM; and thin experts of few tokens in one kernel
// (moe/experts_thin_sm90.cu) with those in two, whose bits they have.
#include "base/log.h"
#include "cuda/backend.h"
#include "cuda/gemm/gemm.h"
#include "cuda/moe/experts_down.h"
#include "cuda/moe/experts_thin.h"
#include "cuda/self_test/operands.h"
#include "cuda/self_test/self_test.h"

namespace koho::cuda {

namespace {

constexpr int kBlocks = 6;  // token blocks of one expert
constexpr int kBlockTokensMax = 29;
constexpr int kRowsMax = kBlockTokensMax * kBlocks;

/// Blocks that get shorter from one to the next.
std::vector<ExpertTokenBlock> token_blocks_of(int first_count) {
  std::vector<ExpertTokenBlock> blocks;
  int rows = 0;
  for (int i = 0; i < kBlocks; ++i) {
    blocks.push_back({.expert = 0,
                      .first = rows,
                      .count = first_count - i,
                      .block_of_expert = 0,
                      .blocks_of_expert = 1});
    rows += blocks.back().count;
  }
  return blocks;
}

}  // namespace

struct SelfTest::DownCase {
  DeviceBlock weight, x, row_scales, quantized, scales, out;
};

/// Widths of one stage, of two and of whole experts; token blocks of up to 8 and of up to 32
/// tokens, all in the same CTAs.
Result<bool> SelfTest::experts_down() {
  const self_test::Operands operands(1, 1);
  const self_test::Operands rows(2, 2);
  DownCase of;
  KOHO_TRY_ASSIGN(of.weight, send(operands.weight));
  KOHO_TRY_ASSIGN(of.x, send(rows.x));
  KOHO_TRY_ASSIGN(of.row_scales, send(operands.row_scales));
  KOHO_TRY_ASSIGN(of.quantized, allocate(kRowsMax * self_test::kColumns));
  KOHO_TRY_ASSIGN(of.scales, allocate(4 * kRowsMax));
  KOHO_TRY_ASSIGN(of.out, allocate(2 * kRowsMax * self_test::kRows));
  // Copies of 16 bytes reach beyond a row of 184: initcheck counts the rest as read.
  KOHO_CUDA_TRY(cudaMemsetAsync(of.quantized.as<void>(), 0, kRowsMax * self_test::kColumns,
                                backend_.stream_));
  for (const int columns : {184, 392, self_test::kColumns})
    for (const int token_tiles : {1, 4}) {
      KOHO_TRY_ASSIGN(const bool right, down_projection(of, columns, token_tiles));
      if (!right) return false;
    }
  return true;
}

Result<bool> SelfTest::down_projection(const DownCase& of, int columns, int token_tiles) {
  const cudaStream_t stream = backend_.stream_;
  KOHO_TRY_ASSIGN(const TiledWeights weight,
                  tile(of.weight, TileType::fp8, self_test::kRows, columns));
  const std::vector<ExpertTokenBlock> blocks =
      token_blocks_of(token_tiles == 1 ? 8 : kBlockTokensMax);
  const int rows = blocks.back().first + blocks.back().count;
  KOHO_TRY_ASSIGN(const DeviceBlock list, send(blocks));
  KOHO_TRY_ASSIGN(const DeviceBlock list_size, send(std::vector<std::int32_t>{kBlocks}));
  Gemm p = weight.parameters();
  p.row_scales = of.row_scales.as<const float>();
  p.token_blocks = list.as<const ExpertTokenBlock>();
  p.token_block_count = list_size.as<const std::int32_t>();
  p.out = of.out.as<void>();
  p.out_stride = self_test::kRows;
  p.token_tiles = token_tiles;
  const auto portable = [&]() -> Status {
    KOHO_CUDA_TRY(launch_quantize_rows({.quantized = of.quantized.as<std::uint8_t>(),
                                        .quantized_stride = self_test::kColumns,
                                        .scales = of.scales.as<float>()},
                                       {.x = of.x.as<const Bf16>(),
                                        .stride = self_test::kColumns,
                                        .rows = rows,
                                        .width = columns,
                                        .multiprocessors = backend_.device_.multiprocessors},
                                       stream));
    p.x = of.quantized.as<const std::uint8_t>();
    p.x_stride_bytes = self_test::kColumns;
    p.x_bytes = columns;
    p.x_scales = of.scales.as<const float>();
    return run_portable(p);
  };
  const auto fast = [&]() -> Status {
    p.x = of.x.as<const std::uint8_t>();
    p.x_stride_bytes = 2 * self_test::kColumns;
    p.x_bytes = 2 * columns;
    KOHO_CUDA_TRY(launch_experts_down_wgmma(p, 1, stream));
    return {};
  };
  KOHO_TRY_ASSIGN(
      const double error,
      distance({.memory = of.out, .rows = rows, .width = self_test::kRows}, portable, fast));
  if (error <= self_test::kErrorMaxRounded) return true;
  log::warning(
      "self-test: the experts' down projection differs from the portable one by {:.1e} ({} "
      "columns, "
      "token blocks of {}); the portable one is used",
      error, columns, 8 * token_tiles);
  return false;
}

Result<bool> SelfTest::experts_thin() {
  constexpr int kInner = self_test::kRows / 2;
  const cudaStream_t stream = backend_.stream_;
  const self_test::Operands first(3, 1);
  const self_test::Operands second(4, 1);
  KOHO_TRY_ASSIGN(const DeviceBlock gate_up_source, send(first.weight));
  KOHO_TRY_ASSIGN(const DeviceBlock down_source, send(second.weight));
  KOHO_TRY_ASSIGN(const DeviceBlock x, send(first.x));
  KOHO_TRY_ASSIGN(const DeviceBlock x_scales, send(first.token_scales));
  KOHO_TRY_ASSIGN(const DeviceBlock row_scales, send(first.row_scales));
  KOHO_TRY_ASSIGN(const DeviceBlock ids, send(std::vector<std::int32_t>(kThinTokensMax, 0)));
  KOHO_TRY_ASSIGN(const DeviceBlock list_size, send(std::vector<std::int32_t>{1}));
  KOHO_TRY_ASSIGN(const DeviceBlock inner, allocate(2 * kInner * kThinTokensMax));
  KOHO_TRY_ASSIGN(const DeviceBlock out, allocate(2 * self_test::kRows * kThinTokensMax));
  KOHO_TRY_ASSIGN(const TiledWeights gate_up,
                  tile(gate_up_source, TileType::fp8, self_test::kRows, self_test::kColumns));
  KOHO_TRY_ASSIGN(const TiledWeights down,
                  tile(down_source, TileType::fp8, self_test::kRows, kInner));
  ExpertsThin thin{gate_up.parameters(), down.parameters()};
  for (Gemm* p : {&thin.gate_up, &thin.down}) {
    p->row_scales = row_scales.as<const float>();
    p->token_block_count = list_size.as<const std::int32_t>();
  }
  thin.gate_up.rows = kInner;
  thin.gate_up.x = x.as<const std::uint8_t>();
  thin.gate_up.x_stride_bytes = self_test::kColumns;
  thin.gate_up.x_bytes = self_test::kColumns;
  thin.gate_up.x_scales = x_scales.as<const float>();
  thin.gate_up.out = inner.as<void>();
  thin.gate_up.out_stride = kInner;
  thin.gate_up.epilogue = Epilogue::silu_mul;
  thin.down.x = inner.as<const std::uint8_t>();
  thin.down.x_stride_bytes = 2 * kInner;
  thin.down.x_bytes = 2 * kInner;
  thin.down.out = out.as<void>();
  thin.down.out_stride = self_test::kRows;
  thin.ids = ids.as<const std::int32_t>();
  thin.top_k = 1;
  thin.count = 1;
  for (const int tokens : {1, 3, kThinTokensMax}) {
    KOHO_TRY_ASSIGN(const DeviceBlock list,
                    send(std::vector<ExpertTokenBlock>{{.expert = 0,
                                                        .first = 0,
                                                        .count = tokens,
                                                        .block_of_expert = 0,
                                                        .blocks_of_expert = 1}}));
    thin.tokens = tokens;
    thin.gate_up.token_blocks = thin.down.token_blocks = list.as<const ExpertTokenBlock>();
    const int multiprocessors = backend_.device_.multiprocessors;
    const auto two_kernels = [&]() -> Status {
      KOHO_CUDA_TRY(launch_gemm_grouped_decode_sm90(thin.gate_up, multiprocessors, stream));
      KOHO_CUDA_TRY(launch_experts_down_wgmma(thin.down, multiprocessors, stream));
      return {};
    };
    const auto one_kernel = [&]() -> Status {
      KOHO_CUDA_TRY(launch_experts_thin(thin, multiprocessors, stream));
      return {};
    };
    KOHO_TRY_ASSIGN(const double error,
                    distance({.memory = out, .rows = tokens, .width = self_test::kRows},
                             two_kernels, one_kernel));
    if (error == 0.0) continue;
    log::warning(
        "self-test: thin experts of {} tokens in one kernel differ from those in two by {:.1e}; "
        "the "
        "portable ones are used",
        tokens, error);
    return false;
  }
  return true;
}

}  // namespace koho::cuda
