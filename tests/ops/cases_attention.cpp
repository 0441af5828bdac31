// SPDX-License-Identifier: Apache-2.0
// Cases of attention: sequences of all lengths in one step, pages in random places with poison
// where nothing was stored.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/arithmetic.h"
#include "ops/cases.h"
#include "ops/compare.h"
#include "ops/device_array.h"
#include "ops/reference.h"
#include "support/step_limits.h"

namespace koho::testing {
namespace {

/// One sequence of a step: its last `queries` tokens are this step's. A fork's first pages are
/// those of the sequence before it.
struct Sequence {
  std::int64_t context = 0;
  std::int64_t queries = 0;
  std::vector<std::int64_t> pages;
  std::int64_t shared_pages = 0;
};

/// Keys and values of the sequences in pages; what no sequence owns is poison.
struct Cache {
  HostTensor k, v, k_scales, v_scales;
};

/// A step: sequences, decodes first, and their pages in a random order with holes.
struct Step {
  HeadShape heads;
  std::vector<Sequence> sequences;
  std::int64_t pages = 0;
  std::int64_t decodes = 0;
  bool quantized = false;
  bool sparse =
      false;  // half of v's quantised values are zero, so that small weights make up some elements

  std::int64_t tokens() const {
    std::int64_t sum = 0;
    for (const Sequence& sequence : sequences) sum += sequence.queries;
    return sum;
  }
};

/// Gives the sequences pages in a random order with holes.
void place_pages(Random& random, Step& step) {
  std::int64_t needed = 0;
  for (const Sequence& sequence : step.sequences) needed += ceil_div(sequence.context, kPageTokens);
  step.pages = needed + random.integer(0, 4);
  std::vector<std::int64_t> numbers;
  for (std::int64_t page = 0; page < step.pages; ++page) numbers.push_back(page);
  for (std::size_t i = numbers.size(); i > 1; --i)
    std::swap(
        numbers[i - 1],
        numbers[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i) - 1))]);
  for (std::size_t s = 0; s < step.sequences.size(); ++s) {
    Sequence& sequence = step.sequences[s];
    for (std::int64_t i = 0; i < ceil_div(sequence.context, kPageTokens); ++i) {
      sequence.pages.push_back(i < sequence.shared_pages
                                   ? step.sequences[s - 1].pages[static_cast<std::size_t>(i)]
                                   : numbers.back());
      if (i >= sequence.shared_pages) numbers.pop_back();
    }
  }
}

/// A chunk of a prompt beside cached context, of several tiles, and often a fork of it.
Step random_prompt_step(Random& random, bool quantized) {
  Step step;
  step.quantized = quantized;
  step.sparse = quantized && random.chance(0.3);
  const std::int64_t kv_heads = random.integer(1, 2);
  step.heads = {kv_heads * random.pick({1, 2, 3}), kv_heads, 128, 64};
  const std::int64_t context = random.integer(130, 700);
  step.sequences.push_back({context, random.integer(1, std::min<std::int64_t>(context, 200)), {}});
  if (random.chance(0.7)) {
    const std::int64_t other = random.integer(70, 500);
    const std::int64_t full = (std::min(context, other) - 1) / kPageTokens;
    const std::int64_t queries = random.integer(1, std::min<std::int64_t>(other, 150));
    step.sequences.push_back({other, queries, {}, random.integer(1, full)});
  }
  place_pages(random, step);
  return step;
}

Step random_step(Random& random, bool quantized) {
  Step step;
  step.quantized = quantized;
  step.sparse = quantized && random.chance(0.3);
  step.heads.kv_heads = random.integer(1, 3);
  step.heads.query_heads = step.heads.kv_heads * random.pick({1, 2, 3, 4, 5, 12});
  step.heads.width = random.pick({16, 64, 128, 128, 128, 80});
  step.decodes = random.integer(0, 4);
  const std::int64_t prefills = random.integer(step.decodes == 0 ? 1 : 0, 2);
  const auto length = [&] {
    return random.chance(0.5) ? random.pick({1, 2, 63, 64, 65, 127, 128, 129, 200})
                              : random.integer(1, 400);
  };
  for (std::int64_t i = 0; i < step.decodes; ++i) step.sequences.push_back({length(), 1, {}});
  for (std::int64_t i = 0; i < prefills; ++i) {
    const std::int64_t context = length();
    step.sequences.push_back({context, random.integer(1, std::min<std::int64_t>(context, 90)), {}});
  }
  place_pages(random, step);
  return step;
}

