// SPDX-License-Identifier: Apache-2.0
// experts: random shapes of any mix of formats, and the expert layers of GLM-4.7 (on one GPU, cut
// by experts or by columns in 4 and in 8) and GLM-4.5-Air.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "base/arithmetic.h"
#include "bench/operators/operator_case.h"

namespace koho::bench {
namespace {

using Own = std::shared_ptr<Operands>;
using Views = Sides<TensorView>;

/// A layer as one GPU holds it: experts 0..local-1 of `total`.
struct ExpertShape {
  std::int64_t total, local, ffn, hidden, top_k;
  bool shared;
  WeightQuant quant = WeightQuant::fp8_channel;
};

/// Experts that all differ, out of three weights: expert e has their rows from e on. Block scales
/// are the same for all.
struct ExpertWeights {
  LinearSource gate, up, down;

  MlpSource expert(std::int64_t index, const ExpertShape& shape) const {
    const auto rows = [index](const LinearSource& source, std::int64_t count) {
      const bool blocks = source.quant == WeightQuant::fp8_block;
      return LinearSource{source.weight.slice(0, index, count),
                          blocks ? source.scale.slice(0, 0, ceil_div(count, kQuantBlock))
                                 : source.scale.slice(0, index, count),
                          {},
                          source.quant};
    };
    return {rows(gate, shape.ffn), rows(up, shape.ffn), rows(down, shape.hidden)};
  }
};

/// Uniform routing of a layer's tokens, and what it touches of the local experts. The same for the
/// same shape and layer whatever else is timed, and of some draws the one that touches as many
/// experts as uniform routing does in the mean: with few experts here a draw more or less is 5 %.
struct RandomRouting {
  std::vector<std::int32_t> ids;
  double distinct = 0.0;
  double rows = 0.0;

  static RandomRouting of(const ExpertShape& shape, std::int64_t tokens, std::int64_t layer) {
    constexpr int kDraws = 16;
    const double chosen = static_cast<double>(shape.top_k) / static_cast<double>(shape.total);
    const double expected = static_cast<double>(shape.local) *
                            (1.0 - std::pow(1.0 - chosen, static_cast<double>(tokens)));
    std::seed_seq seed{shape.total, shape.local, shape.hidden, shape.ffn, tokens, layer};
    std::mt19937 random(seed);
    RandomRouting best(random, shape, tokens);
    for (int i = 1; i < kDraws; ++i) {
      RandomRouting other(random, shape, tokens);
      if (std::abs(other.distinct - expected) < std::abs(best.distinct - expected))
        best = std::move(other);
    }
    return best;
  }

