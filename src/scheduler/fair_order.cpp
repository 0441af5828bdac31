// SPDX-License-Identifier: Apache-2.0
// Groups of one client and priority; within each a list a size class, by arrival. Clients and
// groups are few, and looked for one after another.
#include "scheduler/fair_order.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"

namespace koho {

std::int32_t FairOrder::size_class(std::int32_t tokens) const {
  const auto pages = static_cast<std::uint32_t>(std::max(tokens - 1, 0) / tokens_per_page_);
  return static_cast<std::int32_t>(std::bit_width(pages));
}

std::int32_t FairOrder::find_client(std::uint64_t id) {
  std::size_t place = clients_.size();
  for (std::size_t i = 0; i < clients_.size(); ++i) {
    if (clients_[i].live == 0) {
      place = i;
    } else if (clients_[i].id == id) {
      return static_cast<std::int32_t>(i);
    }
  }
  if (place == clients_.size()) clients_.emplace_back();
  clients_[place] = {.id = id};
  return static_cast<std::int32_t>(place);
}

std::int32_t FairOrder::find_group(std::int32_t client, std::int32_t priority) {
  std::size_t place = groups_.size();
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_[i];
    if (group.live == 0) {
      place = i;
    } else if (group.client == client && group.priority == priority) {
      return static_cast<std::int32_t>(i);
    }
  }
  if (place == groups_.size()) groups_.emplace_back();
  groups_[place].client = client;
  groups_[place].priority = priority;
  groups_[place].served = 0;
  return static_cast<std::int32_t>(place);
}

void FairOrder::join(Sequence& sequence) {
  const std::int32_t owner = find_client(sequence.client);
  sequence.group = find_group(owner, sequence.priority);
  ++clients_[static_cast<std::size_t>(owner)].live;
  Group& group = groups_[static_cast<std::size_t>(sequence.group)];
  ++group.live;
  group.served = std::max(group.served, clocks_[static_cast<std::size_t>(sequence.priority)]);
}

void FairOrder::leave(Sequence& sequence) {
  --client_of(sequence).live;
  --groups_[static_cast<std::size_t>(sequence.group)].live;
  sequence.group = -1;
}

void FairOrder::begin_step(std::span<const std::int32_t> running) {
  constexpr std::uint64_t kNobody = std::numeric_limits<std::uint64_t>::max();
  std::array<std::uint64_t, kPriorities> least;
  least.fill(kNobody);
  const auto count = [&](const Group& group) {
    std::uint64_t& lowest = least[static_cast<std::size_t>(group.priority)];
    lowest = std::min(lowest, group.served);
  };
  for (const std::int32_t index : running) count(group_of(at(index)));
  for (Group& group : groups_) {
    if (group.classes != 0) count(group);
    group.passed_over = 0;
  }
  for (std::size_t i = 0; i < clocks_.size(); ++i)
    if (least[i] != kNobody) clocks_[i] = std::max(clocks_[i], least[i]);
}

void FairOrder::charge(const Sequence& sequence, std::int32_t tokens) {
  Group& group = groups_[static_cast<std::size_t>(sequence.group)];
  const std::uint64_t clock = clocks_[static_cast<std::size_t>(group.priority)];
  group.served = std::max(group.served, clock) + static_cast<std::uint64_t>(tokens);
}

void FairOrder::insert(Sequence& sequence, std::int32_t tokens) {
  sequence.tokens_to_compute = tokens;
  const auto size = static_cast<std::size_t>(size_class(tokens));
  Group& group = groups_[static_cast<std::size_t>(sequence.group)];
  group.lists[size].insert(sequences_, &Sequence::of_size, sequence);
  group.classes |= std::uint32_t{1} << size;
}

void FairOrder::remove(Sequence& sequence) {
  const auto size = static_cast<std::size_t>(size_class(sequence.tokens_to_compute));
  Group& group = groups_[static_cast<std::size_t>(sequence.group)];
  group.lists[size].remove(sequences_, &Sequence::of_size, sequence);
  if (group.lists[size].head() == -1) group.classes &= ~(std::uint32_t{1} << size);
}

std::span<std::int32_t> FairOrder::heads() {
  heads_.clear();
  for (const Group& group : groups_)
    if (group.classes != 0)
      heads_.push_back(
          group.lists[static_cast<std::size_t>(std::countr_zero(group.classes))].head());
  return heads_;
}

void FairOrder::pass_over(const Sequence& sequence) {
  const std::int32_t size = size_class(sequence.tokens_to_compute);
  groups_[static_cast<std::size_t>(sequence.group)].passed_over = ~std::uint32_t{0} << size;
}

Sequence* FairOrder::first(std::int32_t class_end) const {
  if (class_end <= 0) return nullptr;
  const std::uint32_t wanted = (std::uint32_t{1} << class_end) - 1U;
  Sequence* best = nullptr;
  std::int32_t best_class = 0;
  for (const Group& group : groups_) {
    const std::uint32_t classes = group.classes & wanted & ~group.passed_over;
    if (classes == 0) continue;
    const std::int32_t size = std::countr_zero(classes);
    Sequence& candidate = at(group.lists[static_cast<std::size_t>(size)].head());
    if (best != nullptr && !comes_before(candidate, size, *best, best_class)) continue;
    best = &candidate;
    best_class = size;
  }
  return best;
}

bool FairOrder::comes_before(const Sequence& a,
                             std::int32_t a_class,
                             const Sequence& b,
                             std::int32_t b_class) const {
  if (a.priority != b.priority) return a.priority < b.priority;
  const Group& a_group = group_of(a);
  const Group& b_group = group_of(b);
  const bool a_within = within_share(a_group);
  if (a_within != within_share(b_group)) return a_within;
  if (!a_within && a_group.served != b_group.served) return a_group.served < b_group.served;
  if (a_class != b_class) return a_class < b_class;
  return a.arrival < b.arrival;
}

}  // namespace koho
