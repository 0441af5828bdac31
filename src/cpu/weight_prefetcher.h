// SPDX-License-Identifier: Apache-2.0
// Asks for the weights that are read after the ones at hand. A core reads fastest from several
// pages at once, each from front to back: that is what its own prefetcher follows, and it stops at
// the end of a page. So eight spans are asked for side by side, whatever the length of a row. Lines
// come in pairs: asking for every second one keeps as many line buffers free for the rows at hand.
//
// Included by files that are compiled for an instruction set: everything here has internal linkage.
#pragma once

#include <immintrin.h>

#include "cpu/kernels.h"

namespace koho::cpu {
namespace {

class WeightPrefetcher {
 public:
  /// For `rows` rows from `row` on: what comes next is as much.
  WeightPrefetcher(const MultiplyTask& task, std::int64_t row, std::int64_t rows)
      : next_(task.next + row * task.row_bytes),
        span_((rows + kSpans - 1) / kSpans * task.row_bytes) {}

  /// To call for every so many bytes read, at most kBytes.
  void advance(std::int64_t bytes) {
    bytes_ += bytes;
    if (bytes_ < kBytes) return;
    bytes_ -= kBytes;
    const std::byte* at = next_;
    for (std::int64_t i = 0; i < kSpans; ++i, at += span_)
      _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
    next_ += kPair;
  }

 private:
  static constexpr std::int64_t kSpans = 8;
  static constexpr std::int64_t kPair = 128;
  static constexpr std::int64_t kBytes = kSpans * kPair;

  const std::byte* next_;
  std::int64_t span_;
  std::int64_t bytes_ = 0;
};

}  // namespace
}  // namespace koho::cpu
