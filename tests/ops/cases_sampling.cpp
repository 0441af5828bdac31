// SPDX-License-Identifier: Apache-2.0
// Cases of sample and reset_counts against sampling/sampler.h, which defines them: greedy ids and
// counts are equal, drawn ids lie in the support, log-probabilities are within f32.
#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "base/arithmetic.h"
#include "bench/operators/device_array.h"
#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/reference.h"
#include "sampling/philox.h"
#include "sampling/sampler.h"

namespace koho::testing {
namespace {

/// The nonzero that belong to rows of counts.
HostTensor nonzero_of(const HostTensor& counts) {
  const auto vocabulary = static_cast<std::int32_t>(counts.shape[1]);
  const std::int64_t slots = counts.shape[0];
  HostTensor nonzero(DType::i32, {slots, race_bitmap_words(vocabulary)});
  for (std::int64_t slot = 0; slot < slots; ++slot)
    for (std::int32_t token = 0; token < vocabulary; ++token)
      if (counts.as<std::int32_t>()[slot * vocabulary + token] != 0)
        nonzero
            .as<std::uint32_t>()[slot * race_bitmap_words(vocabulary) + race_bitmap_word(token)] |=
            race_bitmap_bit(token);
  return nonzero;
}

SamplingRow random_row(Random& random,
                       std::int64_t slots,
                       std::int64_t masks,
                       std::int64_t biases) {
  SamplingRow row;
  row.seed = random.bits();
  row.output_position = random.integer(0, 1000);
  if (random.chance(0.5)) row.temperature = static_cast<float>(0.2 + 1.5 * random.uniform());
  if (random.chance(0.4)) row.top_p = static_cast<float>(0.1 + 0.9 * random.uniform());
  if (random.chance(0.3)) row.min_p = static_cast<float>(0.5 * random.uniform());
  if (random.chance(0.4)) row.top_k = static_cast<std::int32_t>(random.integer(1, 40));
  if (slots > 0 && random.chance(0.5)) {
    row.counts_slot = static_cast<std::int32_t>(random.integer(0, slots - 1));
    row.repetition_penalty = 1.2F;
    row.frequency_penalty = 0.3F;
    row.presence_penalty = -0.4F;
  }
  if (masks > 0 && random.chance(0.5))
    row.mask_row = static_cast<std::int32_t>(random.integer(0, masks - 1));
  if (biases > 0 && random.chance(0.3)) {
    row.bias_begin = static_cast<std::int32_t>(random.integer(0, biases - 1));
    row.bias_count = static_cast<std::int32_t>(random.integer(1, biases - row.bias_begin));
  }
  if (random.chance(0.5))
    row.logprobs = static_cast<std::int32_t>(random.integer(0, kTopLogprobsMax));
  return row;
}

/// Whether the row draws `id` with a top_p that the backend cannot tell from its own. It compares
/// A / (A + B), the probabilities of the tokens kept and of the others, each of which it knows to
/// `error`; and each of its tokens to 2^-33 of the likeliest's besides.
bool drawn_at_threshold(
    Sampler& sampler, const SamplingRow& row, const SamplerInput& input, double error, int id) {
  if (error == 0.0 || row.top_p >= 1.0F || !input.counts.empty()) return false;
  const double top_p = row.top_p;
  // 1 % for the terms of second order.
  const double off =
      1.01 * (2.0 * error * top_p * (1.0 - top_p) + static_cast<double>(input.tokens) * 0x1p-33);
  SamplingRow moved = row;
  SamplerOutput out;
  moved.top_p = std::nextafter(static_cast<float>(top_p - off), 0.0F);
  sampler.sample(moved, input, out);
  if (out.id == id) return true;
  moved.top_p = std::min(1.0F, std::nextafter(static_cast<float>(top_p + off), 2.0F));
  sampler.sample(moved, input, out);
  return out.id == id;
}

/// How far a log-probability, logit - largest - log(sum of exp(logit - largest)), may be from the
/// reference's. A term of the sum is off by its difference's rounding, 2^-24 of that, and by an f32
/// exponential of two ulps. Weighed by the probabilities the differences are ln V on the mean at
/// most (their entropy), so the logarithm is off by 2^-24 ln V + 2^-22. The sum and the rest are in
/// f64; the result and the reference's are each rounded to f32.
double logprob_error(double logprob, std::int64_t tokens) {
  return 0x1p-24 * std::log(static_cast<double>(tokens)) + 0x1p-22 + 0x1p-23 * std::fabs(logprob);
}

/// `many`: more rows than backends may have another kernel for, most of them drawn and without
/// log-probabilities, half of all with thresholds alone.
std::string run_sample(Backend& backend,
                       std::uint64_t seed,
                       const OpCaseOptions& options,
                       bool many) {
  Random random(seed);
  const bool large = random.chance(0.15);  // a real vocabulary
  const std::int64_t vocabulary = large ? random.integer(100000, 151552) : random.integer(1, 700);
  const std::int64_t tokens = random.integer(large ? vocabulary - 300 : 1, vocabulary);
  const std::int64_t rows = !many                ? random.integer(1, large ? 3 : 9)
                            : random.chance(0.3) ? random.integer(129, large ? 140 : 280)
                                                 : random.integer(30, 80);
  const std::int64_t words = ceil_div<std::int64_t>(vocabulary, 32);
  HostTensor logits = random_values(random, DType::f32, {rows, vocabulary},
                                    random.chance(0.9) ? Spread::normal : Spread::one_nan_row, 3.0);
  if (random.chance(0.3))  // many tokens of one logit
    for (std::int64_t i = 0; i < logits.elements(); ++i)
      logits.as<float>()[i] = std::round(logits.as<float>()[i]);
  HostTensor masks(DType::i32, {3, words});
  for (std::int64_t i = 0; i < masks.elements(); ++i) {
    std::uint64_t bits = random.bits();
    if (i < words) bits &= random.bits() & random.bits() & random.bits();  // one in sixteen
    masks.as<std::int32_t>()[i] = static_cast<std::int32_t>(bits);
  }
  HostTensor counts(DType::i32, {rows, vocabulary});
  for (std::int64_t i = 0; i < counts.elements(); ++i)
    if (random.chance(0.1))
      counts.as<std::int32_t>()[i] = static_cast<std::int32_t>((random.bits() & 0x80000003U));
  std::vector<LogitBias> biases;
  for (int i = 0; i < 6; ++i)
    biases.push_back({static_cast<std::int32_t>(random.integer(0, vocabulary - 1)),
                      static_cast<float>(5.0 * random.normal())});
  std::vector<SamplingRow> parameters;
  for (std::int64_t r = 0; r < rows; ++r) {
    const bool plain = many && random.chance(0.5);
    parameters.push_back(random_row(random, 0, plain ? 0 : 3, plain ? 0 : 6));
    if (plain || (many && random.chance(0.7))) {
      parameters.back().logprobs = -1;
      parameters.back().temperature = std::max(parameters.back().temperature, 0.5F);
    }
    if (plain) continue;
    // A slot of its own: rows of one step never share one.
    if (random.chance(0.5)) {
      parameters.back().counts_slot = static_cast<std::int32_t>(r);
      const bool raises = random.chance(0.3);  // makes logits larger
      parameters.back().repetition_penalty = raises ? 0.8F : 1.3F;
      parameters.back().frequency_penalty = raises ? -0.2F : 0.2F;
      parameters.back().presence_penalty = raises && random.chance(0.5) ? -0.1F : 0.1F;
    }
  }
  const auto bytes_of = [&](const auto& values, std::int64_t size) {
    HostTensor tensor(DType::u8, {static_cast<std::int64_t>(values.size()), size});
    std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
    return tensor;
  };
  const DeviceArray logits_array(backend, logits, random.chance(0.3) ? 5 : 0);
  const DeviceArray rows_array(backend, bytes_of(parameters, sizeof(SamplingRow)));
  const DeviceArray biases_array(backend, bytes_of(biases, sizeof(LogitBias)));
  const DeviceArray masks_array(backend, masks);
  const DeviceArray counts_array(backend, counts);
  const DeviceArray nonzero_array(backend, nonzero_of(counts));
  const TokenCounts token_counts{counts_array.view(), nonzero_array.view()};
  const DeviceArray ids(backend, DType::i32, {rows});
  const DeviceArray logprobs(backend, DType::f32, {rows});
  const DeviceArray top_ids(backend, DType::i32, {rows, kTopLogprobsMax});
  const DeviceArray top_logprobs(backend, DType::f32, {rows, kTopLogprobsMax});
  std::string faults = fault_of("reserve", backend.reserve({.tokens_max = rows,
                                                            .sequences_max = rows,
                                                            .context_max = 1,
                                                            .logit_rows_max = rows,
                                                            .vocabulary = vocabulary}));
  faults += fault_of(
      "sample",
      backend.sample(
          {ids.view(), logprobs.view(), top_ids.view(), top_logprobs.view()}, logits_array.view(),
          {rows_array.view(), biases_array.view(), masks_array.view(), token_counts, tokens}));

  const HostTensor got = ids.get();
  const HostTensor got_logprobs = logprobs.get();
  const HostTensor got_top = top_ids.get();
  const HostTensor got_top_logprobs = top_logprobs.get();
  Sampler sampler(vocabulary);
  SamplerOutput out;
  HostTensor expected_counts = counts;
  for (std::int64_t r = 0; r < rows; ++r) {
    const SamplingRow& row = parameters[static_cast<std::size_t>(r)];
    const auto v = static_cast<std::size_t>(vocabulary);
    SamplerInput input;
    input.logits = {logits.as<float>() + r * vocabulary, v};
    input.tokens = tokens;
    if (row.bias_count > 0)
      input.biases = {biases.data() + row.bias_begin, static_cast<std::size_t>(row.bias_count)};
    if (row.mask_row >= 0)
      input.mask = {masks.as<std::int32_t>() + row.mask_row * words,
                    static_cast<std::size_t>(words)};
    if (row.counts_slot >= 0)
      input.counts = {expected_counts.as<std::int32_t>() + row.counts_slot * vocabulary, v};
    sampler.sample(row, input, out);
    const std::string name = "row " + std::to_string(r);
    if (got.as<std::int32_t>()[r] != out.id &&
        !drawn_at_threshold(sampler, row, input, options.sampling_weight_error,
                            got.as<std::int32_t>()[r]))
      faults += name + ": id " + std::to_string(got.as<std::int32_t>()[r]) + ", expected " +
                std::to_string(out.id) + "\n";
    if (row.logprobs < 0 || out.id < 0) continue;
    const auto differs = [&](double found, double expected) {
      return !(std::fabs(found - expected) <= logprob_error(expected, tokens));
    };
    if (differs(got_logprobs.as<float>()[r], out.logprob))
      faults +=
          fmt::format("{}: logprob {:.9g}, expected {:.9g} ± {:.3g}\n", name,
                      got_logprobs.as<float>()[r], out.logprob, logprob_error(out.logprob, tokens));
    for (std::size_t i = 0; i < out.top_ids.size(); ++i) {
      const auto at = static_cast<std::size_t>(r * kTopLogprobsMax) + i;
      if (got_top.as<std::int32_t>()[at] != out.top_ids[i] ||
          differs(got_top_logprobs.as<float>()[at], out.top_logprobs[i]))
        faults += name + ": alternative " + std::to_string(i) + " differs\n";
    }
  }
  // A row's draw does not depend on how many rows there are.
  for (std::int64_t r = 0, runs = 0; options.batch_invariant && r < rows && runs < 16;
       ++r, ++runs) {
    SamplingRow row = parameters[static_cast<std::size_t>(r)];
    // Counts as they were: the row has changed its own.
    const HostTensor own_counts = row_of(counts, std::max(row.counts_slot, 0));
    const DeviceArray one_counts(backend, own_counts);
    const DeviceArray one_marks(backend, nonzero_of(own_counts));
    if (row.counts_slot >= 0) row.counts_slot = 0;
    const DeviceArray one_logits(backend, row_of(logits, r));
    const DeviceArray one_row(backend,
                              bytes_of(std::vector<SamplingRow>{row}, sizeof(SamplingRow)));
    const DeviceArray id(backend, DType::i32, {1});
    const DeviceArray logprob(backend, DType::f32, {1});
    const DeviceArray alternatives(backend, DType::i32, {1, kTopLogprobsMax});
    const DeviceArray their_logprobs(backend, DType::f32, {1, kTopLogprobsMax});
    faults += fault_of("sample", backend.sample({id.view(), logprob.view(), alternatives.view(),
                                                 their_logprobs.view()},
                                                one_logits.view(),
                                                {one_row.view(),
                                                 biases_array.view(),
                                                 masks_array.view(),
                                                 {one_counts.view(), one_marks.view()},
                                                 tokens}));
    const std::int32_t alone = id.get().as<std::int32_t>()[0];
    if (alone != got.as<std::int32_t>()[r])
      faults += "row " + std::to_string(r) + ": id " + std::to_string(alone) + " alone, " +
                std::to_string(got.as<std::int32_t>()[r]) + " among others\n";
  }
  return faults + compare_bits("counts", counts_array.get(), expected_counts) +
         compare_bits("nonzero", nonzero_array.get(), nonzero_of(expected_counts)) +
         ids.guard_fault("ids") + logprobs.guard_fault("logprobs") +
         counts_array.guard_fault("counts") + nonzero_array.guard_fault("nonzero") +
         top_ids.guard_fault("top_ids") + top_logprobs.guard_fault("top_logprobs");
}

std::string run_reset_counts(Backend& backend, std::uint64_t seed, const OpCaseOptions&) {
  Random random(seed);
  const std::int64_t slots = random.integer(1, 4);
  const std::int64_t vocabulary = random.integer(1, 300);
  const std::int64_t slot = random.integer(0, slots - 1);
  HostTensor counts(DType::i32, {slots, vocabulary});
  for (std::int64_t i = 0; i < counts.elements(); ++i)
    counts.as<std::int32_t>()[i] = static_cast<std::int32_t>(random.bits());
  const auto random_ids = [&] {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(random.integer(0, 200)));
    for (std::int64_t& id : ids) id = random.integer(0, vocabulary - 1);
    return ids;
  };
  const std::vector<std::int64_t> prompt = random_ids();
  const std::vector<std::int64_t> output = random_ids();
  const DeviceArray counts_array(backend, counts);
  const DeviceArray nonzero_array(
      backend, DType::i32, {slots, race_bitmap_words(static_cast<std::int32_t>(vocabulary))});
  const DeviceArray prompt_array(backend, integers(DType::i32, prompt));
  const DeviceArray output_array(backend, integers(DType::i32, output));
  std::string faults = fault_of(
      "reset_counts", backend.reset_counts({counts_array.view(), nonzero_array.view()}, slot,
                                           prompt_array.view(), output_array.view()));
  std::int32_t* row = counts.as<std::int32_t>() + slot * vocabulary;
  std::fill_n(row, vocabulary, 0);
  for (const std::int64_t id : prompt) row[id] |= static_cast<std::int32_t>(0x80000000U);
  for (const std::int64_t id : output) ++row[id];
  return faults + compare_bits("counts", counts_array.get(), counts) +
         compare_bits("nonzero", row_of(nonzero_array.get(), slot),
                      row_of(nonzero_of(counts), slot)) +
         counts_array.guard_fault("counts") + nonzero_array.guard_fault("nonzero");
}

}  // namespace

std::vector<OpCase> sampling_cases() {
  const auto sample = [](bool many) {
    return [many](Backend& backend, std::uint64_t seed, const OpCaseOptions& options) {
      return run_sample(backend, seed, options, many);
    };
  };
  return {{"sample", sample(false)},
          {"sample_many", sample(true), true},
          {"reset_counts", run_reset_counts}};
}

}  // namespace koho::testing
