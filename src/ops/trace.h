// SPDX-License-Identifier: Apache-2.0
// Where a step's time goes: calls and host time by operator. Off unless enabled. On CUDA an
// operator only enqueues, so its host time is the time to enqueue. The device time of a class of
// operators comes from running that class alone (`select`) on the arrays that a whole step left
// behind.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

namespace koho {

/// The last of a backend's operators is `count_sampled`.
enum class Op : std::uint8_t {
  gather_input_ids,
  commit_sampled,
  set_entries,
  embed,
  gather_rows,
  rms_norm,
  add_rms_norm,
  linear,
  qk_norm_rope_store_kv,
  attention,
  silu_mul,
  route,
  experts,
  copy_pages,
  sample,
  reset_counts,
  count_sampled,
  // Collectives (comm/communicator.h), which are no operators of a backend.
  all_reduce,
  exchange_logits,
  gather_sampled,
  dispatch,
  combine,
  count
};

std::string_view op_name(Op op);

class Trace {
 public:
  struct Entry {
    std::int64_t calls = 0;
    std::chrono::nanoseconds time{0};
  };

  /// Whether an operator belongs to a class. `columns` is the width of a linear layer's output, 0
  /// for other operators.
  using Selection = std::function<bool(Op op, std::int64_t columns)>;

  void enable(bool on) { enabled_ = on; }
  /// From now on operators outside the selection do nothing. An empty selection runs all of them.
  void select(Selection selection) { selection_ = std::move(selection); }
  bool skips(Op op, std::int64_t columns = 0) const {
    return selection_ && !selection_(op, columns);
  }
  void clear() { entries_ = {}; }
  const Entry& entry(Op op) const { return entries_[static_cast<std::size_t>(op)]; }

  /// Times its own lifetime into the trace.
  class Span {
   public:
    Span(Trace& trace, Op op) : trace_(trace.enabled_ ? &trace : nullptr), op_(op) {
      if (trace_ != nullptr) start_ = std::chrono::steady_clock::now();
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;
    ~Span() {
      if (trace_ == nullptr) return;
      Entry& entry = trace_->entries_[static_cast<std::size_t>(op_)];
      ++entry.calls;
      entry.time += std::chrono::steady_clock::now() - start_;
    }

   private:
    Trace* trace_;
    Op op_;
    std::chrono::steady_clock::time_point start_{};
  };

 private:
  std::array<Entry, static_cast<std::size_t>(Op::count)> entries_{};
  Selection selection_;
  bool enabled_ = false;
};

}  // namespace koho
