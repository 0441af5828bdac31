// SPDX-License-Identifier: Apache-2.0
#include "kvcache/page_pool.h"

#include "base/check.h"

namespace koho {

PagePool::PagePool(std::int32_t pages) {
  KOHO_CHECK_GT(pages, 0);
  pages_.resize(static_cast<std::size_t>(pages));
  for (PageId page = 0; page < pages; ++page) append(free_, page);
}

PageHandle PagePool::allocate() {
  const PageId id = free_.head;
  if (id == kNoPage) return {};
  remove(free_, id);
  Page& page = at(id);
  KOHO_CHECK_EQ(page.owners, 0);
  KOHO_CHECK(!page.cached);
  page.owners = 1;
  ++page.generation;
  return {id, page.generation};
}

PageHandle PagePool::share(PageId id) {
  Page& page = at(id);
  KOHO_CHECK(page.owners > 0 || page.cached);
  if (page.owners == 0) remove(idle_, id);
  ++page.owners;
  return {id, page.generation};
}

void PagePool::release(PageHandle handle) {
  Page& page = at(handle.page);
  KOHO_CHECK_GT(page.owners, 0);
  KOHO_CHECK_EQ(page.generation, handle.generation);
  --page.owners;
  if (page.owners == 0) append(page.cached ? idle_ : free_, handle.page);
}

void PagePool::set_cached(PageId id) {
  Page& page = at(id);
  KOHO_CHECK_GT(page.owners, 0);
  KOHO_CHECK(!page.cached);
  page.cached = true;
}

void PagePool::reclaim(PageId id) {
  Page& page = at(id);
  KOHO_CHECK_EQ(page.owners, 0);
  KOHO_CHECK(page.cached);
  page.cached = false;
  remove(idle_, id);
  append(free_, id);
}

void PagePool::append(List& list, PageId id) {
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
}

void PagePool::remove(List& list, PageId id) {
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
}

}  // namespace koho
