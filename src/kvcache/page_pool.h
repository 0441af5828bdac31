// SPDX-License-Identifier: Apache-2.0
// The page pool: which cache pages are free, who owns how many references to the others, and in
// which order idle cached pages may be taken back. Knows numbers, never bytes; allocates nothing
// after construction; every operation is O(1). Compaction is never needed: sequences reach their
// pages through tables, so any free page of a partition is as good as any other.
//
// Partitions are equal runs of pages, each with lists of its own. There is one, unless ranks hold
// pages of their own (data-parallel attention): then a partition is a rank's cache.
#pragma once

#include <cstdint>
#include <vector>

namespace koho {

/// A page's number, 0 <= id < pages of the pool.
using PageId = std::int32_t;
inline constexpr PageId kNoPage = -1;

/// A page as its owner knows it. The generation is the page's tag at the time it was taken: it
/// changes whenever the page is taken anew, so a handle that outlived its ownership is noticed.
struct PageHandle {
  PageId page = kNoPage;
  std::uint32_t generation = 0;

  bool operator==(const PageHandle&) const = default;
};

/// Every page is in exactly one state: free; owned (one or more references); idle (no reference,
/// but the prefix cache can still find it). Idle pages queue least recently used first.
/// Threads: one at a time.
class PagePool {
 public:
  /// Requires: pages > 0, a multiple of partitions > 0.
  explicit PagePool(std::int32_t pages, std::int32_t partitions = 1);

  /// A free page of the partition with one reference and a new generation, or kNoPage.
  PageHandle allocate(std::int32_t partition = 0);
  /// One more reference to an owned or idle page.
  PageHandle share(PageId page);
  /// One reference less. With the last one the page becomes idle if it is cached, else free.
  void release(PageHandle handle);

  /// The prefix cache can find this page from now on. Requires: owned, not cached.
  void set_cached(PageId page);
  /// The partition's idle page that was used longest ago, or kNoPage.
  PageId oldest_idle(std::int32_t partition = 0) const { return idle_of(partition).head; }
  /// Takes an idle page out of the cache: it becomes free.
  void reclaim(PageId page);

  std::int32_t ref_count(PageId page) const { return at(page).ref_count; }
  bool cached(PageId page) const { return at(page).cached; }
  std::uint32_t generation(PageId page) const { return at(page).generation; }
  /// Whether the handle still names the page it was given for.
  bool current(PageHandle handle) const {
    return at(handle.page).generation == handle.generation && at(handle.page).ref_count > 0;
  }

  std::int32_t total() const { return static_cast<std::int32_t>(pages_.size()); }
  std::int32_t partitions() const { return static_cast<std::int32_t>(free_.size()); }
  std::int32_t partition_of(PageId page) const { return page / pages_per_partition_; }
  std::int32_t free() const { return free_count_; }
  std::int32_t idle() const { return idle_count_; }
  std::int32_t owned() const { return total() - free() - idle(); }
  /// Pages that an allocation in the partition can have, now or after evicting idle ones.
  std::int32_t available(std::int32_t partition = 0) const {
    return free_[static_cast<std::size_t>(partition)].count + idle_of(partition).count;
  }

 private:
  struct Page {
    std::uint32_t generation = 0;
    std::int32_t ref_count = 0;
    PageId next = kNoPage;  // within free_ or idle_
    PageId previous = kNoPage;
    bool cached = false;
  };
  struct List {
    PageId head = kNoPage;
    PageId tail = kNoPage;
    std::int32_t count = 0;
  };

  const Page& at(PageId page) const { return pages_[static_cast<std::size_t>(page)]; }
  Page& at(PageId page) { return pages_[static_cast<std::size_t>(page)]; }
  const List& idle_of(std::int32_t partition) const {
    return idle_[static_cast<std::size_t>(partition)];
  }
  /// Into, or out of, the page's partition's list.
  void append(std::vector<List>& lists, PageId page);
  void remove(std::vector<List>& lists, PageId page);
  std::int32_t& count_of(const std::vector<List>& lists) {
    return &lists == &free_ ? free_count_ : idle_count_;
  }

  std::vector<Page> pages_;
  std::int32_t pages_per_partition_;
  std::vector<List> free_;  // by partition
  std::vector<List> idle_;
  std::int32_t free_count_ = 0;  // of all partitions
  std::int32_t idle_count_ = 0;
};

}  // namespace koho
