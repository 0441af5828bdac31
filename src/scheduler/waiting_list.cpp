// SPDX-License-Identifier: Apache-2.0
// One list a priority, each by arrival; the best of their heads is next.
#include "scheduler/waiting_list.h"

namespace koho {

void WaitingList::insert(Sequence& sequence) {
  lists_[static_cast<std::size_t>(sequence.priority)].insert(sequences_, &Sequence::of_priority,
                                                             sequence);
  ++size_;
}

void WaitingList::remove(Sequence& sequence) {
  lists_[static_cast<std::size_t>(sequence.priority)].remove(sequences_, &Sequence::of_priority,
                                                             sequence);
  --size_;
}

Sequence* WaitingList::first() const {
  Sequence* best = nullptr;
  for (const ArrivalList& list : lists_)
    if (list.head() != -1 && (best == nullptr || precedes(at(list.head()), *best)))
      best = &at(list.head());
  return best;
}

bool WaitingList::precedes(const Sequence& a, const Sequence& b) const {
  const auto precedence = [this](const Sequence& sequence) {
    return sequence.submitted_step + sequence.priority * aging_steps_;
  };
  return precedence(a) < precedence(b) || (precedence(a) == precedence(b) && a.arrival < b.arrival);
}

}  // namespace koho