/// Contexts of many pages: several long ones, very many of some pages; or very many short ones.
Step random_long_step(Random& random, bool quantized) {
  Step step;
  step.quantized = quantized;
  step.heads.width = 128;
  const double kind = random.uniform();
  if (kind < 0.06) {  // more items than two a multiprocessor, rows of GLM-4.7 whole and by TP4
    const bool whole = random.chance(0.5);
    step.heads = {whole ? 96 : 24, whole ? 8 : 2, 128, 64};
    step.decodes = whole ? random.integer(36, 44) : random.integer(90, 100);
    for (std::int64_t i = 0; i < step.decodes; ++i)
      step.sequences.push_back({random.integer(1, 150), 1, {}});
  } else if (kind < 0.4) {
    step.heads = {2, 2, 128, 64};
    step.decodes = random.integer(50, 70);
    for (std::int64_t i = 0; i < step.decodes; ++i)
      step.sequences.push_back({random.integer(1, 300), 1, {}});
  } else {
    const std::int64_t kv_heads = random.integer(1, 2);
    step.heads = {kv_heads * random.pick({1, 12}), kv_heads, 128, 64};
    step.decodes = random.integer(0, 2);
    for (std::int64_t i = 0; i < step.decodes; ++i)
      step.sequences.push_back({random.integer(1, 2500), 1, {}});
    step.sequences.push_back({random.integer(60, 900), random.integer(1, 30), {}});
  }
  place_pages(random, step);
  return step;
}

/// Chunks of so many prompts beside a few decodes that there are more tiles than multiprocessors,
/// of unequal lengths: most of one row, some of several tiles, often one with a context so long
/// that not all of them can be widened at once.
Step random_full_batch_step(Random& random, bool quantized) {
  Step step;
  step.quantized = quantized;
  step.sparse = quantized && random.chance(0.3);
  step.heads = {24, 2, 128, 64};
  step.decodes = random.integer(0, 3);
  for (std::int64_t i = 0; i < step.decodes; ++i)
    step.sequences.push_back({random.integer(1, 300), 1, {}});
  const std::int64_t prompts = random.integer(90, 120);
  const std::int64_t longest = random.chance(0.7) ? random.integer(1, prompts - 1) : prompts;
  for (std::int64_t i = 0; i < prompts; ++i) {
    const bool many = i == 0 || random.chance(0.03);
    if (i == longest)
      step.sequences.push_back({random.integer(4200, 5000), random.integer(1, 3), {}});
    else if (many)
      step.sequences.push_back({random.integer(40, 200), random.integer(22, 40), {}});
    else
      step.sequences.push_back({random.integer(1, 140), 1, {}});
  }
  place_pages(random, step);
  return step;
}

/// Element 0 of (sequence, token, head), counted in rows of a cache tensor.
std::int64_t cache_row(const Step& step,
                       const Sequence& sequence,
                       std::int64_t token,
                       std::int64_t head) {
  const std::int64_t page = sequence.pages[static_cast<std::size_t>(token / kPageTokens)];
  return (page * step.heads.kv_heads + head) * kPageTokens + token % kPageTokens;
}

