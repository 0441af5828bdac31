// SPDX-License-Identifier: Apache-2.0
// An executor whose cache holds hashes instead of keys and values: the slot of a token holds the
// hash of all tokens up to it, computed from what the *previous* slot holds, found through the page
// table as a rank would find it. A sampled token is a function of the last slot's content and the
// sampling row, so one wrong page, slot, token, copy or order anywhere in a request's history
// changes its output. It reads real StepPlans with the real reader, and fails on request. Where a
// plan's masks are late its rows are computed when it comes and sampled when the masks do.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "kvcache/page_pool.h"
#include "kvcache/prefix_cache.h"
#include "plan/step_plan.h"
#include "sampling/output_record.h"
#include "sampling/parameters.h"

namespace koho::simulation {

/// The content of a slot: a hash of the token, of the slot before it and, under
/// Limits::redecodes_output, of whether it was decoded.
inline constexpr std::uint64_t kRootContent = 0x6b6f686f;
std::uint64_t slot_content(std::uint64_t before, Token token, bool decoded = false);
/// A request with this seed brings the ranks down when they draw its first token.
inline constexpr std::uint64_t kPoison = 0x706f69736f6e;
/// The token drawn with this content at the end; `history` stands for the token counts (0: none).
std::uint64_t draw_hash(std::uint64_t content,
                        std::uint64_t seed,
                        std::int64_t output_position,
                        std::uint64_t history);

class FakeExecutor final : public Executor {
 public:
  /// What goes wrong with the oldest result; taken back after one collect.
  enum class Fault : std::uint8_t { none, error, wrong_count, stale, early, bad_token, nan };

  /// `tells_decodes`: a decoded token's slot has another content than a prefilled one's.
  explicit FakeExecutor(const PlanBounds& bounds, bool tells_decodes = false);

  // ---- Executor
  std::span<std::byte> plan_space() override;
  Status submit(std::size_t bytes) override;
  Status send_masks() override;
  Status collect(StepResult& result, std::int64_t timeout_us) override;
  Status check() override;
  Status recover(std::int64_t timeout_us) override;

  // ---- the simulation's hand
  /// The oldest step is done: collect() may have it.
  void complete_oldest() { complete_ = true; }
  void fail_next_submit(bool fails) { fail_submit_ = fails; }
  void fail_next_masks(bool fails) { fail_masks_ = fails; }
  /// The next check() finds a rank gone.
  void end_a_rank() { rank_ended_ = true; }
  void set_fault(Fault fault, std::uint64_t chance);
  void set_recovery(Status answer) { recovery_ = std::move(answer); }
  std::int32_t steps_in_flight() const { return count_; }
  /// Rows whose output had ended when they were to be computed.
  std::int64_t frozen_rows() const { return frozen_rows_; }
  /// Whether the step submitted last waits for its masks.
  bool awaits_masks() const { return awaiting_; }
  std::uint64_t content(PageId page, std::int32_t offset) const;
  /// The first thing a plan got wrong, or empty.
  const std::string& complaint() const { return complaint_; }

 private:
  void compute_all(const StepPlan& plan);
  void sample_all(const StepPlan& plan, StepResult& result);
  void update_tables(const StepPlan& plan);
  void compute(const StepPlan& plan, std::size_t sequence);
  std::int32_t* output(std::int32_t batch_slot) {
    return outputs_.data() + static_cast<std::ptrdiff_t>(batch_slot) * OutputRecord::kWords;
  }
  Token draw(const StepPlan& plan, std::size_t sample);
  void complain(std::string text);

  PlanBounds bounds_;
  bool tells_decodes_;
  std::int32_t table_entries_;
  std::array<std::vector<std::uint64_t>, 2> plans_;  // as results_
  std::vector<std::int32_t> tables_;                 // [batch slots, entries]
  std::vector<Token> last_sampled_;                  // [batch slots]
  std::vector<std::uint64_t> histories_;             // [batch slots]
  std::vector<std::int32_t> outputs_;                // [batch slots, OutputRecord::kWords]
  std::vector<std::uint64_t> contents_;              // [pages, tokens_per_page]
  std::array<StepResult, 2> results_;                // a ring
  StepResult stale_;
  std::int64_t frozen_rows_ = 0;
  std::int32_t oldest_ = 0;
  std::int32_t count_ = 0;
  StepPlan open_;          // awaits its masks
  bool awaiting_ = false;  // it does
  bool complete_ = false;
  bool poisoned_ = false;
  bool fail_submit_ = false;
  bool fail_masks_ = false;
  bool rank_ended_ = false;
  Fault fault_ = Fault::none;
  std::uint64_t fault_chance_ = 0;
  Status recovery_;
  std::string complaint_;
};

}  // namespace koho::simulation