  RandomRouting(std::mt19937& random, const ExpertShape& shape, std::int64_t tokens) {
    std::vector<bool> used(static_cast<std::size_t>(shape.total));
    std::vector<std::int32_t> order(static_cast<std::size_t>(shape.total));
    std::iota(order.begin(), order.end(), 0);
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::shuffle(order.begin(), order.end(), random);
      for (std::int64_t a = 0; a < shape.top_k; ++a) {
        const std::int32_t id = order[static_cast<std::size_t>(a)];
        ids.push_back(id);
        if (id >= shape.local) continue;
        used[static_cast<std::size_t>(id)] = true;
        ++rows;
      }
    }
    distinct = static_cast<double>(std::count(used.begin(), used.end(), true));
  }
};

/// The inner activation is quantised: gate, up, SiLU and gate times up are each a bf16 rounding
/// that may fall to the other side, 2^-8 in the mean square at most.
OutputTolerance experts_tolerance() {
  const double l2 = quantized_tolerance(2.0 * 0x1p-8).l2;
  return {.bits = false, .l2 = l2, .of_largest = 7.0 * l2};  // of 7 deviations
}

/// What experts reads and writes: call i takes layer i of those placed, and its routing.
struct ExpertArrays {
  Sides<Activation> x;
  std::vector<Sides<Routing>> routings;  // one a layer
  Views out;
};

/// The run of all rows of a routing.
OperatorRun make_run(const Own& own, const ExpertArrays& arrays) {
  OperatorRun run;
  run.op = "experts";
  run.math = DType::f8_e4m3;
  run.rows = arrays.routings[0].measured.ids.size(0);
  run.outputs = {
      {.name = "out", .view = first(arrays.out, run.rows), .tolerance = experts_tolerance()}};
  run.run = [own, arrays](Side side, RowRange range, std::int64_t i) {
    const std::vector<Experts>& layers = own->experts.on(side);
    const auto layer = static_cast<std::size_t>(i) % layers.size();
    const Routing& routing = arrays.routings[layer].on(side);
    return own->backend(side).experts(
        cut(arrays.out.on(side), range), cut(arrays.x.on(side), range),
        {cut(routing.ids, range), cut(routing.weights, range)}, layers[layer]);
  };
  return run;
}

// ---- a model's shapes

Result<std::vector<OperatorRun>> build(const BenchBackends& site,
                                       const ExpertShape& shape,
                                       const Rows& token_counts) {
  const auto own = std::make_shared<Operands>(site);
  const std::int64_t experts = shape.local + (shape.shared ? 1 : 0);
  ExpertWeights weights;
  KOHO_TRY_ASSIGN(weights.gate, own->source(shape.ffn + experts, shape.hidden, shape.quant));
  KOHO_TRY_ASSIGN(weights.up, own->source(shape.ffn + experts, shape.hidden, shape.quant));
  KOHO_TRY_ASSIGN(weights.down, own->source(shape.hidden + experts, shape.ffn, shape.quant));
  ExpertsSource source;
  source.total = shape.total;
  for (std::int64_t e = 0; e < shape.local; ++e) source.experts.push_back(weights.expert(e, shape));
  if (shape.shared) source.shared = weights.expert(shape.local, shape);
  const double expert_bytes = 3.0 * static_cast<double>(shape.ffn * shape.hidden);
  const std::int64_t layers = site.rotated_bytes > 0.0 ? 3 : 1;
  KOHO_TRY(own->place_experts(source, layers));
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY(own->reserve(
      {.tokens_max = most, .sequences_max = 1, .context_max = 1, .logit_rows_max = 1}));
  ExpertArrays arrays;
  KOHO_TRY_ASSIGN(arrays.x,
                  own->activation(most, shape.hidden, shape.quant == WeightQuant::fp8_block));
  KOHO_TRY_ASSIGN(arrays.out, own->output(DType::bf16, {most, shape.hidden}));
  std::vector<OperatorRun> runs;
  for (const std::int64_t tokens : token_counts) {
    arrays.routings.clear();
    double distinct = 0.0;
    double rows = 0.0;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const RandomRouting chosen = RandomRouting::of(shape, tokens, layer);
      distinct += chosen.distinct / static_cast<double>(layers);
      rows += chosen.rows / static_cast<double>(layers);
      const Shape choices{tokens, shape.top_k};
      KOHO_TRY_ASSIGN(const Views ids, own->input(DType::i32, choices, chosen.ids));
      KOHO_TRY_ASSIGN(const Views shares, own->input(DType::f32, choices, own->about(0.3)));
      arrays.routings.push_back(
          {{ids.measured, shares.measured}, {ids.reference, shares.reference}});
    }
    OperatorRun run = make_run(own, arrays);
    run.shape = {{"tokens", tokens},    {"experts", shape.total}, {"local", shape.local},
                 {"ffn", shape.ffn},    {"hidden", shape.hidden}, {"shared", shape.shared ? 1 : 0},
                 {"top_k", shape.top_k}};
    run.bytes = (distinct + (shape.shared ? 1.0 : 0.0)) * expert_bytes;
    run.flops = 2.0 * expert_bytes * (rows + (shape.shared ? static_cast<double>(tokens) : 0.0));
    runs.push_back(std::move(run));
  }
  return runs;
}

// ---- random shapes

/// How many tokens there are. What backends have other kernels for: `one` or two, whose shared
/// expert is stored and shaped like the others; `many` rows an expert, aligned; a `full_batch` of
/// more than 8,192 choices, of whose tokens some are compared; `narrow`: few wide experts beside a
/// slice of the shared one.
enum class Size { one, few, many, full_batch, narrow };

struct RandomExpertsShape {
  std::int64_t hidden, ffn;
  std::int64_t first, count, total;  // experts
  std::int64_t choices, tokens;
  bool shared;
};

