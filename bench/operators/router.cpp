// SPDX-License-Identifier: Apache-2.0
// route: the choice of a token's experts.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "bench/operators/operator_case.h"
#include "tensor/number.h"

namespace koho::bench {
namespace {

using Own = std::shared_ptr<Operands>;
using Views = Sides<TensorView>;

/// Whether the choice of a row's experts hangs on less than the scores of both sides are known to,
/// 1e-6 each: two next to each other among the best `top`, or the first that is not chosen.
bool choice_is_close(const ConstTensorView& x,
                     const ConstTensorView& router,
                     const ConstTensorView& bias,
                     std::int64_t row,
                     std::int64_t experts,
                     std::int64_t top) {
  constexpr double kMargin = 2e-6;
  const std::int64_t hidden = x.size(1);
  std::vector<double> scores;
  for (std::int64_t e = 0; e < experts; ++e) {
    double sum = 0.0;
    for (std::int64_t k = 0; k < hidden; ++k)
      sum += static_cast<double>(to_float(x.as<BFloat16>()[row * hidden + k])) *
             static_cast<double>(to_float(router.as<BFloat16>()[e * hidden + k]));
    scores.push_back(1.0 / (1.0 + std::exp(-sum)) + static_cast<double>(bias.as<float>()[e]));
  }
  std::sort(scores.begin(), scores.end(), std::greater<>());
  for (std::int64_t a = 0; a < top; ++a)
    if (scores[static_cast<std::size_t>(a)] - scores[static_cast<std::size_t>(a + 1)] < kMargin)
      return true;
  return false;
}

/// What route reads and writes on both sides. The router's rows are those of `copies` routers, of
/// which call i takes one.
struct RouteArrays {
  Views x, router, bias, ids, weights;
  RouterSettings settings;
  std::int64_t experts = 0;
  std::int64_t copies = 1;
};

/// The run of the first `tokens` rows.
OperatorRun make_run(const Own& own, const RouteArrays& arrays, std::int64_t tokens) {
  const std::int64_t hidden = arrays.x.measured.size(1);
  OperatorRun run;
  run.op = "route";
  run.shape = {{"tokens", tokens}, {"hidden", hidden}, {"experts", arrays.experts}};
  run.bytes = static_cast<double>(2 * hidden * (arrays.experts + tokens));
  run.flops = 2.0 * static_cast<double>(tokens * hidden * arrays.experts);
  run.rows = tokens;
  const auto excused = [arrays](std::int64_t row) {
    return choice_is_close(arrays.x.reference, arrays.router.reference, arrays.bias.reference, row,
                           arrays.experts, arrays.settings.top_k);
  };
  // Weights are within 1e-5 of the float64 reference's on both sides, and the largest of a row's
  // is no less than the mean of them.
  const double error =
      2 * 1e-5 /
      (static_cast<double>(arrays.settings.scale) / static_cast<double>(arrays.settings.top_k));
  run.outputs = {
      {.name = "ids", .view = first(arrays.ids, tokens), .tolerance = {.excused = excused}},
      {.name = "weights",
       .view = first(arrays.weights, tokens),
       .tolerance = {.bits = false, .l2 = error, .of_largest = error, .excused = excused}}};
  run.run = [own, arrays](Side side, RowRange range, std::int64_t i) {
    const TensorView router = arrays.router.on(side);
    return own->backend(side).route(
        {cut(arrays.ids.on(side), range), cut(arrays.weights.on(side), range)},
        cut(arrays.x.on(side), range),
        router.slice(0, i % arrays.copies * arrays.experts, arrays.experts), arrays.bias.on(side),
        arrays.settings);
  };
  return run;
}

/// Places for the results of `tokens` rows.
Status add_results(Operands& own, RouteArrays& arrays, std::int64_t tokens) {
  const Shape choices{tokens, arrays.settings.top_k};
  KOHO_TRY_ASSIGN(arrays.ids, own.output(DType::i32, choices));
  KOHO_TRY_ASSIGN(arrays.weights, own.output(DType::f32, choices));
  return {};
}

Result<std::vector<OperatorRun>> build(const BenchBackends& site,
                                       std::int64_t hidden,
                                       const Rows& token_counts) {
  const auto own = std::make_shared<Operands>(site);
  RouteArrays arrays;
  arrays.experts = 160;
  arrays.copies = site.rotated_bytes > 0.0 ? 64 : 1;
  arrays.settings = {.top_k = 8, .scale = 2.5F};
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY_ASSIGN(arrays.x, own->input(DType::bf16, {most, hidden}, own->normals()));
  const double spread = 1.0 / std::sqrt(static_cast<double>(hidden));
  KOHO_TRY_ASSIGN(arrays.router, own->input(DType::bf16, {arrays.experts * arrays.copies, hidden},
                                            [&] { return spread * own->normal(); }));
  KOHO_TRY_ASSIGN(arrays.bias,
                  own->input(DType::f32, {arrays.experts}, [&] { return 0.1 * own->normal(); }));
  KOHO_TRY(add_results(*own, arrays, most));
  std::vector<OperatorRun> runs;
  for (const std::int64_t tokens : token_counts) runs.push_back(make_run(own, arrays, tokens));
  return runs;
}

/// So many tokens that backends may have another kernel for them, or divide them otherwise.
enum class RouteSize { any, few, some, many };

struct RandomRouteShape {
  RouterSettings settings;
  std::int64_t experts, tokens, width;
};

RandomRouteShape random_shape(Random& random, RouteSize size) {
  const bool few = size == RouteSize::few;
  const bool some = size == RouteSize::some;
  const bool many = size == RouteSize::many;
  RandomRouteShape shape{};
  RouterSettings& settings = shape.settings;
  settings.groups = few || some || many ? 1 : random.pick({1, 1, 1, 2, 4});
  settings.groups_kept = random.integer(1, settings.groups);
  // NOTE: many tokens of few experts: time.
  const std::int64_t experts_max = many ? 24 : few || some ? 192 : 40;
  shape.experts = settings.groups * random.integer(2, experts_max);
  settings.top_k = random.integer(
      1, std::min<std::int64_t>(random.chance(0.2) ? 32 : 8,
                                shape.experts / settings.groups * settings.groups_kept));
  settings.normalize = random.chance(0.7);
  settings.scale = random.chance(0.5) ? 2.5F : 1.0F;
  shape.tokens = few    ? random.integer(1, 70)
                 : some ? random.pick({random.integer(65, 448), random.integer(449, 1100),
                                       random.integer(1101, 4095)})
                 : many ? random.pick({random.integer(4096, 4224), random.integer(4225, 4300)})
                        : random_tokens(random);
  shape.width = few || some ? random.pick({4096, 5120, 5120, 32 * random.integer(100, 256)})
                : many      ? random.pick({4096, 5120, 6144, 8192})
                : random.chance(0.3) ? random.pick({2048, 4096, 5120, 6144})
                                     : random_width(random);
  return shape;
}

Result<OperatorRun> build_random(const Own& own, RouteSize size) {
  Random& random = own->random();
  const auto [settings, experts, tokens, width] = random_shape(random, size);
  RouteOperands operands;
  operands.settings = settings;
  operands.x = random_values(random, DType::bf16, {tokens, width},
                             random.chance(0.8) ? Spread::normal : Spread::one_nan_row);
  operands.weight =
      random_values(random, size == RouteSize::any && random.chance(0.5) ? DType::f32 : DType::bf16,
                    {experts, width}, Spread::normal, 1.0 / std::sqrt(static_cast<double>(width)));
  // With 2.0 many selection scores are negative, which a dropped group's must stay below.
  operands.bias =
      random_values(random, DType::f32, {experts}, Spread::normal, random.chance(0.3) ? 2.0 : 0.1);
  if (size == RouteSize::some || size == RouteSize::many) {  // time
    operands.step = 7;
    operands.first_compared = random.integer(0, 6);
  }
  RouteArrays arrays;
  arrays.settings = settings;
  arrays.experts = experts;
  KOHO_TRY_ASSIGN(arrays.router, own->input(operands.weight));
  KOHO_TRY_ASSIGN(arrays.bias, own->input(operands.bias));
  KOHO_TRY(own->reserve({.tokens_max = tokens,
                         .sequences_max = tokens,
                         .context_max = 1,
                         .logit_rows_max = tokens,
                         .vocabulary = 1}));
  const auto run_of = [=](const HostTensor& x, std::int64_t gap) -> Result<OperatorRun> {
    RouteArrays all = arrays;
    KOHO_TRY_ASSIGN(all.x, own->input(x, gap));
    KOHO_TRY(add_results(*own, all, x.shape[0]));
    return make_run(own, all, x.shape[0]);
  };
  KOHO_TRY_ASSIGN(OperatorRun run, run_of(operands.x, random.chance(0.3) ? 24 : 0));
  run.row_alone = [run_of, x = operands.x](std::int64_t row) { return run_of(row_of(x, row), 0); };
  run.rows_alone = {random.integer(0, tokens - 1)};
  run.operands = std::move(operands);
  return run;
}

}  // namespace

std::vector<OperatorCase> router_cases() {
  std::vector<OperatorCase> cases;
  const auto random = [&](const char* name, RouteSize size) {
    cases.push_back({.name = name,
                     .build_random = [size](const Own& own) { return build_random(own, size); },
                     .is_large = size == RouteSize::some || size == RouteSize::many});
  };
  random("route", RouteSize::any);
  random("route_few", RouteSize::few);
  random("route_some", RouteSize::some);
  random("route_many", RouteSize::many);
  cases.push_back({.name = "rows_5120_route",
                   .tokens = {1, 8, 16, 32, 64, 128, 256, 1024, 2048, 4096, 8192},
                   .build = [](const BenchBackends& site, const Rows& chosen) {
                     return build(site, 5120, chosen);
                   }});
  return cases;
}

}  // namespace koho::bench
