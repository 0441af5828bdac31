// SPDX-License-Identifier: Apache-2.0
// One list a priority, each by arrival; the best of their heads is next.
#include "scheduler/waiting_list.h"

namespace koho {

void WaitingList::insert(Sequence& sequence) {
  Ends& list = lists_[static_cast<std::size_t>(sequence.priority)];
  const std::int32_t index = sequence.id.index;
  // Newcomers are the youngest; returners are older than all who were never admitted.
  std::int32_t before = list.tail;
  if (before != -1 && at(before).arrival > sequence.arrival) {
    std::int32_t after = start_of_walk(list, sequence);
    while (at(after).arrival < sequence.arrival) after = at(after).next;
    before = at(after).previous;
    list.returned = index;
  }
  const std::int32_t after = before == -1 ? list.head : at(before).next;
  sequence.previous = before;
  sequence.next = after;
  (before == -1 ? list.head : at(before).next) = index;
  (after == -1 ? list.tail : at(after).previous) = index;
  ++size_;
}

std::int32_t WaitingList::start_of_walk(const Ends& list, const Sequence& sequence) const {
  if (list.returned == -1) return list.head;
  const Sequence& last = at(list.returned);
  const bool directly = last.previous == -1 || at(last.previous).arrival < sequence.arrival;
  return directly || last.arrival < sequence.arrival ? list.returned : list.head;
}

void WaitingList::remove(Sequence& sequence) {
  Ends& list = lists_[static_cast<std::size_t>(sequence.priority)];
  if (list.returned == sequence.id.index) list.returned = sequence.previous;
  (sequence.previous == -1 ? list.head : at(sequence.previous).next) = sequence.next;
  (sequence.next == -1 ? list.tail : at(sequence.next).previous) = sequence.previous;
  sequence.previous = -1;
  sequence.next = -1;
  --size_;
}

Sequence* WaitingList::first() const {
  Sequence* best = nullptr;
  for (const Ends& list : lists_)
    if (list.head != -1 && (best == nullptr || precedes(at(list.head), *best)))
      best = &at(list.head);
  return best;
}

bool WaitingList::precedes(const Sequence& a, const Sequence& b) const {
  const auto precedence = [this](const Sequence& sequence) {
    return sequence.submitted_step + sequence.priority * aging_steps_;
  };
  return precedence(a) < precedence(b) || (precedence(a) == precedence(b) && a.arrival < b.arrival);
}

}  // namespace koho
