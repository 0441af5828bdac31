// SPDX-License-Identifier: Apache-2.0
// What a rank remembers of a batch slot (plan/step_plan.h) to find the end of its output: the
// tokens and sequences of tokens that end it, the last tokens of the output, and whether it has
// ended. The record is flat words, so that a GPU can match stops: the device holds a table of
// records, and the host writes single words of it when a sequence takes a batch slot.
#pragma once

#include <cstdint>

namespace koho {

struct OutputRecord {
  // ---- words
  static constexpr std::int32_t kEnded = 0;      // 0, or 1: the output has ended
  static constexpr std::int32_t kOutput = 1;     // tokens of output so far
  static constexpr std::int32_t kOutputMin = 2;  // a sequence ends an output behind so many tokens
  static constexpr std::int32_t kRecent = 3;     // output token i at kRecent + i % kRecentTokens
  static constexpr std::int32_t kRecentTokens = 16;
  /// The stops, one behind the other: a length, then as many tokens; a length of 0 behind the last
  /// one, unless they fill the record.
  static constexpr std::int32_t kStops = kRecent + kRecentTokens;
  static constexpr std::int32_t kWords = 256;

  static constexpr std::int32_t kStopWordsMax = kWords - kStops;
  static constexpr std::int32_t kStopLengthMax = kRecentTokens;  // tokens of one stop
};

/// What became of a sampled row's output.
enum class RowEnd : std::uint8_t {
  none,   // it goes on
  ended,  // this token completes a stop
  frozen  // it had ended before: the row was not computed, its token says nothing
};

/// Takes a sampled token into its output and says what became of it. A record that has ended
/// stays; a token < 0, no token at all, changes nothing.
template <typename Words>
constexpr RowEnd take_token(Words record, std::int32_t token) {
  if (record[OutputRecord::kEnded] != 0) return RowEnd::frozen;
  if (token < 0) return RowEnd::none;
  const std::int32_t output = record[OutputRecord::kOutput];
  record[OutputRecord::kRecent + output % OutputRecord::kRecentTokens] = token;
  record[OutputRecord::kOutput] = output + 1;
  std::int32_t at = OutputRecord::kStops;
  while (at < OutputRecord::kWords && record[at] > 0) {
    const std::int32_t length = record[at];
    bool matches = (length == 1 || output >= record[OutputRecord::kOutputMin]) &&
                   length <= output + 1 && length <= OutputRecord::kStopLengthMax &&
                   at + length < OutputRecord::kWords;
    for (std::int32_t i = 0; matches && i < length; ++i)
      matches =
          record[at + 1 + i] ==
          record[OutputRecord::kRecent + (output + 1 - length + i) % OutputRecord::kRecentTokens];
    if (matches) {
      record[OutputRecord::kEnded] = 1;
      return RowEnd::ended;
    }
    at += 1 + length;
  }
  return RowEnd::none;
}

}  // namespace koho
