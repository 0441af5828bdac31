// SPDX-License-Identifier: Apache-2.0
// Cases of linear and of the router.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/device_array.h"
#include "ops/reference.h"
#include "support/step_limits.h"

namespace koho::testing {
namespace {

// Half a unit of bf16's last place, and f32's accumulation over the longest rows tested.
constexpr double kHalfUlp = 0x1p-8 * 1.001;
constexpr double kLinearL2 = 3e-3;

WeightQuant random_quant(Random& random) {
  return static_cast<WeightQuant>(random.integer(0, 3));
}

StepLimits limits_for(std::int64_t tokens) {
  return with_glm47_facts({.tokens_max = tokens,
                           .sequences_max = tokens,
                           .context_max = 1,
                           .logit_rows_max = tokens,
                           .vocabulary = 1});
}

/// What a sum may be off by, in parts of its magnitude.
double sum_error(const OpCaseOptions& options, bool bf16, std::int64_t columns) {
  if (!bf16 || options.chain_error == 0.0) return options.accumulation_error;
  return std::max(OpCaseOptions{}.accumulation_error,
                  options.chain_error * static_cast<double>(columns) / 16.0);
}

std::string run_linear(Backend& backend,
                       std::uint64_t seed,
                       const OpCaseOptions& options,
                       WeightQuant quant,
                       bool mixed,
                       bool many) {
  Random random(seed);
  // Many tokens, aligned: what backends have other kernels for.
  const std::int64_t tokens = many ? random.pick({97, 128, 129, 191, 256, random.integer(97, 700)})
                              : random.chance(0.05) ? random.integer(500, 600)
                                                    : random_tokens(random);
  const std::int64_t columns =
      many ? random.pick({16, 128, 384, 512, 1536, 2048, 16 * random.integer(1, 100)})
           : random_width(random);
  const std::int64_t blocks = mixed ? random.integer(2, 3) : random.integer(1, 2);
  std::vector<RandomLinear> weights;
  std::vector<LinearSource> sources;
  for (std::int64_t i = 0; i < blocks; ++i)
    weights.emplace_back(random, mixed ? random_quant(random) : quant,
                         many ? 16 * random.integer(1, 24) : random.integer(1, 200), columns,
                         random.chance(0.5));
  for (const RandomLinear& weight : weights) sources.push_back(weight.source());
  Result<Linear> placed = backend.place_linear(sources);
  if (!placed.ok()) return fault_of("place_linear", std::move(placed).error());
  std::string faults = fault_of("reserve", backend.reserve(limits_for(tokens)));

  const RandomActivation x(
      random_values(random, DType::bf16, {tokens, columns}, random_spread(random, true)));
  const bool unrounded = random.chance(0.3);
  const DType out_dtype = unrounded ? DType::f32 : DType::bf16;
  const std::int64_t gap = !random.chance(0.3) ? 0 : many ? 8 : random.integer(1, 20);
  const DeviceActivation x_arrays(backend, x, placed->needs, random.chance(0.3) ? 16 : 0);
  DeviceArray out(backend, out_dtype, {tokens, placed->out_features}, gap);
  faults += fault_of("linear", backend.linear(out.view(), x_arrays.view(), *placed));

  std::vector<double> expected(static_cast<std::size_t>(tokens * placed->out_features));
  std::vector<double> slack(expected.size());
  std::vector<double> f32_slack(expected.size());
  const double error = sum_error(options, quant == WeightQuant::none && !mixed, columns);
  std::int64_t first = 0;
  for (const RandomLinear& weight : weights) {
    const LinearReference reference = linear_reference(weight, x, tokens);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t n = 0; n < weight.rows; ++n) {
        const auto from = static_cast<std::size_t>(t * weight.rows + n);
        const auto to = static_cast<std::size_t>(t * placed->out_features + first + n);
        expected[to] = reference.sums[from];
        const double rounding =
            (unrounded ? 0.0 : kHalfUlp * std::fabs(reference.sums[from])) + 1e-38;
        slack[to] = rounding + error * reference.magnitudes[from];
        f32_slack[to] = rounding + OpCaseOptions{}.accumulation_error * reference.magnitudes[from];
      }
    }
    first += weight.rows;
  }
  const HostTensor got = out.get();
  faults +=
      compare_slack("out", got, expected, slack, f32_slack, kLinearL2) + out.guard_fault("out");