Cache random_cache(Random& random, const Step& step) {
  const DType dtype = step.quantized ? DType::f8_e4m3 : DType::bf16;
  const std::int64_t width = step.heads.width;
  const Shape shape{step.pages, step.heads.kv_heads, kPageTokens, width};
  const Shape scales{step.pages, step.heads.kv_heads, kPageTokens};
  Cache cache{HostTensor(dtype, shape), HostTensor(dtype, shape), HostTensor(DType::f32, scales),
              HostTensor(DType::f32, scales)};
  for (HostTensor* tensor : {&cache.k, &cache.v, &cache.k_scales, &cache.v_scales})
    std::fill(tensor->bytes.begin(), tensor->bytes.end(), std::byte{0xFF});
  const Spread spread = random.chance(0.7) ? Spread::normal : Spread::outliers;
  const bool nan_key = random.chance(0.1);
  for (const Sequence& sequence : step.sequences) {
    for (std::int64_t head = 0; head < step.heads.kv_heads; ++head) {
      const auto draw = [&](HostTensor& tensor, HostTensor& tensor_scales) {
        const bool zeros = step.sparse && &tensor == &cache.v;
        const HostTensor rows =
            step.quantized ? random_quantized(random, {sequence.context, width}, spread)
                           : random_values(random, dtype, {sequence.context, width}, spread);
        for (std::int64_t token = 0; token < sequence.context; ++token) {
          const std::int64_t at = cache_row(step, sequence, token, head);
          for (std::int64_t i = 0; i < width; ++i)
            tensor.set(at * width + i,
                       zeros && random.chance(0.5) ? 0.0 : rows.at(token * width + i));
          if (step.quantized) tensor_scales.set(at, 0.01 * std::exp(random.normal()));
        }
      };
      draw(cache.k, cache.k_scales);
      draw(cache.v, cache.v_scales);
    }
  }
  // A NaN in the last token of a sequence concerns that token's row only.
  if (nan_key) {
    const Sequence& sequence = step.sequences.back();
    const std::int64_t at = cache_row(step, sequence, sequence.context - 1, 0);
    cache.v.set(at * width, std::nan(""));
  }
  return cache;
}

/// The cache on the device.
struct DeviceCache {
  DeviceCache(Backend& backend, const Cache& cache, bool quantized)
      : k(backend, cache.k),
        v(backend, cache.v),
        k_scales(backend, cache.k_scales),
        v_scales(backend, cache.v_scales),
        kv{k.view(), v.view(), {}, {}} {
    if (!quantized) return;
    kv.k_scales = k_scales.view();
    kv.v_scales = v_scales.view();
  }

  DeviceArray k, v, k_scales, v_scales;
  KvLayer kv;
};

/// The step's index arrays on the device.
struct DeviceStep {
  DeviceStep(Backend& backend, const Step& step);

  Batch batch;
  DeviceArray positions, starts, contexts, tables;
};

DeviceStep::DeviceStep(Backend& backend, const Step& step) {
  std::vector<std::int64_t> position_values;
  std::vector<std::int64_t> start_values{0};
  std::vector<std::int64_t> context_values;
  std::int64_t columns = 1;
  for (const Sequence& sequence : step.sequences) {
    for (std::int64_t i = sequence.context - sequence.queries; i < sequence.context; ++i)
      position_values.push_back(i);
    start_values.push_back(static_cast<std::int64_t>(position_values.size()));
    context_values.push_back(sequence.context);
    columns = std::max(columns, static_cast<std::int64_t>(sequence.pages.size()));
    batch.query_max = std::max(batch.query_max, sequence.queries);
    batch.context_max = std::max(batch.context_max, sequence.context);
  }
  const auto sequences = static_cast<std::int64_t>(step.sequences.size());
  HostTensor table(DType::i32, {sequences, columns});
  for (std::int64_t s = 0; s < sequences; ++s)
    for (std::int64_t i = 0; i < columns; ++i) {
      const auto& pages = step.sequences[static_cast<std::size_t>(s)].pages;
      // Entries past the context are unspecified: a page number that does not exist.
      const bool known = i < static_cast<std::int64_t>(pages.size());
      table.set(s * columns + i,
                known ? static_cast<double>(pages[static_cast<std::size_t>(i)]) : 1e9);
    }
  positions = DeviceArray(backend, integers(DType::i32, position_values));
  starts = DeviceArray(backend, integers(DType::i32, start_values));
  contexts = DeviceArray(backend, integers(DType::i32, context_values));
  tables = DeviceArray(backend, table);
  batch.positions = positions.view();
  batch.query_starts = starts.view();
  batch.context_lengths = contexts.view();
  batch.page_tables = tables.view();
  batch.tokens = static_cast<std::int64_t>(position_values.size());
  batch.sequences = sequences;
  batch.decodes = step.decodes;
}

