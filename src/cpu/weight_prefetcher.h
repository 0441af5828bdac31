// SPDX-License-Identifier: Apache-2.0
// Prefetches the weights that a thread reads next. A core reads fastest from several pages at once,
// each from front to back: its own prefetcher follows that, and stops at the end of a page. So this
// one prefetches from eight spans side by side, whatever the length of a row. Hardware fetches
// lines in pairs: asking for every second line leaves more line buffers to the rows that are being
// read.
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