  // Again, then one row alone.
  out.poison();
  faults += fault_of("linear", backend.linear(out.view(), x_arrays.view(), *placed));
  faults += compare_bits("out, run again", out.get(), got);
  if (!options.batch_invariant || (many && !options.large_batch_invariant)) return faults;
  const std::int64_t row = random.integer(0, tokens - 1);
  const DeviceActivation x_row(backend, x.row(row), placed->needs, 0);
  const DeviceArray alone(backend, out_dtype, {1, placed->out_features});
  faults += fault_of("linear", backend.linear(alone.view(), x_row.view(), *placed));
  return faults + compare_bits("a row alone", alone.get(), row_of(got, row));
}

OpCase linear_case(const char* name, WeightQuant quant, bool mixed, bool many = false) {
  return {name,
          [=](Backend& backend, std::uint64_t seed, const OpCaseOptions& options) {
            return run_linear(backend, seed, options, quant, mixed, many);
          },
          many};
}

/// A matrix with rows enough to load every multiprocessor of a GPU. Up to 128 tokens, beyond the
/// smallest forms: CTAs that begin within tiles, the last one short; results that are aligned or
/// not. `many`: so many sums that a backend may make them in pieces of tokens. Some tokens are
/// compared with the reference, and with themselves alone; all must be written, twice with the same
/// bits.
std::string run_linear_wide(Backend& backend,
                            std::uint64_t seed,
                            const OpCaseOptions& options,
                            WeightQuant quant,
                            bool many) {
  Random random(seed);
  const bool bf16 = quant == WeightQuant::none;
  const std::int64_t tokens = many ? random.integer(129, 1500) : random.integer(17, 128);
  const std::int64_t columns =
      many   ? random.pick({16, 48, 272, 528})
      : bf16 ? random.pick({256, 272, 640, 1024})
             : random.pick({256, 272, 512, 784, 1024, 1040, 1536, 2576, 3072});
  const std::int64_t tiles =
      many                 ? random.pick({40, 97, 200, 384, 384})
      : bf16               ? random.pick({200, 264, 297, 330, 580})
      : random.chance(0.4) ? random.integer(33, 40)
                           : random.pick({28, 45, 52, 56, 72, 80, 96, 108, 136, 180, 224, 264});
  const std::int64_t rows =
      64 * tiles - (many ? random.pick({0, 16, 48}) : random.pick({0, 0, 16, 40, 3}));
  const RandomLinear weight(random, quant, rows, columns, random.chance(0.5));
  const LinearSource source = weight.source();
  Result<Linear> placed = backend.place_linear({&source, 1});
  if (!placed.ok()) return fault_of("place_linear", std::move(placed).error());
  std::string faults = fault_of("reserve", backend.reserve(limits_for(tokens)));
  const RandomActivation x(
      random_values(random, DType::bf16, {tokens, columns}, random_spread(random, true)));
  const DeviceActivation x_arrays(backend, x, placed->needs, 0);
  const DType out_dtype = !many && random.chance(bf16 ? 0.6 : 0.3) ? DType::f32 : DType::bf16;
  DeviceArray out(backend, out_dtype, {tokens, rows},
                  many ? random.pick({0, 8}) : random.pick({0, 0, 8, 5}));
  faults += fault_of("linear", backend.linear(out.view(), x_arrays.view(), *placed));
  const HostTensor got = out.get();
  faults += out.guard_fault("out");
  const double error = sum_error(options, bf16, columns);
  std::vector<std::int64_t> compared{0, random.integer(0, tokens - 1), tokens - 1};
  for (int i = 0; many && i < 5; ++i) compared.push_back(random.integer(0, tokens - 1));
  for (const std::int64_t token : compared) {
    const LinearReference reference = linear_reference(weight, x.row(token), 1);
    std::vector<double> slack;
    std::vector<double> f32_slack;
    for (std::size_t n = 0; n < reference.sums.size(); ++n) {
      const double rounding =
          (out_dtype == DType::f32 ? 0.0 : kHalfUlp * std::fabs(reference.sums[n])) + 1e-38;
      slack.push_back(rounding + error * reference.magnitudes[n]);
      f32_slack.push_back(rounding + OpCaseOptions{}.accumulation_error * reference.magnitudes[n]);
    }
    const HostTensor row = row_of(got, token);
    const std::string name = "token " + std::to_string(token);
    faults += compare_slack(name, row, reference.sums, slack, f32_slack, kLinearL2);
    if (!options.batch_invariant || (many && !options.large_batch_invariant)) continue;
    const DeviceActivation x_row(backend, x.row(token), placed->needs, 0);
    const DeviceArray alone(backend, out_dtype, {1, rows});
    faults += fault_of("linear", backend.linear(alone.view(), x_row.view(), *placed));
    faults += compare_bits(name + " alone", alone.get(), row);
  }
  if (!many) return faults;
  // Poison is NaN, and x has a row of them at most.
  std::int64_t nan_rows = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    bool nan = false;
    for (std::int64_t n = 0; n < rows; n += 8) nan = nan || std::isnan(got.at(t * rows + n));
    nan_rows += nan || std::isnan(got.at((t + 1) * rows - 1)) ? 1 : 0;
  }
  if (nan_rows > 1) faults += std::to_string(nan_rows) + " rows of out are NaN\n";
  out.poison();
  faults += fault_of("linear", backend.linear(out.view(), x_arrays.view(), *placed));
  return faults + compare_bits("out, run again", out.get(), got);
}

