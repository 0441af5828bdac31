// SPDX-License-Identifier: Apache-2.0
// The router against float64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "ops/compare.h"
#include "ops/operator_parity.h"

namespace koho::testing {
namespace {

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
  std::vector<double> inputs(static_cast<std::size_t>(width));
  std::vector<double> weights(inputs.size());
  x.read(x_row * width, inputs);
  weight.read(expert * width, weights);
  double sum = 0.0;
  double squares = 0.0;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const double product = inputs[k] * weights[k];
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

/// Indices from the largest value to the smallest.
std::vector<std::int64_t> ranked(const std::vector<double>& values) {
  std::vector<std::int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  return order;
}

double largest_of(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

/// The experts' scores of a token, and how far f32 may be from them.
struct Scores {
  std::vector<double> sigmoids, sigmoid_errors;
  std::vector<double> values, errors;  // sigmoid + bias

  Scores(const std::vector<Logit>& logits, const HostTensor& bias) {
    for (std::size_t e = 0; e < logits.size(); ++e) {
      sigmoids.push_back(1.0 / (1.0 + std::exp(-logits[e].value)));
      sigmoid_errors.push_back(sigmoid_error(logits[e], sigmoids.back()));
      values.push_back(sigmoids.back() + bias.at(static_cast<std::int64_t>(e)));
      errors.push_back(sigmoid_errors.back() + 0x1p-24 * std::fabs(values.back()));
      if (std::isnan(values.back())) values.back() = -std::numeric_limits<double>::infinity();
    }
  }
};

void note_margin(Choice& choice, double better, double worse, double error) {
  if (std::isfinite(better) && std::isfinite(worse))
    choice.margin = std::min(choice.margin, better - worse - error);
}

/// Gives the experts of dropped groups the lowest score.
void drop_groups(const RouterSettings& settings, Scores& scores, Choice& choice) {
  const std::int64_t size = static_cast<std::int64_t>(scores.values.size()) / settings.groups;
  std::vector<double> group_scores;
  std::vector<double> group_errors;
  for (std::int64_t group = 0; group < settings.groups; ++group) {
    std::vector<double> members(scores.values.begin() + group * size,
                                scores.values.begin() + (group + 1) * size);
    std::sort(members.rbegin(), members.rend());
    group_scores.push_back(members[0] + (size > 1 ? members[1] : 0.0));
    // Of any two members, whichever come out as the largest, and of their addition.
    const double largest_error = *std::max_element(scores.errors.begin() + group * size,
                                                   scores.errors.begin() + (group + 1) * size);
    group_errors.push_back(2.0 * largest_error + 0x1p-24 * std::fabs(group_scores.back()));
  }
  const std::vector<std::int64_t> order = ranked(group_scores);
  for (std::int64_t rank = 0; rank < settings.groups; ++rank) {
    const std::int64_t group = order[static_cast<std::size_t>(rank)];
    if (rank + 1 == settings.groups_kept && rank + 1 < settings.groups) {
      // Any kept group against any dropped one: the closest two, with the largest errors.
      const auto next = static_cast<std::size_t>(order[static_cast<std::size_t>(rank + 1)]);
      note_margin(choice, group_scores[static_cast<std::size_t>(group)], group_scores[next],
                  2.0 * largest_of(group_errors));
    }
    if (rank >= settings.groups_kept)
      std::fill_n(scores.values.begin() + group * size, size,
                  -std::numeric_limits<double>::infinity());
  }
}

/// The router of one token, in float64, from its logits.
Choice choose(const std::vector<Logit>& logits,
              const HostTensor& bias,
              const RouterSettings& settings) {
  Scores scores(logits, bias);
  Choice choice;
  choice.margin = std::numeric_limits<double>::infinity();
  if (settings.groups > 1) drop_groups(settings, scores, choice);
  const std::vector<std::int64_t> order = ranked(scores.values);
  double sum = 0.0;
  double sum_error = 0.0;
  for (std::int64_t a = 0; a < settings.top_k; ++a) {
    const std::int64_t e = order[static_cast<std::size_t>(a)];
    const auto chosen = static_cast<std::size_t>(e);
    if (a + 1 < static_cast<std::int64_t>(order.size())) {
      const auto next = static_cast<std::size_t>(order[static_cast<std::size_t>(a + 1)]);
      note_margin(choice, scores.values[chosen], scores.values[next],
                  2.0 * largest_of(scores.errors));
    }
    choice.ids.push_back(e);
    choice.weights.push_back(scores.sigmoids[chosen]);
    choice.weight_errors.push_back(scores.sigmoid_errors[chosen]);
    sum += scores.sigmoids[chosen];
    sum_error += scores.sigmoid_errors[chosen];
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

std::string compare_token(std::int64_t t,
                          const Choice& choice,
                          const HostTensor& ids,
                          const HostTensor& weights) {
  std::string faults;
  const std::int64_t top_k = ids.shape[1];
  for (std::int64_t a = 0; a < top_k; ++a) {
    const auto at = static_cast<std::size_t>(a);
    const double id = ids.at(t * top_k + a);
    const double got = weights.at(t * top_k + a);
    if (id != static_cast<double>(choice.ids[at]))
      faults += fmt::format("token {}: expert {} is {}, expected {}\n", t, a, id, choice.ids[at]);
    const bool nan = std::isnan(choice.weights[at]);
    if (nan ? !std::isnan(got) : !(std::fabs(got - choice.weights[at]) <= choice.weight_errors[at]))
      faults += fmt::format("token {}: weight {:.9g}, expected {:.9g} ± {:.3g}\n", t, got,
                            choice.weights[at], choice.weight_errors[at]);
  }
  return faults;
}

}  // namespace

Comparison compare_reference(const bench::RouteOperands& operands, const OpCaseOptions& options) {
  const std::int64_t experts = operands.weight.shape[0];
  std::vector<Choice> choices;
  for (std::int64_t t = operands.first_compared; t < operands.x.shape[0]; t += operands.step) {
    std::vector<Logit> logits;
    for (std::int64_t e = 0; e < experts; ++e)
      logits.push_back(logit_of(operands.x, t, operands.weight, e, options.router_chains));
    choices.push_back(choose(logits, operands.bias, operands.settings));
  }
  return [&operands, experts, choices](const Results& results) {
    const HostTensor& ids = results.at("ids");
    for (std::int64_t i = 0; i < ids.elements(); ++i)  // poison is no expert
      if (ids.at(i) < 0.0 || ids.at(i) >= static_cast<double>(experts))
        return fmt::format("token {} has expert {}\n", i / ids.shape[1], ids.at(i));
    std::string faults;
    std::int64_t t = operands.first_compared;
    for (const Choice& choice : choices) {
      if (choice.margin > 0.0) faults += compare_token(t, choice, ids, results.at("weights"));
      if (!faults.empty()) break;
      t += operands.step;
    }
    return faults;
  };
}

}  // namespace koho::testing
