// SPDX-License-Identifier: Apache-2.0
// A hash table with chains through the pages' entries. A page's key is the hash of its
// predecessor's key and its tokens.
#include "kvcache/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/check.h"

namespace koho {

PrefixCache::PrefixCache(PagePool& pool,
                         std::int32_t tokens_per_page,
                         const std::array<std::uint64_t, 4>& seed)
    : pool_(pool), tokens_per_page_(tokens_per_page), seed_(seed[0]) {
  KOHO_CHECK_GT(tokens_per_page, 0);
  KOHO_CHECK_EQ(
      XXH3_generateSecret(secret_.data(), secret_.size(), seed.data(), sizeof(std::uint64_t) * 4),
      XXH_OK);
  const auto pages = static_cast<std::size_t>(pool.total());
  entries_.resize(pages);
  tokens_.resize(pages * static_cast<std::size_t>(tokens_per_page));
  buckets_.assign(std::bit_ceil(pages), kNoPage);
  parents_.resize(static_cast<std::size_t>(pool.partitions()));
  hashed_.resize(sizeof(Key) + static_cast<std::size_t>(tokens_per_page) * sizeof(Token) +
                 sizeof(std::int32_t));
}

PrefixCache::Wanted PrefixCache::first_page(std::span<const Token> tokens,
                                            std::int32_t given) const {
  return {.tokens = tokens.first(static_cast<std::size_t>(tokens_per_page_)),
          .given = std::clamp(given, 0, tokens_per_page_)};
}

PrefixCache::Wanted PrefixCache::page_of(std::span<const Token> tokens,
                                         std::int32_t given,
                                         std::size_t index) const {
  const auto first = static_cast<std::int32_t>(index) * tokens_per_page_;
  return first_page(tokens.subspan(static_cast<std::size_t>(first)), given - first);
}

std::int32_t PrefixCache::match(std::span<const Token> tokens,
                                std::int32_t given,
                                const CacheSalt& salt,
                                std::vector<PageHandle>& pages,
                                std::int32_t partition) {
  if (size_ == 0 || tokens.empty()) return 0;
  const auto page_tokens = static_cast<std::size_t>(tokens_per_page_);
  const std::size_t pages_max = (tokens.size() - 1) / page_tokens;
  PageId parent = kNoPage;
  std::int32_t matched = 0;
  for (std::size_t i = 0; i < pages_max; ++i) {
    const Wanted wanted = page_of(tokens, given, i);
    const Key key = key_of(key_at(parent), salt, wanted);
    const PageId page = find(key, parent, salt, wanted, partition);
    if (page == kNoPage) break;
    pages.push_back(pool_.share(page));
    parent = page;
    ++matched;
  }
  return matched;
}

void PrefixCache::count_matches(std::span<const Token> tokens,
                                std::int32_t given,
                                const CacheSalt& salt,
                                std::span<std::int32_t> pages_by_partition) {
  KOHO_CHECK_EQ(pages_by_partition.size(), parents_.size());
  std::ranges::fill(pages_by_partition, 0);
  if (size_ == 0 || tokens.empty()) return;
  std::ranges::fill(parents_, kNoPage);
  const auto page_tokens = static_cast<std::size_t>(tokens_per_page_);
  Key before;
  bool found = true;
  for (std::size_t i = 0; found && (i + 1) * page_tokens < tokens.size(); ++i) {
    const Wanted wanted = page_of(tokens, given, i);
    const Key key = key_of(i == 0 ? nullptr : &before, salt, wanted);
    found = false;
    for (std::size_t p = 0; p < parents_.size(); ++p) {
      if (pages_by_partition[p] != static_cast<std::int32_t>(i)) continue;  // ended earlier
      const PageId page = find(key, parents_[p], salt, wanted, static_cast<std::int32_t>(p));
      if (page == kNoPage) continue;
      parents_[p] = page;
      ++pages_by_partition[p];
      found = true;
    }
    before = key;
  }
}

PageId PrefixCache::insert(PageId parent,
                           const CacheSalt& salt,
                           std::span<const Token> tokens,
                           std::int32_t given,
                           PageId page) {
  KOHO_CHECK_EQ(tokens.size(), static_cast<std::size_t>(tokens_per_page_));
  KOHO_CHECK(parent == kNoPage || (pool_.cached(parent) && pool_.ref_count(parent) > 0));
  const Wanted wanted = first_page(tokens, given);
  const Key key = key_of(key_at(parent), salt, wanted);
  const PageId known = find(key, parent, salt, wanted, pool_.partition_of(page));
  if (known != kNoPage) return known;

  pool_.set_cached(page);
  PageId& head = buckets_[bucket(key)];
  at(page) = {.key = key,
              .salt = salt,
              .parent = parent,
              .bucket_next = head,
              .children = 0,
              .given = wanted.given};
  head = page;
  if (parent != kNoPage) ++at(parent).children;
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<std::ptrdiff_t>(page) * tokens_per_page_);
  ++size_;
  return page;
}

bool PrefixCache::evict_oldest(std::int32_t partition) {
  const PageId page = pool_.oldest_idle(partition);
  if (page == kNoPage) return false;
  forget(page);
  ++evictions_;
  return true;
}

void PrefixCache::clear() {
  KOHO_CHECK_EQ(pool_.owned(), 0);
  for (std::int32_t partition = 0; partition < pool_.partitions(); ++partition)
    while (pool_.oldest_idle(partition) != kNoPage) forget(pool_.oldest_idle(partition));
  KOHO_CHECK_EQ(size_, 0);
}

std::span<const Token> PrefixCache::tokens(PageId page) const {
  const auto page_tokens = static_cast<std::size_t>(tokens_per_page_);
  return std::span(tokens_).subspan(static_cast<std::size_t>(page) * page_tokens, page_tokens);
}

PrefixCache::Key PrefixCache::key_of(const Key* before,
                                     const CacheSalt& salt,
                                     const Wanted& wanted) {
  if (before == nullptr) {
    std::memcpy(hashed_.data(), &salt, sizeof(Key));
  } else {
    std::memcpy(hashed_.data(), before, sizeof(Key));
  }
  std::memcpy(hashed_.data() + sizeof(Key), wanted.tokens.data(), wanted.tokens.size_bytes());
  std::memcpy(hashed_.data() + sizeof(Key) + wanted.tokens.size_bytes(), &wanted.given,
              sizeof(wanted.given));
  const XXH128_hash_t hash = XXH3_128bits_withSecretandSeed(hashed_.data(), hashed_.size(),
                                                            secret_.data(), secret_.size(), seed_);
  return {hash.low64, hash.high64};
}

PageId PrefixCache::find(const Key& key,
                         PageId parent,
                         const CacheSalt& salt,
                         const Wanted& wanted,
                         std::int32_t partition) const {
  for (PageId page = buckets_[bucket(key)]; page != kNoPage; page = at(page).bucket_next) {
    const Entry& entry = at(page);
    if (entry.key == key && entry.parent == parent && entry.salt == salt &&
        entry.given == wanted.given && pool_.partition_of(page) == partition &&
        std::ranges::equal(tokens(page), wanted.tokens))
      return page;
  }
  return kNoPage;
}

void PrefixCache::forget(PageId page) {
  Entry& entry = at(page);
  KOHO_CHECK_EQ(entry.children, 0);
  PageId* link = &buckets_[bucket(entry.key)];
  while (*link != page) link = &at(*link).bucket_next;
  *link = entry.bucket_next;
  if (entry.parent != kNoPage) --at(entry.parent).children;
  --size_;
  pool_.reclaim(page);
}

}  // namespace koho
