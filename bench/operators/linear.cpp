// SPDX-License-Identifier: Apache-2.0
// linear: random shapes that reach each kernel a backend has for it, and the linear layers of
// GLM-4.7 (on one GPU, and as one of 4 and of 8 holds them) and GLM-4.5-Air.
#include <memory>
#include <utility>

#include "bench/operators/operator_case.h"

namespace koho::bench {
namespace {

// ---- shapes

/// Row blocks that are placed as one layer, which reads x [T, columns].
struct LinearShape {
  struct Block {
    std::int64_t rows;
    WeightQuant quant;
    bool has_bias = false;
  };
  std::vector<Block> blocks{};
  std::int64_t columns = 0;
  DType out = DType::bf16;
  std::int64_t x_gap = 0;  // between rows, in elements
  std::int64_t out_gap = 0;
  bool all_bf16 = false;
  std::vector<std::vector<std::int64_t>> compared{};  // LinearOperands
  std::vector<std::int64_t> rows_alone{};
  bool large_batch = false;

  std::int64_t rows() const {
    std::int64_t sum = 0;
    for (const Block& block : blocks) sum += block.rows;
    return sum;
  }
};

struct RandomLinearShape {
  LinearShape shape;
  std::int64_t tokens = 0;
};

/// One to three blocks and any number of tokens; `many`: more than 96 tokens, aligned, for which
/// backends have other kernels.
RandomLinearShape random_shape(Random& random, WeightQuant quant, bool mixed, bool many) {
  RandomLinearShape found;
  LinearShape& shape = found.shape;
  found.tokens = many ? random.pick({97, 128, 129, 191, 256, random.integer(97, 700)})
                 : random.chance(0.05) ? random.integer(500, 600)
                                       : random_tokens(random);
  shape.columns = many ? random.pick({16, 128, 384, 512, 1536, 2048, 16 * random.integer(1, 100)})
                       : random_width(random);
  const std::int64_t blocks = mixed ? random.integer(2, 3) : random.integer(1, 2);
  for (std::int64_t i = 0; i < blocks; ++i)
    shape.blocks.push_back({many ? 16 * random.integer(1, 24) : random.integer(1, 200),
                            mixed ? random_quant(random) : quant, random.chance(0.5)});
  shape.out = random.chance(0.3) ? DType::f32 : DType::bf16;
  shape.out_gap = !random.chance(0.3) ? 0 : many ? 8 : random.integer(1, 20);
  shape.x_gap = random.chance(0.3) ? 16 : 0;
  shape.all_bf16 = quant == WeightQuant::none && !mixed;
  shape.rows_alone = {random.integer(0, found.tokens - 1)};
  shape.large_batch = many;
  return found;
}

/// A weight with rows enough to load every multiprocessor of a GPU. Up to 128 tokens, beyond the
/// smallest kernels: CTAs that begin within tiles, the last one short; results that are aligned or
/// not. `many`: so many sums that a backend may compute them in chunks of tokens. Some tokens are
/// compared, each by itself and alone.
RandomLinearShape random_wide_shape(Random& random, WeightQuant quant, bool many) {
  RandomLinearShape found;
  LinearShape& shape = found.shape;
  const bool bf16 = quant == WeightQuant::none;
  found.tokens = many ? random.integer(129, 1500) : random.integer(17, 128);
  shape.columns = many   ? random.pick({16, 48, 272, 528})
                  : bf16 ? random.pick({256, 272, 640, 1024})
                         : random.pick({256, 272, 512, 784, 1024, 1040, 1536, 2576, 3072});
  const std::int64_t tiles =
      many                 ? random.pick({40, 97, 200, 384, 384})
      : bf16               ? random.pick({200, 264, 297, 330, 580})
      : random.chance(0.4) ? random.integer(33, 40)
                           : random.pick({28, 45, 52, 56, 72, 80, 96, 108, 136, 180, 224, 264});
  const std::int64_t rows =
      64 * tiles - (many ? random.pick({0, 16, 48}) : random.pick({0, 0, 16, 40, 3}));
  shape.blocks = {{rows, quant, random.chance(0.5)}};
  shape.out = !many && random.chance(bf16 ? 0.6 : 0.3) ? DType::f32 : DType::bf16;
  shape.out_gap = many ? random.pick({0, 8}) : random.pick({0, 0, 8, 5});
  shape.all_bf16 = bf16;
  shape.rows_alone = {0, random.integer(0, found.tokens - 1), found.tokens - 1};
  for (int i = 0; many && i < 5; ++i)
    shape.rows_alone.push_back(random.integer(0, found.tokens - 1));
  for (const std::int64_t token : shape.rows_alone) shape.compared.push_back({token});
  shape.large_batch = many;
  return found;
}

/// 129 to 512 tokens of a narrow weight, for which decode kernels may be the faster ones: several
/// blocks of tokens, the last of which may overlap. Some tokens are compared.
RandomLinearShape random_narrow_shape(Random& random, WeightQuant quant) {
  constexpr int kCompared = 24;
  RandomLinearShape found;
  LinearShape& shape = found.shape;
  found.tokens = random.pick({129, 192, 193, 256, 384, 512, random.integer(129, 512)});
  shape.columns = random.pick({256, 512, 768, 1536, 2560, 3072});
  const std::int64_t rows =
      64 * random.pick({22, 28, 48, 56, 64, 80}) - random.pick({0, 0, 16, 40, 3});
  shape.blocks = {{rows, quant, random.chance(0.5)}};
  shape.out = random.chance(0.2) ? DType::f32 : DType::bf16;
  shape.out_gap = random.pick({0, 0, 8, 5});
  std::vector<std::int64_t> compared{0, found.tokens - 1};
  while (compared.size() < kCompared) compared.push_back(random.integer(0, found.tokens - 1));
  shape.compared = {compared};
  shape.rows_alone = {0, random.integer(0, found.tokens - 1), found.tokens - 1};
  shape.large_batch = true;
  return found;
}

/// A prompt's tokens, so many that the kernel for them takes them from cuBLASLt: its slices times
/// its blocks of 256 rows fill one round or two of the 66 clusters of an H200, the last slices and
/// blocks partly. Some tokens are compared.
RandomLinearShape random_prompt_shape(Random& random, WeightQuant quant) {
  constexpr std::int64_t kCompared = 32;
  const struct {
    std::int64_t tokens;
    std::int64_t rows;
  } prompts[] = {{random.integer(2048, 2300), 16 * random.integer(65, 80)},
                 {random.pick({4100, 4352, 4607}), 16 * random.integer(65, 80)},
                 {random.integer(513, 560), 16 * random.integer(306, 320)},
                 {random.integer(1025, 1120), 16 * random.integer(146, 160)}};
  const auto& prompt = prompts[random.integer(0, 3)];
  RandomLinearShape found;
  LinearShape& shape = found.shape;
  found.tokens = prompt.tokens;
  shape.columns = prompt.rows > 2000 ? random.pick({16, 128, 384})
                                     : random.pick({16, 128, 400, 16 * random.integer(1, 40), 656});
  shape.blocks = {{prompt.rows, quant, random.chance(0.5)}};
  shape.out_gap = random.pick({0, 0, 8, 5});
  std::vector<std::int64_t> compared{0, prompt.tokens - 1};
  while (static_cast<std::int64_t>(compared.size()) < kCompared)
    compared.push_back(random.integer(0, prompt.tokens - 1));
  shape.compared = {compared};
  return found;
}

// ---- operands and the launch

// Both backends are within 3e-3 of the float64 reference.
constexpr double kLinearL2 = 2 * 3e-3;

/// Sums of bf16 MMAs in f32, each instruction of which takes 16 into a chain and drops less
/// than a unit in the last place of the sum; four deviations of an element.
OutputTolerance accumulation_tolerance(std::int64_t columns) {
  const double error = static_cast<double>(columns) / 16.0 * 0x1p-23;
  return {.bits = false, .l2 = error, .of_largest = 4.0 * error};
}

/// The run of the first `tokens` rows of x.
OperatorRun make_run(const std::shared_ptr<Operands>& own,
                     const LinearShape& shape,
                     std::int64_t tokens,
                     const Sides<Activation>& x,
                     const Sides<TensorView>& out) {
  const std::int64_t rows = shape.rows();
  const std::int64_t columns = shape.columns;
  const bool bf16 = shape.all_bf16;
  OperatorRun run;
  run.op = "linear";
  run.shape = {{"tokens", tokens}, {"rows", rows}, {"columns", columns}};
  const double weight_bytes = static_cast<double>(rows * columns) * (bf16 ? 2.0 : 1.0);
  const std::int64_t token_bytes =
      (bf16 ? 2 : 1) * columns + (shape.out == DType::f32 ? 4 : 2) * rows;
  run.bytes = weight_bytes + static_cast<double>(tokens * token_bytes);
  run.flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(rows * columns);
  run.math = bf16 ? DType::bf16 : DType::f8_e4m3;
  run.rows = tokens;
  run.outputs = {
      {.name = "out",
       .view = first(out, tokens),
       .tolerance = bf16 ? accumulation_tolerance(columns) : bf16_tolerance(kLinearL2, 2)}};
  run.run = [own, x, out](Side side, RowRange range, std::int64_t i) {
    const std::vector<Linear>& linears = own->linears.on(side);
    return own->backend(side).linear(cut(out.on(side), range), cut(x.on(side), range),
                                     linears[static_cast<std::size_t>(i) % linears.size()]);
  };
  return run;
}

Result<std::vector<OperatorRun>> build(const BenchBackends& site,
                                       const LinearShape& shape,
                                       const Rows& token_counts) {
  auto own = std::make_shared<Operands>(site);
  const WeightQuant quant = shape.blocks[0].quant;
  const double weight_bytes =
      static_cast<double>(shape.rows() * shape.columns) * (shape.all_bf16 ? 2.0 : 1.0);
  KOHO_TRY_ASSIGN(const LinearSource source, own->source(shape.rows(), shape.columns, quant));
  KOHO_TRY(own->place_linear({&source, 1}, copies_of(weight_bytes, site.rotated_bytes, 1000)));
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY(own->reserve({.tokens_max = most,
                         .sequences_max = 1,
                         .context_max = 1,
                         .logit_rows_max = 1}));  // after it the sources are read
  KOHO_TRY_ASSIGN(const Sides<Activation> x,
                  own->activation(most, shape.columns, quant == WeightQuant::fp8_block));
  KOHO_TRY_ASSIGN(const Sides<TensorView> out, own->output(shape.out, {most, shape.rows()}));
  std::vector<OperatorRun> runs;
  for (const std::int64_t tokens : token_counts)
    runs.push_back(make_run(own, shape, tokens, x, out));
  return runs;
}

Result<OperatorRun> build_random(const std::shared_ptr<Operands>& own,
                                 const RandomLinearShape& chosen) {
  const LinearShape& shape = chosen.shape;
  const std::int64_t tokens = chosen.tokens;
  auto weights = std::make_shared<std::vector<SyntheticLinear>>();
  std::vector<LinearSource> sources;
  for (const LinearShape::Block& block : shape.blocks)
    weights->emplace_back(own->random(), block.quant, block.rows, shape.columns, block.has_bias);
  for (const SyntheticLinear& weight : *weights) sources.push_back(weight.source());
  KOHO_TRY(own->place_linear(sources));
  KOHO_TRY(own->reserve({.tokens_max = tokens,
                         .sequences_max = tokens,
                         .context_max = 1,
                         .logit_rows_max = tokens,
                         .vocabulary = 1}));
  const auto x = std::make_shared<SyntheticActivation>(random_values(
      own->random(), DType::bf16, {tokens, shape.columns}, random_spread(own->random(), true)));
  const auto run_of = [own, shape](const SyntheticActivation& rows, std::int64_t x_gap,
                                   std::int64_t out_gap) -> Result<OperatorRun> {
    const std::int64_t count = rows.values.shape[0];
    KOHO_TRY_ASSIGN(const Sides<Activation> placed,
                    own->activation(rows, own->linears.measured[0].needs, x_gap));
    KOHO_TRY_ASSIGN(const Sides<TensorView> out,
                    own->output(shape.out, {count, shape.rows()}, out_gap));
    return make_run(own, shape, count, placed, out);
  };
  KOHO_TRY_ASSIGN(OperatorRun run, run_of(*x, shape.x_gap, shape.out_gap));
  run.operands =
      LinearOperands{weights, x, shape.all_bf16, shape.out == DType::f32, shape.compared};
  run.row_alone = [run_of, x](std::int64_t row) { return run_of(x->row(row), 0, 0); };
  run.rows_alone = shape.rows_alone;
  run.large_batch = shape.large_batch;
  return run;
}

}  // namespace

std::vector<OperatorCase> linear_cases() {
  std::vector<OperatorCase> cases;
  const auto random = [&](const char* name, auto shape_of, bool is_large) {
    cases.push_back({.name = name,
                     .build_random =
                         [shape_of](const std::shared_ptr<Operands>& own) {
                           return build_random(own, shape_of(own->random()));
                         },
                     .is_large = is_large});
  };
  const auto any = [&](const char* name, WeightQuant quant, bool mixed, bool many = false) {
    random(
        name, [=](Random& source) { return random_shape(source, quant, mixed, many); }, many);
  };
  const auto wide = [&](const char* name, WeightQuant quant, bool many) {
    random(
        name, [=](Random& source) { return random_wide_shape(source, quant, many); }, true);
  };
  any("linear_bf16", WeightQuant::none, false);
  any("linear_fp8_channel", WeightQuant::fp8_channel, false);
  any("linear_fp8_tensor", WeightQuant::fp8_tensor, false);
  any("linear_fp8_block", WeightQuant::fp8_block, false);
  any("linear_mixed", WeightQuant::none, true);
  any("linear_bf16_many", WeightQuant::none, false, true);
  any("linear_fp8_channel_many", WeightQuant::fp8_channel, false, true);
  wide("linear_bf16_wide", WeightQuant::none, false);
  wide("linear_fp8_wide", WeightQuant::fp8_channel, false);
  wide("linear_fp8_wide_many", WeightQuant::fp8_channel, true);
  const auto both = [&](const std::string& form, auto shape_of) {
    const auto of = [shape_of](WeightQuant quant) {
      return [=](Random& source) { return shape_of(source, quant); };
    };
    random(("linear_fp8_" + form).c_str(), of(WeightQuant::fp8_channel), true);
    random(("linear_fp8_block_" + form).c_str(), of(WeightQuant::fp8_block), true);
  };
  any("linear_fp8_block_many", WeightQuant::fp8_block, false, true);
  wide("linear_fp8_block_wide", WeightQuant::fp8_block, false);
  both("narrow", random_narrow_shape);
  both("prompt", random_prompt_shape);

  const auto model = [&](const char* name, std::int64_t rows, std::int64_t columns,
                         WeightQuant quant, const Rows& tokens) {
    const bool bf16 = quant == WeightQuant::none;  // the head: f32 logits
    const LinearShape shape{.blocks = {{rows, quant}},
                            .columns = columns,
                            .out = bf16 ? DType::f32 : DType::bf16,
                            .all_bf16 = bf16};
    cases.push_back({.name = std::string("linear_") + name,
                     .tokens = tokens,
                     .build = [shape](const BenchBackends& site,
                                      const Rows& chosen) { return build(site, shape, chosen); },
                     .is_large = bf16 && rows > 40000});
  };
  const Rows all{1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 8192};
  const Rows slices{1, 8, 16, 32, 64, 128, 192, 256, 384, 512, 1024, 4096, 8192};
  const Rows few{1, 8, 16, 32, 64, 128, 256};
  model("qkv_tp4", 3584, 5120, WeightQuant::fp8_channel, slices);
  model("o_tp4", 5120, 3072, WeightQuant::fp8_channel, slices);
  model("dense_tp4", 6144, 5120, WeightQuant::fp8_channel, all);
  model("qkv_tp8", 1792, 5120, WeightQuant::fp8_channel, slices);
  model("o_tp8", 5120, 1536, WeightQuant::fp8_channel, slices);
  model("dense_tp8", 3072, 5120, WeightQuant::fp8_channel, all);
  model("qkv_tp1", 14336, 5120, WeightQuant::fp8_channel, all);
  model("o_tp1", 5120, 12288, WeightQuant::fp8_channel, all);
  model("dense_tp1", 24576, 5120, WeightQuant::fp8_channel, all);
  model("qkv_air", 14336, 4096, WeightQuant::fp8_channel, all);
  model("o_air", 4096, 12288, WeightQuant::fp8_channel, all);
  model("qkv_tp4_block", 3584, 5120, WeightQuant::fp8_block, slices);
  model("qkv_air_block", 14336, 4096, WeightQuant::fp8_block, all);
  model("o_air_block", 4096, 12288, WeightQuant::fp8_block, all);
  model("head_tp4", 37888, 5120, WeightQuant::none, few);
  model("head_tp8", 18944, 5120, WeightQuant::none, few);
  model("head_tp1", 151552, 5120, WeightQuant::none, few);
  model("head_air", 151552, 4096, WeightQuant::none, few);
  return cases;
}

}  // namespace koho::bench