/// Attention of one row and query head in float64, and how far a backend may be from it.
struct Attended {
  std::vector<double> out;
  std::vector<double> bounds;
};

/// What a weight is rounded by before it multiplies v: parts of it, and over e4m3 pages no less
/// than parts of the largest with v's largest scale. The rest is f32: scores from a sum of products
/// that loses 2^-23 of sum |q k| a term (tensor cores truncate), their difference from the largest,
/// the exponential; the sum over positions, of which tensor cores truncate every sixteen and others
/// round each; and the result, rounded to bf16. A weight, or what joins parts, may become zero
/// below f32's normal numbers.
Attended attend(const Step& step,
                const Sequence& sequence,
                const Cache& cache,
                const HostTensor& q,
                std::int64_t q_row,
                std::int64_t head,
                std::int64_t visible,
                const OpCaseOptions& options) {
  const double weight_error = options.attention_weight_error;
  constexpr double kTiniest = 2.0 * 0x1p-126;
  const std::int64_t width = step.heads.width;
  const std::int64_t kv_head = head / (step.heads.query_heads / step.heads.kv_heads);
  std::vector<double> scores;
  std::vector<double> score_errors;
  for (std::int64_t token = 0; token < visible; ++token) {
    const std::int64_t at = cache_row(step, sequence, token, kv_head);
    double sum = 0.0;
    double magnitude = 0.0;
    for (std::int64_t i = 0; i < width; ++i) {
      const double product =
          q.at((q_row * step.heads.query_heads + head) * width + i) * cache.k.at(at * width + i);
      sum += product;
      magnitude += std::fabs(product);
    }
    const double scale = (step.quantized ? cache.k_scales.at(at) : 1.0) / std::sqrt(double(width));
    scores.push_back(sum * scale);
    score_errors.push_back(static_cast<double>(width + 8) * 0x1p-23 * magnitude * scale);
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  double largest_scale = 0.0;
  for (std::int64_t token = 0; step.quantized && token < visible; ++token)
    largest_scale =
        std::max(largest_scale, cache.v_scales.at(cache_row(step, sequence, token, kv_head)));
  double total = 0.0;
  ErrorSum total_error;
  struct Element {
    double sum = 0.0;
    ErrorSum error;      // of the weights
    ErrorSum magnitude;  // of the terms
  };
  std::vector<Element> elements(static_cast<std::size_t>(width));
  for (std::int64_t token = 0; token < visible; ++token) {
    const auto t = static_cast<std::size_t>(token);
    const std::int64_t at = cache_row(step, sequence, token, kv_head);
    const double share = std::exp(scores[t] - largest);
    const double exponent_error =
        score_errors[t] + 0x1p-22 * (std::fabs(scores[t]) + std::fabs(largest)) + 0x1p-20;
    const double share_error = share * std::expm1(std::min(exponent_error, 50.0));
    total += share;
    total_error.add(share_error);
    total_error.add_uniform(share * weight_error);
    const double scale = step.quantized ? cache.v_scales.at(at) : 1.0;
    for (std::int64_t i = 0; i < width; ++i) {
      Element& element = elements[static_cast<std::size_t>(i)];
      const double code = cache.v.at(at * width + i);
      const double value = scale * code;
      element.sum += share * value;
      element.error.add(share_error * std::fabs(value));
      element.error.add_uniform(share * weight_error * std::fabs(value));
      element.error.add(kTiniest * std::fabs(value));
      if (step.quantized)
        element.error.add(options.attention_weight_step * largest_scale * std::fabs(code));
      element.magnitude.add(share * std::fabs(value));
    }
  }
  const auto n = static_cast<double>(visible);
  const double accumulation = (n / 16.0 + 32.0) * 0x1p-23 + kDeviations * std::sqrt(n) * 0x1p-24;
  Attended attended;
  for (const Element& element : elements) {
    const double out = element.sum / total;
    const double before = (element.error.bound() + std::fabs(out) * total_error.bound() +
                           accumulation * (std::fabs(element.sum) + element.magnitude.bound())) /
                          total;
    attended.out.push_back(out);
    attended.bounds.push_back(before + kBf16Rounding * (std::fabs(out) + before) + 1e-37);
  }
  return attended;
}

std::string run_attention(Backend& backend,
                          std::uint64_t seed,
                          const OpCaseOptions& options,
                          bool quantized,
                          Step (*draw)(Random& random, bool quantized)) {
  Random random(seed);
  const Step step = draw(random, quantized);
  const Cache cache = random_cache(random, step);
  const HeadShape& heads = step.heads;
  const std::int64_t tokens = step.tokens();
  const HostTensor q = random_values(random, DType::bf16, {tokens, heads.query_heads, heads.width},
                                     random.chance(0.8) ? Spread::normal : Spread::outliers);
  const DeviceStep arrays(backend, step);
  const DeviceArray q_array(backend, q);
  const DeviceCache placed(backend, cache, quantized);
  std::string faults =
      fault_of("reserve", backend.reserve(with_glm47_facts({.tokens_max = tokens,
                                                            .sequences_max = arrays.batch.sequences,
                                                            .context_max = arrays.batch.context_max,
                                                            .logit_rows_max = 1,
                                                            .vocabulary = 1})));
  const std::int64_t row_width = heads.query_heads * heads.width;
  const ActivationNeeds needs = random_needs(random);
  const DeviceActivation out(backend, tokens, row_width, with_values(needs));
  faults += fault_of("attention",
                     backend.attention(out.view(), q_array.view(), placed.kv, arrays.batch, heads));
  std::vector<double> expected;
  std::vector<double> bounds;
  std::int64_t row = 0;
  for (const Sequence& sequence : step.sequences)
    for (std::int64_t i = 0; i < sequence.queries; ++i, ++row)
      for (std::int64_t head = 0; head < heads.query_heads; ++head) {
        const auto one = attend(step, sequence, cache, q, row, head,
                                sequence.context - sequence.queries + i + 1, options);
        expected.insert(expected.end(), one.out.begin(), one.out.end());
        bounds.insert(bounds.end(), one.bounds.begin(), one.bounds.end());
      }
  const HostTensor got = out.values.get();
  faults += compare_bounds("out", got, expected, bounds, heads.width) + out.check_quantized("out") +
            out.guard_fault("out");
  if (step.decodes > 0 && random.chance(0.5)) {
    // A sequence that has ended has no context, and the others the same bits.
    const std::int64_t ended = random.integer(0, step.decodes - 1);
    std::vector<std::int64_t> contexts;
    for (const Sequence& sequence : step.sequences) contexts.push_back(sequence.context);
    contexts[static_cast<std::size_t>(ended)] = 0;
    const DeviceArray contexts_array(backend, integers(DType::i32, contexts));
    Batch batch = arrays.batch;
    batch.context_lengths = contexts_array.view();
    const DeviceActivation beside(backend, tokens, row_width, with_values(needs));
    faults += fault_of("attention with an ended sequence",
                       backend.attention(beside.view(), q_array.view(), placed.kv, batch, heads));
    HostTensor others = beside.values.get();
    const std::int64_t row_bytes = row_width * dtype_bytes(DType::bf16);
    std::copy_n(got.bytes.begin() + ended * row_bytes, row_bytes,
                others.bytes.begin() + ended * row_bytes);
    faults += compare_bits("out beside an ended sequence", others, got) + beside.guard_fault("out");
  }
  if (!options.batch_invariant) return faults;

  // One row alone, its sequence in other pages: the same bits.
  const std::int64_t chosen =
      random.integer(0, static_cast<std::int64_t>(step.sequences.size()) - 1);
  const Sequence& sequence = step.sequences[static_cast<std::size_t>(chosen)];
  const std::int64_t query = random.integer(0, sequence.queries - 1);
  std::int64_t global = query;
  for (std::int64_t s = 0; s < chosen; ++s)
    global += step.sequences[static_cast<std::size_t>(s)].queries;
  Step alone;
  alone.heads = heads;
  alone.quantized = quantized;
  alone.decodes = options.decode_matches_prefill || chosen < step.decodes ? 1 : 0;
  alone.sequences = {{sequence.context - sequence.queries + query + 1, 1, {}}};
  alone.pages = ceil_div(alone.sequences[0].context, kPageTokens) + 1;
  for (std::int64_t page = alone.pages - 1; page > 0; --page)
    alone.sequences[0].pages.push_back(page);
  Random other(seed + 1);
  Cache moved = random_cache(other, alone);
  for (std::int64_t head = 0; head < heads.kv_heads; ++head)
    for (std::int64_t token = 0; token < alone.sequences[0].context; ++token) {
      const std::int64_t from = cache_row(step, sequence, token, head);
      const std::int64_t to = cache_row(alone, alone.sequences[0], token, head);
      for (std::int64_t i = 0; i < heads.width; ++i) {
        moved.k.set(to * heads.width + i, cache.k.at(from * heads.width + i));
        moved.v.set(to * heads.width + i, cache.v.at(from * heads.width + i));
      }
      moved.k_scales.set(to, cache.k_scales.at(from));
      moved.v_scales.set(to, cache.v_scales.at(from));
    }
  const DeviceStep alone_arrays(backend, alone);
  HostTensor q_row(DType::bf16, {1, heads.query_heads, heads.width});
  for (std::int64_t i = 0; i < row_width; ++i) q_row.set(i, q.at(global * row_width + i));
  const DeviceArray q_alone(backend, q_row);
  const DeviceCache placed_moved(backend, moved, quantized);
  const DeviceActivation one(backend, 1, row_width, with_values({}));
  faults += fault_of("attention", backend.attention(one.view(), q_alone.view(), placed_moved.kv,
                                                    alone_arrays.batch, heads));
  return faults + compare_bits("a row alone", one.values.get(), row_of(got, global));
}

/// Keys and values of one long sequence, quickly: elements are picked from a few thousand drawn
/// before. The tokens of `marked` have keys along `direction`, a sign a column.
Cache long_cache(Random& random,
                 const Step& step,
                 const std::vector<double>& direction,
                 const std::vector<std::int64_t>& marked) {
  constexpr std::int64_t kDrawn = 4096;
  const DType dtype = step.quantized ? DType::f8_e4m3 : DType::bf16;
  const std::int64_t width = step.heads.width;
  const std::int64_t bytes = dtype_bytes(dtype);
  const Sequence& sequence = step.sequences[0];
  const Shape shape{step.pages, 1, kPageTokens, width};
  const Shape scales{step.pages, 1, kPageTokens};
  Cache cache{HostTensor(dtype, shape), HostTensor(dtype, shape), HostTensor(DType::f32, scales),
              HostTensor(DType::f32, scales)};
  for (HostTensor* tensor : {&cache.k, &cache.v, &cache.k_scales, &cache.v_scales})
    std::fill(tensor->bytes.begin(), tensor->bytes.end(), std::byte{0xFF});
  const HostTensor drawn = step.quantized
                               ? random_quantized(random, {kDrawn / width, width}, Spread::normal)
                               : random_values(random, dtype, {1, kDrawn}, Spread::normal);
  // The largest of a drawn row's quantised values is near 448, some 3 deviations.
  const auto random_scale = [&] { return 3.0 / 448.0 * std::exp(0.3 * random.normal()); };
  for (std::int64_t token = 0; token < sequence.context; ++token) {
    const std::int64_t at = cache_row(step, sequence, token, 0);
    for (HostTensor* tensor : {&cache.k, &cache.v}) {
      std::byte* row = tensor->bytes.data() + at * width * bytes;
      for (std::int64_t i = 0; i < width; i += 4) {  // 12 bits an element
        std::uint64_t places = random.bits();
        for (std::int64_t j = i; j < i + 4; ++j, places >>= 12U)
          std::copy_n(drawn.bytes.data() + static_cast<std::int64_t>(places % kDrawn) * bytes,
                      bytes, row + j * bytes);
      }
    }
    if (!step.quantized) continue;
    cache.k_scales.set(at, random_scale());
    cache.v_scales.set(at, random_scale());
  }
  for (const std::int64_t token : marked) {
    const std::int64_t at = cache_row(step, sequence, token, 0);
    for (std::int64_t i = 0; i < width; ++i)
      cache.k.set(at * width + i,
                  direction[static_cast<std::size_t>(i)] * (step.quantized ? 256.0 : 1.0));
    if (step.quantized) cache.k_scales.set(at, 1.0 / 256.0);
  }
  return cache;
}

/// The last token of GLM-4.7's longest context, decoded, or the end of a prompt of that length, of
/// which two rows and heads are compared. So many keys of like weight would hide one that is left
/// out; so q leans to one direction, along which lie the keys of some hundred tokens at both ends
/// and in between: together they weigh about as much as all others.
std::string run_longest(Backend& backend,
                        std::uint64_t seed,
                        const OpCaseOptions& options,
                        bool quantized,
                        bool decodes) {
  constexpr std::int64_t kContext = 131072;
  Random random(seed);
  Step step;
  step.quantized = quantized;
  step.heads = {2, 1, 128, 64};
  step.decodes = decodes ? 1 : 0;
  const std::int64_t tokens = decodes ? 1 : random.integer(64, 140);
  step.sequences.push_back({kContext, tokens, {}});
  place_pages(random, step);
  const HeadShape& heads = step.heads;
  const std::int64_t row_width = heads.query_heads * heads.width;
  std::vector<double> direction;
  for (std::int64_t i = 0; i < heads.width; ++i) direction.push_back(random.chance(0.5) ? 1 : -1);
  std::vector<std::int64_t> marked{0, 63, 64, kContext - 2, kContext - 1};
  for (int i = 0; i < 60; ++i) marked.push_back(random.integer(0, kContext - 1));
  for (int i = 0; i < 10; ++i) marked.push_back(random.integer(kContext - 140, kContext - 1));
  const Cache cache = long_cache(random, step, direction, marked);
  HostTensor q(DType::bf16, {tokens, heads.query_heads, heads.width});
  for (std::int64_t i = 0; i < q.elements(); ++i)  // a score of 8 at the marked tokens
    q.set(i, 0.5 * random.normal() + 0.7 * direction[static_cast<std::size_t>(i % heads.width)]);
  const DeviceStep arrays(backend, step);
  const DeviceArray q_array(backend, q);
  const DeviceCache placed(backend, cache, quantized);
  std::string faults =
      fault_of("reserve", backend.reserve(with_glm47_facts({.tokens_max = tokens,
                                                            .sequences_max = 1,
                                                            .context_max = kContext,
                                                            .logit_rows_max = 1,
                                                            .vocabulary = 1})));
  const DeviceActivation out(backend, tokens, row_width, with_values(random_needs(random)));
  faults += fault_of("attention",
                     backend.attention(out.view(), q_array.view(), placed.kv, arrays.batch, heads));
  const HostTensor got = out.values.get();
  for (std::int64_t i = 0; i < got.elements(); ++i)
    if (!std::isfinite(got.at(i)))
      return faults + "row " + std::to_string(i / row_width) + " is not finite\n";
  // The last row and one of the others, a head each; of a decoded row both heads.
  for (const std::int64_t head : {0, 1}) {
    const std::int64_t row = head == 0 || tokens == 1 ? tokens - 1 : random.integer(0, tokens - 2);
    const Attended one =
        attend(step, step.sequences[0], cache, q, row, head, kContext - tokens + row + 1, options);
    HostTensor part(DType::bf16, {1, heads.width});
    for (std::int64_t i = 0; i < heads.width; ++i)
      part.set(i, got.at(row * row_width + head * heads.width + i));
    faults += compare_bounds("row " + std::to_string(row) + ", head " + std::to_string(head), part,
                             one.out, one.bounds, heads.width);
  }
  return faults + out.check_quantized("out") + out.guard_fault("out");
}

/// Padding: token rows and sequences at the end that belong to nobody must come out finite.
std::string run_padding(Backend& backend, std::uint64_t seed, const OpCaseOptions&) {
  Random random(seed);
  Step step = random_step(random, false);
  step.sequences.resize(1);
  step.sequences[0].queries = 1;
  step.decodes = 1;
  const Cache cache = random_cache(random, step);
  const HeadShape& heads = step.heads;
  const std::int64_t padding = random.integer(1, 5);
  const std::int64_t tokens = 1 + padding;
  const HostTensor q =
      random_values(random, DType::bf16, {tokens, heads.query_heads, heads.width}, Spread::normal);
  DeviceStep arrays(backend, step);
  std::vector<std::int64_t> positions(static_cast<std::size_t>(tokens), 0);
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> contexts(static_cast<std::size_t>(tokens), 0);
  positions[0] = step.sequences[0].context - 1;
  contexts[0] = step.sequences[0].context;
  for (std::int64_t s = 0; s <= tokens; ++s) starts.push_back(s);
  HostTensor table(DType::i32, {tokens, arrays.tables.view().size(1)});
  const HostTensor first = arrays.tables.get();
  for (std::int64_t i = 0; i < table.elements(); ++i)
    table.set(i, i < first.elements() ? first.at(i) : 1e9);
  const DeviceArray position_array(backend, integers(DType::i32, positions));
  const DeviceArray start_array(backend, integers(DType::i32, starts));
  const DeviceArray context_array(backend, integers(DType::i32, contexts));
  const DeviceArray table_array(backend, table);
  Batch batch = arrays.batch;
  batch.positions = position_array.view();
  batch.query_starts = start_array.view();
  batch.context_lengths = context_array.view();
  batch.page_tables = table_array.view();
  batch.tokens = tokens;
  batch.sequences = tokens;
  batch.decodes = tokens;
  const DeviceArray q_array(backend, q);
  const DeviceArray k(backend, cache.k);
  const DeviceArray v(backend, cache.v);
  const KvLayer kv{k.view(), v.view(), {}, {}};
  const std::int64_t row_width = heads.query_heads * heads.width;
  const DeviceActivation out(backend, tokens, row_width, with_values({}));
  std::string faults =
      fault_of("attention", backend.attention(out.view(), q_array.view(), kv, batch, heads));
  const HostTensor got = out.values.get();
  for (std::int64_t i = row_width; i < got.elements(); ++i)
    if (!std::isfinite(got.at(i))) {
      faults += "padding row " + std::to_string(i / row_width) + " is not finite\n";
      break;
    }
  return faults + out.guard_fault("out");
}

}  // namespace