RandomExpertsShape random_shape(Random& random, Size size) {
  const bool one = size == Size::one;
  const bool many = size == Size::many;
  const bool full_batch = size == Size::full_batch;
  RandomExpertsShape shape{};
  if (size == Size::narrow) {
    shape.hidden = random.pick({64, 160, 272});
    shape.ffn = random.pick({520, 776, 1000});
    shape.first = random.integer(0, 3);
    shape.count = random.integer(1, 9);
    shape.total = shape.first + shape.count + random.integer(8, 30);
    shape.choices = random.integer(1, 8);
    shape.shared = true;
    shape.tokens =
        random.pick({1, 1, random.integer(2, 8), random.integer(9, 64), random.integer(65, 100)});
    return shape;
  }
  shape.hidden = full_batch ? random.pick({16, 32, 128, 272})
                 : many     ? random.pick({64, 128, 272, 512})
                 : one      ? random.pick({33, 160, 272, 528, 784, 1040})
                            : random.pick({16, 33, 64, 128, 160, 256});
  shape.ffn = full_batch ? random.pick({24, 520, 776})
              : many     ? random.pick({32, 72, 192, 384})
              : one      ? random.pick({24, 65, 136, 264, 392, 520, 1000})
                         : random.pick({24, 64, 65, 130, 192});
  shape.count = full_batch           ? random.integer(4, 20)
                : many               ? random.integer(1, 3)
                : one                ? random.integer(1, 6)
                : random.chance(0.1) ? 0
                                     : random.integer(1, 9);
  shape.first = random.integer(0, 3);
  shape.total = shape.first + shape.count + random.integer(shape.count == 0 ? 2 : 0, 3);
  shape.choices =
      full_batch ? 4 : random.integer(1, std::min<std::int64_t>(shape.total, one ? 8 : 4));
  shape.shared = shape.count == 0 || random.chance(0.7);
  shape.tokens = full_batch           ? random.integer(2049, 2150)
                 : many               ? random.integer(97, 400)
                 : one                ? random.integer(1, 2)
                 : random.chance(0.3) ? 1
                                      : random.integer(1, 40);
  return shape;
}

SyntheticMlp random_mlp(
    Random& random, std::int64_t hidden, std::int64_t ffn, WeightQuant quant, bool mixed) {
  const WeightQuant gate = mixed ? random_quant(random) : quant;
  const WeightQuant up = mixed ? random_quant(random) : quant;
  const WeightQuant down = mixed ? random_quant(random) : quant;
  return {SyntheticLinear(random, gate, ffn, hidden, false),
          SyntheticLinear(random, up, ffn, hidden, false),
          SyntheticLinear(random, down, hidden, ffn, false)};
}

/// The choices of all tokens: `choices` of `total` experts at random, or, a third of the time, the
/// same few for every token.
HostTensor random_ids(Random& random, const RandomExpertsShape& shape) {
  HostTensor ids(DType::i32, {shape.tokens, shape.choices});
  const bool same = random.chance(0.3);
  for (std::int64_t t = 0; t < shape.tokens; ++t) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(shape.total));
    std::iota(order.begin(), order.end(), 0);
    if (!same) random.shuffle(order);
    for (std::int64_t a = 0; a < shape.choices; ++a)
      ids.set(t * shape.choices + a, static_cast<double>(order[static_cast<std::size_t>(a)]));
  }
  return ids;
}

