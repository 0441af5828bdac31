// SPDX-License-Identifier: Apache-2.0
#include "scheduler/arrival_list.h"

namespace koho {

void ArrivalList::insert(std::vector<Sequence>& sequences, Links links, Sequence& sequence) {
  const auto at = [&](std::int32_t index) -> Sequence& {
    return sequences[static_cast<std::size_t>(index)];
  };
  const auto links_of = [&](std::int32_t index) -> ListLinks& { return at(index).*links; };
  const std::int32_t index = sequence.id.index;
  // Newcomers are the youngest; returners are older than all who were never admitted.
  std::int32_t before = tail_;
  if (before != -1 && at(before).arrival > sequence.arrival) {
    std::int32_t after = head_;
    if (returned_ != -1) {
      const std::int32_t older = links_of(returned_).previous;
      const bool directly = older == -1 || at(older).arrival < sequence.arrival;
      if (directly || at(returned_).arrival < sequence.arrival) after = returned_;
    }
    while (at(after).arrival < sequence.arrival) after = links_of(after).next;
    before = links_of(after).previous;
    returned_ = index;
  }
  const std::int32_t after = before == -1 ? head_ : links_of(before).next;
  sequence.*links = {.next = after, .previous = before};
  (before == -1 ? head_ : links_of(before).next) = index;
  (after == -1 ? tail_ : links_of(after).previous) = index;
}

void ArrivalList::remove(std::vector<Sequence>& sequences, Links links, Sequence& sequence) {
  const auto links_of = [&](std::int32_t index) -> ListLinks& {
    return sequences[static_cast<std::size_t>(index)].*links;
  };
  const auto [after, before] = sequence.*links;
  if (returned_ == sequence.id.index) returned_ = before;
  (before == -1 ? head_ : links_of(before).next) = after;
  (after == -1 ? tail_ : links_of(after).previous) = before;
  sequence.*links = {};
}

}  // namespace koho
