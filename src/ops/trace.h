// SPDX-License-Identifier: Apache-2.0
// Where a step's time goes: calls, wall time and counted bytes by operator. Off unless asked for.
// On CUDA the host time of a span says how long enqueueing took; device time by class comes from
// the backend's own events.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>

namespace koho {

enum class Op : std::uint8_t {
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
  count
};

std::string_view op_name(Op op);

class Trace {
 public:
  struct Entry {
    std::int64_t calls = 0;
    std::chrono::nanoseconds time{0};
  };

  void enable(bool on) { enabled_ = on; }
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
  bool enabled_ = false;
};

}  // namespace koho