OpCase linear_wide_case(const char* name, WeightQuant quant, bool many) {
  return {name,
          [=](Backend& backend, std::uint64_t seed, const OpCaseOptions& options) {
            return run_linear_wide(backend, seed, options, quant, many);
          },
          true};
}

/// A prompt's tokens, so many that the kernel for them takes them from cuBLASLt: its slices times
/// its blocks of 256 rows fill one round or two of the 66 clusters of an H200, the last slices and
/// blocks partly. Some tokens are compared with the reference, all with themselves a second time.
std::string run_linear_prompt(Backend& backend, std::uint64_t seed, const OpCaseOptions& options) {
  constexpr std::int64_t kSampled = 32;
  Random random(seed);
  const struct {
    std::int64_t tokens;
    std::int64_t rows;
  } prompts[] = {{random.integer(2048, 2300), 16 * random.integer(65, 80)},
                 {random.pick({4100, 4352, 4607}), 16 * random.integer(65, 80)},
                 {random.integer(513, 560), 16 * random.integer(306, 320)},
                 {random.integer(1025, 1120), 16 * random.integer(146, 160)}};
  const auto& prompt = prompts[random.integer(0, 3)];
  const std::int64_t tokens = prompt.tokens;
  const std::int64_t rows = prompt.rows;
  const std::int64_t columns = rows > 2000
                                   ? random.pick({16, 128, 384})
                                   : random.pick({16, 128, 400, 16 * random.integer(1, 40), 656});
  const RandomLinear weight(random, WeightQuant::fp8_channel, rows, columns, random.chance(0.5));
  const LinearSource source = weight.source();
  Result<Linear> placed = backend.place_linear({&source, 1});
  if (!placed.ok()) return fault_of("place_linear", std::move(placed).error());
  std::string faults = fault_of("reserve", backend.reserve(limits_for(tokens)));
  const RandomActivation x(
      random_values(random, DType::bf16, {tokens, columns}, random_spread(random, true)));
  const DeviceActivation x_arrays(backend, x, placed->needs, 0);
  DeviceArray out(backend, DType::bf16, {tokens, rows}, random.pick({0, 0, 8, 5}));
  faults += fault_of("linear", backend.linear(out.view(), x_arrays.view(), *placed));
  const HostTensor got = out.get();
  faults += out.guard_fault("out");
  HostTensor sample(DType::bf16, {kSampled, rows});
  std::vector<double> expected;
  std::vector<double> slack;
  std::vector<double> f32_slack;
  for (std::int64_t i = 0; i < kSampled; ++i) {
    const std::int64_t token = i == 0 ? 0 : i == 1 ? tokens - 1 : random.integer(0, tokens - 1);
    const LinearReference reference = linear_reference(weight, x.row(token), 1);
    for (std::int64_t n = 0; n < rows; ++n) {
      const auto at = static_cast<std::size_t>(n);
      sample.set(i * rows + n, got.at(token * rows + n));
      const double rounding = kHalfUlp * std::fabs(reference.sums[at]) + 1e-38;
      expected.push_back(reference.sums[at]);
      slack.push_back(rounding + options.accumulation_error * reference.magnitudes[at]);
      f32_slack.push_back(rounding + OpCaseOptions{}.accumulation_error * reference.magnitudes[at]);
    }
  }
  faults += compare_slack("sampled tokens", sample, expected, slack, f32_slack, kLinearL2);
  out.poison();
  faults += fault_of("linear", backend.linear(out.view(), x_arrays.view(), *placed));
  return faults + compare_bits("out, run again", out.get(), got);
}

