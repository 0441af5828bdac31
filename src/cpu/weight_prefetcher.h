// SPDX-License-Identifier: Apache-2.0
// Prefetch the weights that a thread reads next, in the order in which its core reads memory
// fastest.
//
// Included by files that are compiled for an instruction set: everything here has internal linkage.
#pragma once

#include <immintrin.h>

#include "cpu/kernels.h"

namespace koho::cpu {
namespace {

/// For Intel's cores. They read fastest from several pages at once, each from front to back: their
/// own prefetcher follows that, and stops at the end of a page. So this one prefetches from eight
/// spans side by side, whatever the length of a row. Hardware fetches lines in pairs: asking for
/// every second line leaves more line buffers to the rows that are being read.
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

/// For AMD's cores. They read fastest in order, line by line, and lose a quarter of the rate over
/// rows side by side: prefetches every line in order, a group of four rows before it is read.
class InOrderPrefetcher {
 public:
  /// For `rows` rows from `row` on, and then the task's next.
  InOrderPrefetcher(const MultiplyTask& task, std::int64_t row, std::int64_t rows)
      : at_(task.weight + (row + kRows) * task.row_bytes),
        end_(task.weight + (row + rows) * task.row_bytes),
        next_(task.next) {}

  /// To call for every so many bytes read.
  void advance(std::int64_t bytes) {
    for (bytes_ += bytes; bytes_ >= kLine; bytes_ -= kLine, at_ += kLine) {
      if (at_ >= end_ && next_ != nullptr) {
        at_ = next_;
        next_ = nullptr;
      }
      _mm_prefetch(reinterpret_cast<const char*>(at_), _MM_HINT_T0);
    }
  }

 private:
  static constexpr std::int64_t kRows = 4;
  static constexpr std::int64_t kLine = 64;

  const std::byte* at_;
  const std::byte* end_;
  const std::byte* next_;
  std::int64_t bytes_ = 0;
};

}  // namespace
}  // namespace koho::cpu
