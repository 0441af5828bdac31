// SPDX-License-Identifier: Apache-2.0
// The sequences that wait for admission: one list a priority, each in order of arrival, linked
// through the sequences themselves.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "scheduler/arrival_list.h"
#include "scheduler/limits.h"
#include "scheduler/sequence.h"

namespace koho {

class WaitingList {
 public:
  WaitingList(std::vector<Sequence>& sequences, std::int32_t aging_steps)
      : sequences_(sequences), aging_steps_(aging_steps) {}

  /// In its place by arrival (ArrivalList::insert).
  void insert(Sequence& sequence);
  void remove(Sequence& sequence);
  /// Who is to be admitted next, or nullptr: whom nobody else precedes.
  Sequence* first() const;
  /// Within a priority the first come; between priorities the lowest
  /// `submitted_step + priority * aging_steps`, then the first come.
  bool precedes(const Sequence& a, const Sequence& b) const;
  std::int32_t size() const { return size_; }

 private:
  Sequence& at(std::int32_t index) const { return sequences_[static_cast<std::size_t>(index)]; }

  std::vector<Sequence>& sequences_;
  std::int64_t aging_steps_;
  std::array<ArrivalList, kPriorities> lists_;
  std::int32_t size_ = 0;
};

}  // namespace koho