std::vector<OpCase> attention_cases() {
  struct Named {
    const char* name;
    Step (*draw)(Random& random, bool quantized);
    bool large;
  };
  std::vector<OpCase> cases;
  for (const Named& named : {Named{"attention", random_step, false},
                             {"attention_long", random_long_step, true},
                             {"attention_prompt", random_prompt_step, true},
                             {"attention_full_batch", random_full_batch_step, true}})
    for (const bool quantized : {false, true})
      cases.push_back({std::string(named.name) + (quantized ? "_e4m3" : "_bf16"),
                       [=](Backend& backend, std::uint64_t seed, const OpCaseOptions& options) {
                         return run_attention(backend, seed, options, quantized, named.draw);
                       },
                       named.large});
  for (const bool decodes : {true, false})
    for (const bool quantized : {false, true}) {
      std::string name = decodes ? "attention_decode_of_131072" : "attention_prompt_of_131072";
      name += quantized ? "_e4m3" : "_bf16";
      cases.push_back({name,
                       [=](Backend& backend, std::uint64_t seed, const OpCaseOptions& options) {
                         return run_longest(backend, seed, options, quantized, decodes);
                       },
                       true, 1});
    }
  cases.push_back({"attention_padding", run_padding});
  return cases;
}

}  // namespace koho::testing