// ---- the router

struct Choice {
  std::vector<std::int64_t> ids;
  std::vector<double> weights;
  std::vector<double> weight_errors;
  /// The least distance of scores that decided, less what f32 may move them by; below 0 the choice
  /// is open.
  double margin = 0.0;
};

/// A token's logit for an expert, and how far a sum in f32 may be from it.
struct Logit {
  double value = 0.0;
  double error = 0.0;
};

/// The logit over `width` products, added in `chains` sums side by side, which are then added. An
/// addition loses at most 2^-23 of a partial sum (tensor cores truncate), and a partial sum of a
/// chain is, of random products, no larger than the root of the sum of its squared products, or
/// than its part of the logit.
Logit logit_of(const HostTensor& x,
               std::int64_t x_row,
               const HostTensor& weight,
               std::int64_t expert,
               double chains) {
  const std::int64_t width = x.shape[1];
  double sum = 0.0;
  double squares = 0.0;
  for (std::int64_t k = 0; k < width; ++k) {
    const double product = x.at(x_row * width + k) * weight.at(expert * width + k);
    sum += product;
    squares += product * product;
  }
  const double largest = std::max(std::sqrt(squares), std::fabs(sum));
  const double additions = static_cast<double>(width) / chains + chains;
  return {sum, kDeviations * 0x1p-23 / std::sqrt(3.0) * largest * std::sqrt(additions)};
}

/// The error of a sigmoid in f32: the logit's; an exponential and a division of two ulps, the
/// addition between them; and the exponent's own rounding, by a factor of log2(e) that is rounded
/// too.
double sigmoid_error(const Logit& logit, double sigmoid) {
  return sigmoid * ((1.0 - sigmoid) * (logit.error + 0x1p-22 + 0x1p-23 * std::fabs(logit.value)) +
                    0x1p-22 + 0x1p-24);
}

/// The router of one token, in float64, from its logits.
Choice choose(const std::vector<Logit>& logits,
              const HostTensor& bias,
              const RouterSettings& settings) {
  const auto experts = static_cast<std::int64_t>(logits.size());
  std::vector<double> sigmoids;
  std::vector<double> errors;  // of the sigmoids
  std::vector<double> scores;
  std::vector<double> score_errors;
  for (std::int64_t e = 0; e < experts; ++e) {
    const Logit& logit = logits[static_cast<std::size_t>(e)];
    sigmoids.push_back(1.0 / (1.0 + std::exp(-logit.value)));
    errors.push_back(sigmoid_error(logit, sigmoids.back()));
    scores.push_back(sigmoids.back() + bias.at(e));
    score_errors.push_back(errors.back() + 0x1p-24 * std::fabs(scores.back()));
    if (std::isnan(scores.back())) scores.back() = -std::numeric_limits<double>::infinity();
  }
  Choice choice;
  choice.margin = std::numeric_limits<double>::infinity();
  const auto ranked = [](const std::vector<double>& values) {
    std::vector<std::int64_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
    });
    return order;
  };
  const auto note_margin = [&](double better, double worse, double error) {
    if (std::isfinite(better) && std::isfinite(worse))
      choice.margin = std::min(choice.margin, better - worse - error);
  };
  if (settings.groups > 1) {
    const std::int64_t size = experts / settings.groups;
    std::vector<double> group_scores;
    std::vector<double> group_errors;
    for (std::int64_t group = 0; group < settings.groups; ++group) {
      std::vector<double> members(scores.begin() + group * size,
                                  scores.begin() + (group + 1) * size);
      std::sort(members.rbegin(), members.rend());
      group_scores.push_back(members[0] + (size > 1 ? members[1] : 0.0));
      // Of any two members, whichever come out as the largest, and of their addition.
      const double largest_error = *std::max_element(score_errors.begin() + group * size,
                                                     score_errors.begin() + (group + 1) * size);
      group_errors.push_back(2.0 * largest_error + 0x1p-24 * std::fabs(group_scores.back()));
    }
    const std::vector<std::int64_t> order = ranked(group_scores);
    for (std::int64_t rank = 0; rank < settings.groups; ++rank) {
      const std::int64_t group = order[static_cast<std::size_t>(rank)];
      if (rank + 1 == settings.groups_kept && rank + 1 < settings.groups) {
        // Any kept group against any dropped one: the closest two, with the largest errors.
        const auto next = static_cast<std::size_t>(order[static_cast<std::size_t>(rank + 1)]);
        note_margin(group_scores[static_cast<std::size_t>(group)], group_scores[next],
                    2.0 * *std::max_element(group_errors.begin(), group_errors.end()));
      }
      if (rank >= settings.groups_kept)
        std::fill_n(scores.begin() + group * size, size, -std::numeric_limits<double>::infinity());
    }
  }
  const std::vector<std::int64_t> order = ranked(scores);
  double sum = 0.0;
  double sum_error = 0.0;
  for (std::int64_t a = 0; a < settings.top_k; ++a) {
    const std::int64_t e = order[static_cast<std::size_t>(a)];
    const auto chosen = static_cast<std::size_t>(e);
    if (a + 1 < experts) {
      const auto next = static_cast<std::size_t>(order[static_cast<std::size_t>(a + 1)]);
      note_margin(scores[chosen], scores[next],
                  2.0 * *std::max_element(score_errors.begin(), score_errors.end()));
    }
    choice.ids.push_back(e);
    choice.weights.push_back(sigmoids[chosen]);
    choice.weight_errors.push_back(errors[chosen]);
    sum += sigmoids[chosen];
    sum_error += errors[chosen];
  }
  for (std::size_t a = 0; a < choice.weights.size(); ++a) {
    double& weight = choice.weights[a];
    double& error = choice.weight_errors[a];
    error = error / weight + 0x1p-24;  // in parts of the weight, with the scale's multiplication
    if (settings.normalize) {          // a sum of so many, a division of two ulps
      error += sum_error / sum + static_cast<double>(settings.top_k) * 0x1p-24 + 0x1p-22;
      weight /= sum + 1e-20;
    }
    weight *= static_cast<double>(settings.scale);
    error *= weight;
  }
  return choice;
}

