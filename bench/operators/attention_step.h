// SPDX-License-Identifier: Apache-2.0
// What one call of attention works on: the sequences of a step, the pages their contexts lie in,
// and the keys and values in those pages.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/operators/host_tensor.h"
#include "bench/operators/random.h"
#include "ops/backend.h"

namespace koho::bench {

/// One sequence of a step: its last `queries` tokens are this step's. A fork's first pages are
/// those of the sequence before it.
struct Sequence {
  std::int64_t context = 0;
  std::int64_t queries = 0;
  std::vector<std::int64_t> pages{};
  std::int64_t shared_pages = 0;
};

/// A step: sequences, decodes first.
struct Step {
  HeadShape heads;
  std::vector<Sequence> sequences;
  std::int64_t pages = 0;
  std::int64_t decodes = 0;
  bool quantized = false;  // e4m3 pages
  /// Half of v's quantised values are zero, so that small weights make up some elements.
  bool sparse = false;

  std::int64_t tokens() const;
  std::int64_t context_max() const;
};

/// Keys and values [N, K, 64, D] with scales [N, K, 64] of e4m3 pages; what no sequence owns is
/// poison.
struct Cache {
  HostTensor k, v, k_scales, v_scales;

  /// All of it poison.
  explicit Cache(const Step& step);
};

/// Gives the sequences pages in a random order; `holes` pages more exist.
void place_pages(Random& random, Step& step, std::int64_t holes);

/// Where (sequence, token, head) lies, counted in rows of a cache tensor.
std::int64_t cache_row(const Step& step,
                       const Sequence& sequence,
                       std::int64_t token,
                       std::int64_t head);

// ---- random steps

/// Some decodes and some chunks of prompts, short ones.
Step random_step(Random& random, bool quantized);
/// Contexts of many pages: several long ones, very many of some pages; or very many short ones.
Step random_long_step(Random& random, bool quantized);
/// Decodes alone, as many as fill a GPU: of one to three chunks of context, or of less than one.
Step random_decodes_step(Random& random, bool quantized);
/// A chunk of a prompt beside cached context, of several tiles, and often a fork of it.
Step random_prompt_step(Random& random, bool quantized);
/// Chunks of so many prompts beside a few decodes that there are more tiles than multiprocessors,
/// of unequal lengths: most of one row, some of several tiles, often one with a context so long
/// that not all of them can be upcast at once.
Step random_full_batch_step(Random& random, bool quantized);

Cache random_cache(Random& random, const Step& step);
/// Keys and values of one long sequence, quickly: elements are picked from a few thousand random
/// ones. The tokens of `marked` have keys along `direction`, a sign a column.
Cache long_cache(Random& random,
                 const Step& step,
                 const std::vector<double>& direction,
                 const std::vector<std::int64_t>& marked);
/// The cache of `to`, whose only sequence holds the first tokens of `sequence`, a part of `from`.
Cache moved_cache(const Step& from, const Sequence& sequence, const Cache& cache, const Step& to);

}  // namespace koho::bench
