// SPDX-License-Identifier: Apache-2.0
// Sequences in order of arrival, linked through themselves.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/sequence.h"

namespace koho {

/// A sequence can be in one list of each of its ListLinks: all calls for a list name the same.
class ArrivalList {
 public:
  using Links = ListLinks Sequence::*;

  /// In its place. O(1) for a newcomer, and beside the one that returned last: forks of one parent
  /// return together. Another that returns walks past older ones.
  void insert(std::vector<Sequence>& sequences, Links links, Sequence& sequence);
  void remove(std::vector<Sequence>& sequences, Links links, Sequence& sequence);
  /// The index of the first, or -1.
  std::int32_t head() const { return head_; }

 private:
  std::int32_t head_ = -1;
  std::int32_t tail_ = -1;
  std::int32_t returned_ = -1;  // last, or one before it
};

}  // namespace koho
