// SPDX-License-Identifier: Apache-2.0
#include "bench/operators/attention_step.h"

#include <algorithm>
#include <cmath>

#include "base/arithmetic.h"

namespace koho::bench {

std::int64_t Step::tokens() const {
  std::int64_t sum = 0;
  for (const Sequence& sequence : sequences) sum += sequence.queries;
  return sum;
}

std::int64_t Step::context_max() const {
  std::int64_t most = 0;
  for (const Sequence& sequence : sequences) most = std::max(most, sequence.context);
  return most;
}

Cache::Cache(const Step& step) {
  const DType dtype = step.quantized ? DType::f8_e4m3 : DType::bf16;
  const std::int64_t kv_heads = step.heads.kv_heads;
  k = v = HostTensor(dtype, {step.pages, kv_heads, kPageTokens, step.heads.width});
  k_scales = v_scales = HostTensor(DType::f32, {step.pages, kv_heads, kPageTokens});
  for (HostTensor* tensor : {&k, &v, &k_scales, &v_scales})
    std::fill(tensor->bytes.begin(), tensor->bytes.end(), std::byte{0xFF});
}

void place_pages(Random& random, Step& step, std::int64_t holes) {
  std::int64_t needed = 0;
  for (const Sequence& sequence : step.sequences) needed += ceil_div(sequence.context, kPageTokens);
  step.pages = needed + holes;
  std::vector<std::int64_t> numbers;
  for (std::int64_t page = 0; page < step.pages; ++page) numbers.push_back(page);
  random.shuffle(numbers);
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

std::int64_t cache_row(const Step& step,
                       const Sequence& sequence,
                       std::int64_t token,
                       std::int64_t head) {
  const std::int64_t page = sequence.pages[static_cast<std::size_t>(token / kPageTokens)];
  return (page * step.heads.kv_heads + head) * kPageTokens + token % kPageTokens;
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
  place_pages(random, step, random.integer(0, 4));
  return step;
}

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
  place_pages(random, step, random.integer(0, 4));
  return step;
}

Step random_decodes_step(Random& random, bool quantized) {
  Step step;
  step.quantized = quantized;
  const std::int64_t kv_heads = random.pick({1, 1, 2});
  step.heads = {kv_heads * 12, kv_heads, 128, 64};
  const bool many = random.chance(0.4);
  step.decodes = many ? random.integer(130, 260) : random.integer(34, 70);
  for (std::int64_t i = 0; i < step.decodes; ++i)
    step.sequences.push_back({random.integer(1, many ? 160 : 1300), 1, {}});
  place_pages(random, step, random.integer(0, 4));
  return step;
}

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
  place_pages(random, step, random.integer(0, 4));
  return step;
}

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
  place_pages(random, step, random.integer(0, 4));
  return step;
}

Cache random_cache(Random& random, const Step& step) {
  const DType dtype = step.quantized ? DType::f8_e4m3 : DType::bf16;
  const std::int64_t width = step.heads.width;
  Cache cache(step);
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

Cache long_cache(Random& random,
                 const Step& step,
                 const std::vector<double>& direction,
                 const std::vector<std::int64_t>& marked) {
  constexpr std::int64_t kRandom = 4096;
  const DType dtype = step.quantized ? DType::f8_e4m3 : DType::bf16;
  const std::int64_t width = step.heads.width;
  const std::int64_t bytes = dtype_bytes(dtype);
  const Sequence& sequence = step.sequences[0];
  Cache cache(step);
  const HostTensor chosen = step.quantized
                                ? random_quantized(random, {kRandom / width, width}, Spread::normal)
                                : random_values(random, dtype, {1, kRandom}, Spread::normal);
  // The largest of a random row's quantised values is near 448, some 3 deviations.
  const auto random_scale = [&] { return 3.0 / 448.0 * std::exp(0.3 * random.normal()); };
  for (std::int64_t token = 0; token < sequence.context; ++token) {
    const std::int64_t at = cache_row(step, sequence, token, 0);
    for (HostTensor* tensor : {&cache.k, &cache.v}) {
      std::byte* row = tensor->bytes.data() + at * width * bytes;
      for (std::int64_t i = 0; i < width; i += 4) {  // 12 bits an element
        std::uint64_t places = random.bits();
        for (std::int64_t j = i; j < i + 4; ++j, places >>= 12U)
          std::copy_n(chosen.bytes.data() + static_cast<std::int64_t>(places % kRandom) * bytes,
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

Cache moved_cache(const Step& from, const Sequence& sequence, const Cache& cache, const Step& to) {
  Cache moved(to);
  const std::int64_t width = from.heads.width;
  for (std::int64_t head = 0; head < from.heads.kv_heads; ++head)
    for (std::int64_t token = 0; token < to.sequences[0].context; ++token) {
      const std::int64_t source = cache_row(from, sequence, token, head);
      const std::int64_t target = cache_row(to, to.sequences[0], token, head);
      for (std::int64_t i = 0; i < width; ++i) {
        moved.k.set(target * width + i, cache.k.at(source * width + i));
        moved.v.set(target * width + i, cache.v.at(source * width + i));
      }
      moved.k_scales.set(target, cache.k_scales.at(source));
      moved.v_scales.set(target, cache.v_scales.at(source));
    }
  return moved;
}

}  // namespace koho::bench
