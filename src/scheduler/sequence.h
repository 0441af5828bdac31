// SPDX-License-Identifier: Apache-2.0
// The state of one sequence: its tokens, how far they are planned and computed, and the pages that
// hold them. Changed by the scheduler only; everybody else reads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/page_pool.h"
#include "kvcache/prefix_cache.h"

namespace koho {

/// Names a sequence for its lifetime; a later sequence at the same index has another generation.
struct SequenceId {
  std::int32_t index = -1;
  std::uint32_t generation = 0;

  bool operator==(const SequenceId&) const = default;
};
inline constexpr SequenceId kNoSequence{};

/// unused → waiting or held (submitted) · held ↔ waiting (paused; forks until their parent's
/// prompt is computed) · waiting → running (admitted) · running → waiting or held (preempted, or
/// the device was lost) · any → unused (finished or cancelled).
enum class SequenceState : std::uint8_t { unused, held, waiting, running };

/// The index of the sequence after it, and before it, in an ArrivalList; -1: none.
struct ListLinks {
  std::int32_t next = -1;
  std::int32_t previous = -1;
};

struct Sequence {
  SequenceId id;
  SequenceState state = SequenceState::unused;
  std::int32_t priority = 0;
  std::uint64_t arrival = 0;        // order of submission
  std::int64_t submitted_step = 0;  // last step planned before submission
  CacheSalt salt;
  std::uint64_t client = 0;
  bool wants_token_counts = false;  // the device keeps counts of its tokens, for penalties

  std::vector<Token> tokens;  // prompt, then what was sampled
  /// Of a fork that was never admitted, whose own tokens are empty until then; of its parent
  /// until the prompt is computed.
  std::shared_ptr<const std::vector<Token>> shared_prompt{};
  std::int32_t prompt_length = 0;
  std::int32_t length_max = 0;         // tokens.size() never passes it
  std::int32_t in_flight_samples = 0;  // tokens being sampled by steps not yet applied
  std::int32_t in_flight_rows = 0;

  std::int32_t batch_slot = -1;    // place in the device's tables while running
  std::int32_t partition = 0;      // of the pool: where its pages lie, or lay last
  std::vector<PageHandle> pages;   // page i holds tokens i*P .. i*P+P-1
  std::int32_t planned = 0;        // tokens whose keys and values are written by planned steps
  std::int32_t computed = 0;       // … by applied steps
  std::int32_t registered = 0;     // leading pages that the prefix cache can find
  std::int32_t cached_tokens = 0;  // found in the cache at the first admission
  std::int32_t admissions = 0;
  std::int64_t admitted_step = -1;     // step of the latest admission
  std::int64_t last_row_step = -1;     // latest step with a row of this sequence
  bool paused = false;                 // its reader is slow: plan no row
  std::int32_t granted = 0;            // prefill tokens of the step being planned
  std::uint64_t blocked_at = 0;        // Scheduler::departures_ when it last lacked pages; 0: never
  bool passed_others = false;          // admitted before the first in line, which lacked pages
  std::int64_t lacks_pages_since = 0;  // the step in which it did first, first in line; 0: none
  bool yielded = false;         // its batch slot went to another client; to be admitted again
  std::int32_t recomputed = 0;  // tokens, because it yielded

  SequenceId fork_of = kNoSequence;  // shares its prompt with this sequence
  bool awaits_parent = false;        // … whose prompt is not computed yet
  std::int32_t first_fork = -1;      // head of the forks that await this sequence
  std::int32_t next_fork = -1;
  ListLinks of_priority;               // in its priority's waiting list
  std::int32_t group = -1;             // of FairOrder: client and priority
  std::int32_t tokens_to_compute = 0;  // while it waits: less what was cached when it began to
  ListLinks of_size;                   // in FairOrder's list of its group and size class

  std::span<const Token> known_tokens() const {
    return tokens.empty() && shared_prompt ? *shared_prompt : tokens;
  }
  std::int32_t known() const { return static_cast<std::int32_t>(known_tokens().size()); }
  /// Tokens, those in flight included.
  std::int32_t length() const { return known() + in_flight_samples; }
  /// Tokens whose keys and values will ever be needed: the last sampled token is never fed back.
  std::int32_t computed_goal() const {
    return length_max == prompt_length ? prompt_length : length_max - 1;
  }
  /// Tokens that the next step could compute.
  std::int32_t remaining() const {
    return (length() < computed_goal() ? length() : computed_goal()) - planned;
  }
};

}  // namespace koho
