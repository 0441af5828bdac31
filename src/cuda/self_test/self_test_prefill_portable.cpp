// SPDX-License-Identifier: Apache-2.0
// Compares the portable prefill GEMM with the portable grouped decode GEMM, whose bits it has.
#include "base/log.h"
#include "cuda/backend.h"
#include "cuda/self_test/operands.h"
#include "cuda/self_test/self_test.h"

namespace koho::cuda {

/// A weight matrix of `columns`, and token rows that are longer.
struct SelfTest::PrefillCase {
  TiledWeights weight;
  DeviceBlock x, x_rows, row_scales, x_scales, bias, out;

  Gemm parameters(int columns) const {
    Gemm p = weight.parameters();
    p.row_scales = row_scales.as<const float>();
    p.x = x.as<const std::uint8_t>();
    p.x_stride_bytes = self_test::kColumns;
    p.x_bytes = columns;
    p.x_scales = x_scales.as<const float>();
    p.token_tiles = 8;
    p.out = out.as<void>();
    p.out_stride = self_test::kRows;
    return p;
  }
};

Result<bool> SelfTest::prefill_portable_matches(const PrefillCase& of,
                                                const Gemm& p,
                                                const Gemm& decode) {
  const auto prefill = [&]() -> Status {
    // So few multiprocessors that a CTA takes several work tiles.
    KOHO_CUDA_TRY(launch_gemm_prefill_portable(p, 1, backend_.stream_));
    return {};
  };
  KOHO_TRY_ASSIGN(const double error,
                  distance(
                      {.memory = of.out, .rows = p.tokens, .width = p.out_stride},
                      [&] { return run_portable(decode); }, prefill));
  if (error == 0.0) return true;
  log::warning(
      "self-test: the portable prefill GEMM differs from the portable decode GEMM by {:.1e} ({} "
      "tokens, {} bytes of K, split-K {}); the latter is used",
      error, p.tokens, p.x_bytes, p.split_k);
  return false;
}

/// A linear layer without and with split-K; and experts: two token blocks of one expert, the first
/// of each width that is compiled, of rows in another order, with and without SwiGLU.
Result<bool> SelfTest::prefill_portable() {
  constexpr int kWidths = kPortablePrefillTokensMax / kPortablePrefillTokenStep;
  const self_test::Operands operands(static_cast<std::uint32_t>(TileType::fp8) + 1, 1);
  std::vector<std::uint8_t> biases;  // of the size of the sums, different in adjacent rows
  for (int row = 0; row < self_test::kRows; ++row)
    self_test::append(biases, koho::to_bf16(static_cast<float>(row % 64)));
  std::vector<std::int32_t> backwards;
  for (int row = 0; row < self_test::kTokensMany; ++row)
    backwards.push_back(self_test::kTokensMany - 1 - row);
  PrefillCase of;
  KOHO_TRY_ASSIGN(const DeviceBlock source, send(operands.weight));
  KOHO_TRY_ASSIGN(of.x, send(operands.x));
  KOHO_TRY_ASSIGN(of.x_rows, send(backwards));
  KOHO_TRY_ASSIGN(of.row_scales, send(operands.row_scales));
  KOHO_TRY_ASSIGN(of.x_scales, send(operands.token_scales));
  KOHO_TRY_ASSIGN(of.bias, send(biases));
  KOHO_TRY_ASSIGN(of.out, allocate(2LL * self_test::kTokensMany * self_test::kRows));
  bool all = true;
  // The last stage is whole, or half of one and short.
  for (const int columns : {self_test::kColumns, 392}) {
    KOHO_TRY_ASSIGN(of.weight, tile(source, TileType::fp8, self_test::kRows, columns));
    for (const int split_k : {1, 2, 3}) {
      Gemm p = of.parameters(columns);
      if (split_k > ceil_div(p.width_bytes, kStageWidth)) continue;
      p.tokens = self_test::kTokensMany - 5;
      p.split_k = split_k;
      p.bias = of.bias.as<const Bf16>();
      KOHO_TRY_ASSIGN(const bool same, prefill_portable_matches(of, p, p));
      all = all && same;
    }
    for (int width = 1; width <= kWidths; ++width) {
      const int first = kPortablePrefillTokenStep * width - width + 1;
      const int second = self_test::kTokens - width;
      KOHO_TRY_ASSIGN(const DeviceBlock list,
                      send(std::vector<ExpertTokenBlock>{{.expert = 0,
                                                          .first = 0,
                                                          .count = first,
                                                          .block_of_expert = 0,
                                                          .blocks_of_expert = 2},
                                                         {.expert = 0,
                                                          .first = first,
                                                          .count = second,
                                                          .block_of_expert = 1,
                                                          .blocks_of_expert = 2}}));
      KOHO_TRY_ASSIGN(const DeviceBlock list_size, send(std::vector<std::int32_t>{2}));
      for (const Epilogue epilogue : {Epilogue::bf16, Epilogue::silu_mul}) {
        Gemm p = of.parameters(columns);
        p.x_rows = of.x_rows.as<const std::int32_t>();
        p.tokens = first + second;
        p.epilogue = epilogue;
        if (epilogue == Epilogue::silu_mul) {
          p.rows = self_test::kRows / 2;
          p.out_stride = p.rows;
        }
        Gemm experts = p;
        experts.token_blocks = list.as<const ExpertTokenBlock>();
        experts.token_block_count = list_size.as<const std::int32_t>();
        KOHO_TRY_ASSIGN(const bool same, prefill_portable_matches(of, experts, p));
        all = all && same;
      }
    }
  }
  return all;
}

}  // namespace koho::cuda