Result<OperatorRun> build_random(const Own& own, WeightQuant quant, bool mixed, Size size) {
  Random& random = own->random();
  const RandomExpertsShape shape = random_shape(random, size);
  const auto operands = std::make_shared<ExpertsOperands>();
  operands->first = shape.first;
  const bool says_total = random.chance(0.5);
  for (std::int64_t e = 0; e < shape.count; ++e)
    operands->experts.push_back(random_mlp(random, shape.hidden, shape.ffn, quant, mixed));
  if (shape.shared)
    operands->shared =
        random_mlp(random, shape.hidden,
                   size == Size::one ? shape.ffn : random.pick({16, 64, 200, 376}), quant, mixed);
  ExpertsSource source;
  source.first = shape.first;
  source.total = says_total ? shape.total : 0;
  for (const SyntheticMlp& mlp : operands->experts) source.experts.push_back(mlp.source());
  if (operands->shared) source.shared = operands->shared->source();
  KOHO_TRY(own->place_experts(source));
  KOHO_TRY(own->reserve({.tokens_max = shape.tokens,
                         .sequences_max = shape.tokens,
                         .context_max = 1,
                         .logit_rows_max = 1,
                         .vocabulary = 1}));
  operands->x =
      SyntheticActivation(random_values(random, DType::bf16, {shape.tokens, shape.hidden},
                                        random.chance(0.8) ? Spread::normal : Spread::one_nan_row));
  operands->weights = random_scales(random, DType::f32, {shape.tokens, shape.choices}, 0.5);
  operands->ids = random_ids(random, shape);
  if (size == Size::full_batch) {
    operands->step = 41;
    operands->first_compared = random.integer(0, operands->step - 1);
  }
  const auto run_of = [own, hidden = shape.hidden](
                          const SyntheticActivation& x, const HostTensor& ids,
                          const HostTensor& weights) -> Result<OperatorRun> {
    ExpertArrays arrays;
    KOHO_TRY_ASSIGN(arrays.x, own->activation(x, own->experts.measured[0].needs));
    KOHO_TRY_ASSIGN(const Views placed_ids, own->input(ids));
    KOHO_TRY_ASSIGN(const Views placed_weights, own->input(weights));
    arrays.routings = {{{placed_ids.measured, placed_weights.measured}, {}}};
    KOHO_TRY_ASSIGN(arrays.out, own->output(DType::bf16, {ids.shape[0], hidden}));
    return make_run(own, arrays);
  };
  KOHO_TRY_ASSIGN(OperatorRun run, run_of(operands->x, operands->ids, operands->weights));
  run.row_alone = [run_of, operands](std::int64_t row) {
    return run_of(operands->x.row(row), row_of(operands->ids, row), row_of(operands->weights, row));
  };
  run.rows_alone = {random.integer(0, shape.tokens - 1)};
  run.operands = operands;
  return run;
}

}  // namespace

std::vector<OperatorCase> expert_cases() {
  std::vector<OperatorCase> cases;
  const auto random = [&](const char* name, WeightQuant quant, bool mixed, Size size = Size::few) {
    cases.push_back(
        {.name = name,
         .build_random = [=](const Own& own) { return build_random(own, quant, mixed, size); },
         .is_large = size != Size::few});
  };
  random("experts_bf16", WeightQuant::none, false);
  random("experts_fp8_channel", WeightQuant::fp8_channel, false);
  random("experts_fp8_block", WeightQuant::fp8_block, false);
  random("experts_mixed", WeightQuant::none, true);
  random("experts_fp8_one", WeightQuant::fp8_channel, false, Size::one);
  random("experts_fp8_many", WeightQuant::fp8_channel, false, Size::many);
  random("experts_fp8_full_batch", WeightQuant::fp8_channel, false, Size::full_batch);
  random("experts_fp8_narrow", WeightQuant::fp8_channel, false, Size::narrow);
  random("experts_fp8_block_one", WeightQuant::fp8_block, false, Size::one);
  random("experts_fp8_block_many", WeightQuant::fp8_block, false, Size::many);

  const auto experts = [&](const char* name, ExpertShape shape, const Rows& tokens) {
    cases.push_back(
        {std::string("experts_") + name, tokens,
         [=](const BenchBackends& site, const Rows& chosen) { return build(site, shape, chosen); },
         nullptr, shape.local * shape.ffn > 100000});
  };
  const Rows batches{1, 8, 16, 32, 64, 128, 256, 8192};
  experts("ep4", {160, 40, 1536, 5120, 8, false}, batches);
  experts("tp4", {160, 160, 384, 5120, 8, false}, batches);
  experts("ep8", {160, 20, 1536, 5120, 8, false}, batches);
  experts("tp8", {160, 160, 192, 5120, 8, false}, batches);
  experts("tp1", {160, 160, 1536, 5120, 8, false}, batches);
  experts("air", {128, 128, 1408, 4096, 8, true}, batches);
  experts("ep4_block", {160, 40, 1536, 5120, 8, false, WeightQuant::fp8_block}, batches);
  experts("air_block", {128, 128, 1408, 4096, 8, true, WeightQuant::fp8_block}, batches);
  return cases;
}

}  // namespace koho::bench