/// `few`, `many`: so many tokens that backends may have another kernel for them.
enum class RouteSize { any, few, many };

std::string run_route(Backend& backend,
                      std::uint64_t seed,
                      const OpCaseOptions& options,
                      RouteSize size) {
  Random random(seed);
  const bool few = size == RouteSize::few;
  const bool many = size == RouteSize::many;
  RouterSettings settings;
  settings.groups = few || many ? 1 : random.pick({1, 1, 1, 2, 4});
  settings.groups_kept = random.integer(1, settings.groups);
  const bool wide = many && random.chance(0.25);  // and then fewer experts: time
  const std::int64_t experts = settings.groups * random.integer(2, few     ? 192
                                                                   : !many ? 40
                                                                   : wide  ? 24
                                                                           : 192);
  settings.top_k =
      random.integer(1, std::min<std::int64_t>(random.chance(0.2) ? 32 : 8,
                                               experts / settings.groups * settings.groups_kept));
  settings.normalize = random.chance(0.7);
  settings.scale = random.chance(0.5) ? 2.5F : 1.0F;
  const std::int64_t tokens = few    ? random.integer(1, 70)
                              : many ? random.integer(2048, 2150)
                                     : random_tokens(random);
  const std::int64_t width =
      few    ? random.pick({4096, 5120, 5120, 32 * random.integer(100, 256)})
      : many ? (wide ? random.pick({4096, 5120, 6144, 8192}) : 32 * random.integer(16, 20))
      : random.chance(0.3) ? random.pick({2048, 4096, 5120, 6144})
                           : random_width(random);
  const HostTensor x = random_values(random, DType::bf16, {tokens, width},
                                     random.chance(0.8) ? Spread::normal : Spread::one_nan_row);
  const HostTensor weight =
      random_values(random, !few && !many && random.chance(0.5) ? DType::f32 : DType::bf16,
                    {experts, width}, Spread::normal, 1.0 / std::sqrt(static_cast<double>(width)));
  // With 2.0 many selection scores are negative, which a dropped group's must stay below.
  const HostTensor bias =
      random_values(random, DType::f32, {experts}, Spread::normal, random.chance(0.3) ? 2.0 : 0.1);
  const DeviceArray x_array(backend, x, random.chance(0.3) ? 24 : 0);
  const DeviceArray weight_array(backend, weight);
  const DeviceArray bias_array(backend, bias);
  const DeviceArray ids(backend, DType::i32, {tokens, settings.top_k});
  const DeviceArray weights(backend, DType::f32, {tokens, settings.top_k});
  const Routing routing{ids.view(), weights.view()};
  std::string faults = fault_of("reserve", backend.reserve(limits_for(tokens)));
  faults += fault_of("route", backend.route(routing, x_array.view(), weight_array.view(),
                                            bias_array.view(), settings));
  const HostTensor got_ids = ids.get();
  const HostTensor got_weights = weights.get();
  for (std::int64_t i = 0; i < got_ids.elements(); ++i)  // poison is no expert
    if (got_ids.at(i) < 0.0 || got_ids.at(i) >= static_cast<double>(experts))
      return faults + "token " + std::to_string(i / settings.top_k) + " has expert " +
             std::to_string(got_ids.at(i)) + "\n";
  const std::int64_t step = many ? 7 : 1;  // time
  for (std::int64_t t = many ? random.integer(0, 6) : 0; t < tokens; t += step) {
    std::vector<Logit> logits;
    for (std::int64_t e = 0; e < experts; ++e)
      logits.push_back(logit_of(x, t, weight, e, options.router_chains));
    const Choice choice = choose(logits, bias, settings);
    if (choice.margin <= 0.0) continue;
    for (std::int64_t a = 0; a < settings.top_k; ++a) {
      const auto at = static_cast<std::size_t>(a);
      const double id = got_ids.at(t * settings.top_k + a);
      const double got = got_weights.at(t * settings.top_k + a);
      if (id != static_cast<double>(choice.ids[at]))
        faults += "token " + std::to_string(t) + ": expert " + std::to_string(a) + " is " +
                  std::to_string(id) + ", expected " + std::to_string(choice.ids[at]) + "\n";
      const bool nan = std::isnan(choice.weights[at]);
      if (nan ? !std::isnan(got)
              : !(std::fabs(got - choice.weights[at]) <= choice.weight_errors[at]))
        faults += fmt::format("token {}: weight {:.9g}, expected {:.9g} ± {:.3g}\n", t, got,
                              choice.weights[at], choice.weight_errors[at]);
    }
    if (!faults.empty()) break;
  }
  if (options.batch_invariant) {
    const std::int64_t row = random.integer(0, tokens - 1);
    const DeviceArray x_row(backend, row_of(x, row));
    const DeviceArray id(backend, DType::i32, {1, settings.top_k});
    const DeviceArray one(backend, DType::f32, {1, settings.top_k});
    const Routing alone{id.view(), one.view()};
    faults += fault_of("route", backend.route(alone, x_row.view(), weight_array.view(),
                                              bias_array.view(), settings));
    faults += compare_bits("ids of a row alone", id.get(), row_of(got_ids, row)) +
              compare_bits("weights of a row alone", one.get(), row_of(got_weights, row));
  }
  return faults + ids.guard_fault("ids") + weights.guard_fault("weights");
}

