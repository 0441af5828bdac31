// SPDX-License-Identifier: Apache-2.0
// The order in which most of a step's prefill is given away: the better priority, then clients
// within their share, then the prompt with the least left to compute, by size class, then the first
// come. Prompts of one class are computed one after another; a short one passes all of them.
//
// A client's share, as in start-time fair queueing: each has a count of the prefill tokens it was
// given, and is within its share up to a burst beyond the least of those that have prefill to do.
// Beyond that whoever was given least comes first. A client that begins to ask starts from that
// least count: nobody saves up a right to the whole device by having been idle.
//
// It counts each client's batch slots and pages, too: scheduler.h says what for.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/arrival_list.h"
#include "scheduler/limits.h"
#include "scheduler/sequence.h"

namespace koho {

class FairOrder {
 public:
  FairOrder(std::vector<Sequence>& sequences, std::int32_t tokens_per_page, std::int32_t burst)
      : sequences_(sequences),
        tokens_per_page_(tokens_per_page),
        burst_(static_cast<std::uint64_t>(burst)) {}

  /// Class 0: up to a page of tokens; each further class holds twice as many.
  std::int32_t size_class(std::int32_t tokens) const;

  /// A sequence was submitted, or ended. May allocate when it is submitted.
  void join(Sequence& sequence);
  void leave(Sequence& sequence);
  /// A step is planned in which those of `running` have prefill to do, beside all that wait.
  void begin_step(std::span<const std::int32_t> running);
  /// The step gives the sequence `tokens` of prefill.
  void charge(const Sequence& sequence, std::int32_t tokens);
  /// The sequence begins to wait, with about `tokens` to compute, or no longer waits: in the list
  /// of its class (ArrivalList::insert).
  void insert(Sequence& sequence, std::int32_t tokens);
  void remove(Sequence& sequence);
  /// The sequence was given a batch slot, or gives it back, with all its pages.
  void take_batch_slot(const Sequence& sequence) {
    ++client_of(sequence).batch_slots;
    client_of(sequence).pages += static_cast<std::int64_t>(sequence.pages.size());
  }
  void return_batch_slot(const Sequence& sequence) {
    --client_of(sequence).batch_slots;
    client_of(sequence).pages -= static_cast<std::int64_t>(sequence.pages.size());
  }
  /// The sequence, which runs, was given a page.
  void take_page(const Sequence& sequence) { ++client_of(sequence).pages; }
  /// Of the sequence's client.
  std::int32_t batch_slots(const Sequence& sequence) const {
    return clients_[static_cast<std::size_t>(group_of(sequence).client)].batch_slots;
  }
  /// In the page tables of its client's running sequences.
  std::int64_t pages(const Sequence& sequence) const {
    return clients_[static_cast<std::size_t>(group_of(sequence).client)].pages;
  }
  /// Indices of those that come first among the waiting ones of their client and priority. Valid
  /// until the next call, and the caller's to reorder.
  std::span<std::int32_t> heads();
  /// In this step first() looks below its size class only, among those of its client and priority.
  void pass_over(const Sequence& sequence);
  /// The first of those that wait and whose size class is below `class_end`, or nullptr.
  Sequence* first(std::int32_t class_end) const;
  /// Whether `a` comes before `b`, with so many tokens left to compute.
  bool precedes(const Sequence& a,
                std::int32_t a_tokens,
                const Sequence& b,
                std::int32_t b_tokens) const {
    return comes_before(a, size_class(a_tokens), b, size_class(b_tokens));
  }

  static constexpr std::int32_t kSizeClasses = 26;  // 2^24 tokens in pages of one

 private:
  /// The sequences of one client and priority.
  struct Group {
    std::int32_t client = -1;  // of clients_
    std::int32_t priority = 0;
    std::int32_t live = 0;  // 0: the group may be given away
    std::uint64_t served = 0;
    std::uint32_t classes = 0;      // bit i: some of class i wait
    std::uint32_t passed_over = 0;  // bit i: class i is, in this step
    std::array<ArrivalList, kSizeClasses> lists;
  };
  struct Client {
    std::uint64_t id = 0;
    std::int32_t live = 0;  // 0: may be given away
    std::int32_t batch_slots = 0;
    std::int64_t pages = 0;
  };
  Sequence& at(std::int32_t index) const { return sequences_[static_cast<std::size_t>(index)]; }
  Client& client_of(const Sequence& sequence) {
    return clients_[static_cast<std::size_t>(group_of(sequence).client)];
  }
  std::int32_t find_client(std::uint64_t id);
  std::int32_t find_group(std::int32_t client, std::int32_t priority);
  const Group& group_of(const Sequence& sequence) const {
    return groups_[static_cast<std::size_t>(sequence.group)];
  }
  bool within_share(const Group& group) const {
    return group.served <= clocks_[static_cast<std::size_t>(group.priority)] + burst_;
  }
  bool comes_before(const Sequence& a,
                    std::int32_t a_class,
                    const Sequence& b,
                    std::int32_t b_class) const;

  std::vector<Sequence>& sequences_;
  std::int32_t tokens_per_page_;
  std::uint64_t burst_;
  std::vector<Client> clients_;
  std::vector<Group> groups_;
  std::vector<std::int32_t> heads_;
  std::array<std::uint64_t, kPriorities> clocks_{};  // least served() of those with prefill to do
};

}  // namespace koho
