// SPDX-License-Identifier: Apache-2.0
// Two intrusive lists a partition, free and idle; a page is in one of them or owned.
#include "kvcache/page_pool.h"

#include "base/check.h"

namespace koho {

PagePool::PagePool(std::int32_t pages, std::int32_t partitions)
    : pages_(static_cast<std::size_t>(pages)),
      pages_per_partition_(pages / partitions),
      free_(static_cast<std::size_t>(partitions)),
      idle_(static_cast<std::size_t>(partitions)) {
  KOHO_CHECK_GT(pages, 0);
  KOHO_CHECK_EQ(pages % partitions, 0);
  for (PageId page = 0; page < pages; ++page) append(free_, page);
}

PageHandle PagePool::allocate(std::int32_t partition) {
  const PageId id = free_[static_cast<std::size_t>(partition)].head;
  if (id == kNoPage) return {};
  remove(free_, id);
  Page& page = at(id);
  KOHO_CHECK_EQ(page.ref_count, 0);
  KOHO_CHECK(!page.cached);
  page.ref_count = 1;
  ++page.generation;
  return {id, page.generation};
}

PageHandle PagePool::share(PageId id) {
  Page& page = at(id);
  KOHO_CHECK(page.ref_count > 0 || page.cached);
  if (page.ref_count == 0) remove(idle_, id);
  ++page.ref_count;
  return {id, page.generation};
}

void PagePool::release(PageHandle handle) {
  Page& page = at(handle.page);
  KOHO_CHECK_GT(page.ref_count, 0);
  KOHO_CHECK_EQ(page.generation, handle.generation);
  --page.ref_count;
  if (page.ref_count == 0) append(page.cached ? idle_ : free_, handle.page);
}

void PagePool::set_cached(PageId id) {
  Page& page = at(id);
  KOHO_CHECK_GT(page.ref_count, 0);
  KOHO_CHECK(!page.cached);
  page.cached = true;
}

void PagePool::reclaim(PageId id) {
  Page& page = at(id);
  KOHO_CHECK_EQ(page.ref_count, 0);
  KOHO_CHECK(page.cached);
  page.cached = false;
  remove(idle_, id);
  append(free_, id);
}

void PagePool::append(std::vector<List>& lists, PageId id) {
  List& list = lists[static_cast<std::size_t>(partition_of(id))];
  Page& page = at(id);
  page.previous = list.tail;
  page.next = kNoPage;
  if (list.tail != kNoPage) {
    at(list.tail).next = id;
  } else {
    list.head = id;
  }
  list.tail = id;
  ++list.count;
  ++count_of(lists);
}

void PagePool::remove(std::vector<List>& lists, PageId id) {
  List& list = lists[static_cast<std::size_t>(partition_of(id))];
  Page& page = at(id);
  if (page.previous != kNoPage) {
    at(page.previous).next = page.next;
  } else {
    list.head = page.next;
  }
  if (page.next != kNoPage) {
    at(page.next).previous = page.previous;
  } else {
    list.tail = page.previous;
  }
  --list.count;
  --count_of(lists);
}

}  // namespace koho
