// SPDX-License-Identifier: Apache-2.0
// The prefix cache: finds the full pages that already hold the keys and values of a prompt's
// beginning. A page is found by a keyed 128-bit hash chained over the pages before it, and believed
// only if its tokens, its predecessor and, for a first page, the tenant's salt are equal: a forged
// collision costs a comparison, never a wrong answer. Sized at construction; allocates nothing
// after it; each operation is O(1) a page.
//
// A page is equal only if as many of its tokens were *given*, with a prompt, and the others output:
// keys and values of both may differ in their last bits (Limits::redecodes_output).
//
// A partition of the pool has its own pages, so what one holds another may hold again; a sequence
// finds the pages of its own partition only.
//
// Eviction takes the least recently used idle page. Children go before their parents by
// construction: whoever owns a cached page owns its predecessors (the scheduler takes over the page
// already cached when it computed an equal one), and sequences release their pages last to first.
//
// A tier in host memory would join at two places and nowhere else: `evict_oldest` is where a page's
// key, tokens and number are last known together (copy out), and the first miss in `match` is where
// a key is known that the device does not hold (copy in, as page copies of the plan).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/page_pool.h"

namespace koho {

using Token = std::int32_t;

/// Separates tenants: a page is found only under the salt that it was computed under.
struct CacheSalt {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  bool operator==(const CacheSalt&) const = default;
};

class PrefixCache {
 public:
  /// `seed` is random per process, so that no client can prepare colliding prompts.
  PrefixCache(PagePool& pool,
              std::int32_t tokens_per_page,
              const std::array<std::uint64_t, 4>& seed);

  /// Takes references to the longest cached run of full pages that begins `tokens`, of which the
  /// first `given` were given, appends them to `pages` and returns their number. Never the whole
  /// prompt: at least one token is left over, as its logits are wanted.
  std::int32_t match(std::span<const Token> tokens,
                     std::int32_t given,
                     const CacheSalt& salt,
                     std::vector<PageHandle>& pages,
                     std::int32_t partition = 0);
  /// How many pages match() would find in each partition; takes no reference.
  void count_matches(std::span<const Token> tokens,
                     std::int32_t given,
                     const CacheSalt& salt,
                     std::span<std::int32_t> pages_by_partition);

  /// Makes a full page findable behind `parent` (kNoPage: a first page) and returns the page that
  /// stands for these tokens: `page`, or the one that was there already in its partition, which the
  /// caller then uses instead of its own. From its beginning on `given` tokens were given: none if
  /// that is not positive, all if it is more than the page has.
  /// Requires: tokens.size() == tokens_per_page; page and parent are owned by the caller, parent is
  /// cached.
  PageId insert(PageId parent,
                const CacheSalt& salt,
                std::span<const Token> tokens,
                std::int32_t given,
                PageId page);

  /// Forgets the partition's idle page that was used longest ago; false if there is none.
  bool evict_oldest(std::int32_t partition = 0);
  /// Forgets all pages: the device lost their bytes. Requires: no page is owned.
  void clear();

  std::int32_t tokens_per_page() const { return tokens_per_page_; }
  /// Pages that can be found, idle or owned.
  std::int32_t size() const { return size_; }
  std::uint64_t evictions() const { return evictions_; }
  /// What a cached page holds. Requires: cached.
  std::span<const Token> tokens(PageId page) const;
  PageId parent(PageId page) const { return at(page).parent; }
  std::int32_t children(PageId page) const { return at(page).children; }

 private:
  struct Key {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    bool operator==(const Key&) const = default;
  };
  /// One per page of the pool; meaningful while the page is cached.
  struct Entry {
    Key key;
    CacheSalt salt;
    PageId parent = kNoPage;
    PageId bucket_next = kNoPage;
    std::int32_t children = 0;
    std::int32_t given = 0;
  };
  /// A page's tokens, as they are looked for.
  struct Wanted {
    std::span<const Token> tokens;
    std::int32_t given = 0;
  };
  /// The first page of `tokens`, of which the first `given` were given, if any.
  Wanted first_page(std::span<const Token> tokens, std::int32_t given) const;
  /// Page `index` of a sequence whose first `given` tokens were given.
  Wanted page_of(std::span<const Token> tokens, std::int32_t given, std::size_t index) const;

  const Entry& at(PageId page) const { return entries_[static_cast<std::size_t>(page)]; }
  Entry& at(PageId page) { return entries_[static_cast<std::size_t>(page)]; }
  std::size_t bucket(const Key& key) const { return key.low & (buckets_.size() - 1); }
  /// `before`: the predecessor's key, or null for a first page.
  Key key_of(const Key* before, const CacheSalt& salt, const Wanted& wanted);
  const Key* key_at(PageId page) const { return page == kNoPage ? nullptr : &at(page).key; }
  PageId find(const Key& key,
              PageId parent,
              const CacheSalt& salt,
              const Wanted& wanted,
              std::int32_t partition) const;
  void forget(PageId page);

  PagePool& pool_;
  std::int32_t tokens_per_page_;
  std::array<std::byte, 192> secret_{};
  std::uint64_t seed_;
  std::vector<Entry> entries_;
  std::vector<Token> tokens_;      // [pages, tokens_per_page]
  std::vector<PageId> buckets_;    // heads of chains through bucket_next; a power of two
  std::vector<std::byte> hashed_;  // under the hash: predecessor's key, tokens, how many are given
  std::vector<PageId> parents_;    // by partition, while matches are counted
  std::int32_t size_ = 0;
  std::uint64_t evictions_ = 0;
};

}  // namespace koho
