// SPDX-License-Identifier: Apache-2.0
// Step results of a broken rank: what the front accepts has every value in its range. Half of the
// inputs get a header that fits; otherwise hardly any would pass it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "plan/flat_result.h"

namespace koho {
namespace {

constexpr ResultBounds kBounds{.rows_max = 6, .vocabulary = 64};
constexpr std::size_t kHeaderBytes = 48;

void check_accepted(const StepResult& result) {
  const std::size_t rows = result.tokens.size();
  KOHO_CHECK_LE(rows, 6U);
  KOHO_CHECK_EQ(result.ends.size(), rows);
  KOHO_CHECK(result.logprobs.empty() || result.logprobs.size() == rows);
  KOHO_CHECK(result.top_ids.empty() || result.top_ids.size() == rows * StepResult::kTop);
  KOHO_CHECK_EQ(result.top_ids.size(), result.top_logprobs.size());
  KOHO_CHECK_EQ(result.logits.size(), result.logits_rows.size() * 64);
  for (const std::int32_t row : result.logits_rows)
    KOHO_CHECK_LT(static_cast<std::size_t>(row), rows);
  for (const std::int32_t token : result.tokens) KOHO_CHECK(token >= -2 && token < 64);
  for (const std::int32_t id : result.top_ids) KOHO_CHECK(id >= 0 && id < 64);
  for (const RowEnd end : result.ends) KOHO_CHECK_LE(static_cast<int>(end), 2);
}

void run_one(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint64_t> words(
      (size + flat_result_bytes(kBounds.rows_max, kBounds.vocabulary)) / 8 + 1);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(words));
  std::size_t length = size;
  if (size > 2 && data[0] % 2 == 0) {
    StepResult made;
    const std::size_t rows = data[1] % 7;
    made.tokens.resize(rows);
    made.ends.resize(rows);
    if ((data[2] & 1) != 0) made.logprobs.resize(rows);
    if ((data[2] & 2) != 0) made.top_ids.resize(rows * StepResult::kTop);
    made.top_logprobs.resize(made.top_ids.size());
    made.logits_rows.resize(std::min<std::size_t>(data[2] >> 2U, rows));
    made.logits.resize(made.logits_rows.size() * 64);
    length = write_flat_result(made, bytes);
    if (length > kHeaderBytes)
      std::memcpy(bytes.data() + kHeaderBytes, data + 3, std::min(size - 3, length - kHeaderBytes));
  } else if (size > 0) {
    std::memcpy(bytes.data(), data, size);
  }
  StepResult result;
  if (read_flat_result(bytes.first(length), kBounds, result).ok()) check_accepted(result);
}

}  // namespace
}  // namespace koho

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  koho::run_one(data, size);
  return 0;
}