OpCase route_case(const char* name, RouteSize size) {
  return {name,
          [size](Backend& backend, std::uint64_t seed, const OpCaseOptions& options) {
            return run_route(backend, seed, options, size);
          },
          size == RouteSize::many};
}

}  // namespace

std::vector<OpCase> linear_cases() {
  return {linear_case("linear_bf16", WeightQuant::none, false),
          linear_case("linear_fp8_channel", WeightQuant::fp8_channel, false),
          linear_case("linear_fp8_tensor", WeightQuant::fp8_tensor, false),
          linear_case("linear_fp8_block", WeightQuant::fp8_block, false),
          linear_case("linear_mixed", WeightQuant::none, true),
          linear_case("linear_bf16_many", WeightQuant::none, false, true),
          linear_case("linear_fp8_channel_many", WeightQuant::fp8_channel, false, true),
          linear_wide_case("linear_bf16_wide", WeightQuant::none, false),
          linear_wide_case("linear_fp8_wide", WeightQuant::fp8_channel, false),
          linear_wide_case("linear_fp8_wide_many", WeightQuant::fp8_channel, true),
          {"linear_fp8_prompt", run_linear_prompt, true},
          route_case("route", RouteSize::any),
          route_case("route_few", RouteSize::few),
          route_case("route_many", RouteSize::many)};
}

}  // namespace koho::testing
