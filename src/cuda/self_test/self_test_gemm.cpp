// SPDX-License-Identifier: Apache-2.0
// Compares Hopper's GEMM kernels with the portable one.
#include "base/log.h"
#include "cuda/backend.h"
#include "cuda/gemm/choose_gemm.h"
#include "cuda/gemm/launch_gemm_sm90.h"
#include "cuda/self_test/operands.h"
#include "cuda/self_test/self_test.h"

namespace koho::cuda {

namespace {

void set_epilogue(Gemm& p, Epilogue epilogue) {
  p.epilogue = epilogue;
  p.out_stride = epilogue == Epilogue::silu_mul ? self_test::kRows / 2 : self_test::kRows;
}

}  // namespace

/// A small weight matrix of one type and what multiplies it.
struct SelfTest::GemmCase {
  TileType type = TileType::fp8;
  TiledWeights weight;
  DeviceBlock x, row_scales, block_scales, x_scales, bias, out;
  Gemm gemm;  // of self_test::kTokens tokens, f32 output, no bias
};

Result<bool> SelfTest::matches_portable(const char* kernel,
                                        const GemmCase& of,
                                        const Gemm& p,
                                        const std::function<Status(const Gemm&)>& launch) {
  const bool f32 = p.epilogue == Epilogue::f32;
  const Output out{.memory = of.out, .rows = p.tokens, .width = p.out_stride, .f32 = f32};
  KOHO_TRY_ASSIGN(const double error,
                  distance(
                      out, [&] { return run_portable(p); }, [&] { return launch(p); }));
  if (error <= (f32 ? self_test::kErrorMax : self_test::kErrorMaxRounded)) return true;
  log::warning(
      "self-test: the {} kernel differs from the portable one by {:.1e} (type {}, {} tokens, "
      "split-K {}); the portable one is used",
      kernel, error, static_cast<int>(of.type), p.tokens, p.split_k);
  return false;
}

Result<SelfTest::GemmCase> SelfTest::make_case(TileType type) {
  const int element = type == TileType::bf16 ? 2 : 1;
  const bool block = type == TileType::fp8_block;
  const self_test::Operands operands(static_cast<std::uint32_t>(type) + 1, element);
  std::vector<std::uint8_t> biases;  // of the size of the sums, different in adjacent rows
  for (int row = 0; row < self_test::kRows; ++row)
    self_test::append(biases, koho::to_bf16(static_cast<float>(row % 64)));
  GemmCase of;
  of.type = type;
  KOHO_TRY_ASSIGN(const DeviceBlock source, send(operands.weight));
  KOHO_TRY_ASSIGN(of.x, send(operands.x));
  KOHO_TRY_ASSIGN(of.row_scales, send(operands.row_scales));
  KOHO_TRY_ASSIGN(of.block_scales, send(operands.block_scales));
  KOHO_TRY_ASSIGN(of.x_scales, send(block ? operands.token_block_scales : operands.token_scales));
  KOHO_TRY_ASSIGN(of.bias, send(biases));
  KOHO_TRY_ASSIGN(of.out, allocate(self_test::kTokensMany * self_test::kRows * 4));
  KOHO_TRY_ASSIGN(of.weight, tile(source, type, self_test::kRows, self_test::kColumns));
  KOHO_CUDA_TRY(cudaStreamSynchronize(backend_.stream_));  // the source goes
  Gemm& p = of.gemm;
  p = of.weight.parameters();
  p.row_scales = of.row_scales.as<const float>();
  p.block_scales = of.block_scales.as<const float>();
  p.x = of.x.as<const std::uint8_t>();
  p.x_stride_bytes = self_test::kColumns * element;
  p.x_bytes = self_test::kColumns * element;
  p.x_scales = of.x_scales.as<const float>();
  p.x_scales_stride = self_test::kScaleBlocks;
  p.tokens = self_test::kTokens;
  p.token_tiles = 8;
  p.out = of.out.as<void>();
  p.out_stride = self_test::kRows;
  p.epilogue = Epilogue::f32;
  return of;
}

Result<bool> SelfTest::gemm() {
  for (const TileType type : {TileType::bf16, TileType::fp8, TileType::fp8_block}) {
    KOHO_TRY_ASSIGN(const GemmCase of, make_case(type));
    KOHO_TRY_ASSIGN(bool right, grouped_decode(of));
    KOHO_TRY_ASSIGN(const bool decode, linear_layer(of));
    KOHO_TRY_ASSIGN(const bool unswapped_right, unswapped(of));
    right = right && decode && unswapped_right;
    if (type != TileType::bf16) {
      KOHO_TRY_ASSIGN(const bool experts, prefill_experts(of, kPrefillTokensMax));
      KOHO_TRY_ASSIGN(const bool linear, prefill_linear(of));
      right = right && experts && linear;
    }
    if (type == TileType::fp8) {
      KOHO_TRY_ASSIGN(const bool experts, prefill_experts(of, kPrefillTokensMid));
      right = right && experts;
    }
    if (!right) return false;
  }
  return true;
}

/// gemm_grouped_decode_sm90.cu: token blocks of experts.
Result<bool> SelfTest::grouped_decode(const GemmCase& of) {
  const auto launch = [&](const Gemm& shape) { return backend_.run_grouped_decode_gemm(shape); };
  bool all = true;
  for (const int tiles : {1, 4, 8}) {
    Gemm p = of.gemm;
    p.token_tiles = tiles;
    p.split_k = tiles % 4 == 0 ? 2 : 1;
    KOHO_TRY_ASSIGN(const bool same, matches_portable("grouped decode", of, p, launch));
    all = all && same;
  }
  if (of.type != TileType::fp8) return all;
  for (const Epilogue epilogue : {Epilogue::f32, Epilogue::silu_mul}) {
    Gemm pairs = of.gemm;
    pairs.token_tiles = 4;
    pairs.row_tiles = 2;
    set_epilogue(pairs, epilogue);
    KOHO_TRY_ASSIGN(const bool same,
                    matches_portable("grouped decode, two weight tiles", of, pairs, launch));
    all = all && same;
  }
  return all;
}

/// A linear layer of up to 128 tokens in the decode kernels and in the prefill kernel: without and
/// with split-K, f32 output, and bf16 output with a bias.
Result<bool> SelfTest::linear_layer(const GemmCase& of) {
  bool all = true;
  for (const int tokens : {1, 8, 11, 29, self_test::kTokens, self_test::kTokensTwo}) {
    for (const int split_k : {1, 2, 3}) {
      for (const Epilogue epilogue : {Epilogue::f32, Epilogue::bf16}) {
        Gemm p = of.gemm;
        p.tokens = tokens;
        p.split_k = split_k;
        if (epilogue == Epilogue::bf16) p.bias = of.bias.as<const Bf16>();
        set_epilogue(p, epilogue);
        KOHO_TRY_ASSIGN(const bool decode,
                        matches_portable("decode", of, p, [&](const Gemm& shape) {
                          return backend_.run_decode_gemm(shape);
                        }));
        all = all && decode;
        if (of.type == TileType::fp8_block && epilogue == Epilogue::f32) continue;  // not compiled
        KOHO_TRY_ASSIGN(
            const bool prefill, matches_portable("prefill", of, p, [&](const Gemm& shape) {
              return backend_.run_prefill_gemm(shape, shape.tokens, 128, self_test::kOneCluster);
            }));
        all = all && prefill;
      }
    }
  }
  return all;
}

/// Every configuration of the unswapped kernel, most of which no layer of this shape chooses: one
/// token block, two and four, both ways to the output, persistent CTAs.
Result<bool> SelfTest::unswapped(const GemmCase& of) {
  bool all = true;
  for (const int tokens : {self_test::kTokens, self_test::kTokensTwo, self_test::kTokensFour}) {
    for (const Epilogue epilogue : {Epilogue::f32, Epilogue::bf16}) {
      Gemm p = of.gemm;
      p.tokens = tokens;
      p.split_k =
          of.type == TileType::fp8 && tokens != self_test::kTokensTwo && epilogue == Epilogue::f32
              ? 2
              : 1;
      if (epilogue == Epilogue::bf16) p.bias = of.bias.as<const Bf16>();
      set_epilogue(p, epilogue);
      for (DecodeGemmConfig config : unswapped_configs(p)) {
        const int blocks = ceil_div(self_test::kRows, config.rows);
        if (is_persistent(config)) config.ctas = blocks / 2;
        // bf16 CTAs form clusters of two.
        if (is_persistent(config) && blocks <= round_up(config.ctas, 2))
          return make_error(ErrorCode::internal, "self-test: no CTA takes two of {} blocks",
                            blocks);
        KOHO_TRY_ASSIGN(const bool same,
                        matches_portable("unswapped", of, p, [&](const Gemm& shape) {
                          return launch_decode_gemm(shape, config, backend_.stream_);
                        }));
        all = all && same;
      }
    }
  }
  return all;
}

/// Each MMA width of the prefill kernel of token blocks of up to `columns`, the last ones without
/// tokens; then a shorter token block of the same expert, and the second block of weight rows of
/// both.
Result<bool> SelfTest::prefill_experts(const GemmCase& of, int columns) {
  bool all = true;
  for (int index = 0; index < num_prefill_widths(columns); ++index) {
    const int count = prefill_width(columns, index) - index - 1;
    KOHO_TRY_ASSIGN(
        const DeviceBlock token_blocks,
        send(std::vector<ExpertTokenBlock>{
            {.expert = 0, .first = 0, .count = count, .block_of_expert = 0, .blocks_of_expert = 2},
            {.expert = 0,
             .first = count,
             .count = self_test::kTokens - index,
             .block_of_expert = 1,
             .blocks_of_expert = 2}}));
    KOHO_TRY_ASSIGN(const DeviceBlock token_block_count, send(std::vector<std::int32_t>{2}));
    for (const Epilogue epilogue : {Epilogue::bf16, Epilogue::silu_mul}) {
      Gemm p = of.gemm;
      p.tokens = count + self_test::kTokens - index;
      set_epilogue(p, epilogue);
      KOHO_TRY_ASSIGN(const bool same, matches_portable("prefill, experts", of, p, [&](Gemm shape) {
                        shape.token_blocks = token_blocks.as<const ExpertTokenBlock>();
                        shape.token_block_count = token_block_count.as<const std::int32_t>();
                        return backend_.run_prefill_gemm(shape, self_test::kTokensMany, columns,
                                                         self_test::kOneCluster);
                      }));
      all = all && same;
    }
  }
  return all;
}

/// A linear layer with a bias in several token blocks, the last of which is not full: by one
/// cluster and by all.
Result<bool> SelfTest::prefill_linear(const GemmCase& of) {
  bool all = true;
  for (const int multiprocessors : {self_test::kOneCluster, backend_.device_.multiprocessors}) {
    Gemm p = of.gemm;
    p.tokens = self_test::kTokensMany - 5;
    p.bias = of.bias.as<const Bf16>();
    set_epilogue(p, Epilogue::bf16);
    KOHO_TRY_ASSIGN(
        const bool same, matches_portable("prefill, linear layer", of, p, [&](const Gemm& shape) {
          return backend_.run_prefill_gemm(shape, shape.tokens, kPrefillTokensMax, multiprocessors);
        }));
    all = all && same;
  }
  return all;
}

}  // namespace koho::cuda
