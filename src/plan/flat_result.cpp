// SPDX-License-Identifier: Apache-2.0
// The layout follows from the header's rows and flags, for writer and reader alike.
#include "plan/flat_result.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/arithmetic.h"
#include "base/check.h"

namespace koho {
namespace {

constexpr std::uint32_t kMagic = 0x7365726b;  // "kres"
constexpr std::uint32_t kVersion = 2;
constexpr std::size_t kMessageMax = 1024;

enum Flag : std::uint32_t { kHasLogprobs = 1, kHasTop = 2, kIsError = 4 };

struct Header {
  std::uint32_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint64_t bytes = 0;  // of the whole result
  std::int64_t step = 0;
  std::int32_t rows = 0;
  std::uint32_t flags = 0;
  std::uint32_t code = 0;     // of an error
  std::uint32_t message = 0;  // bytes of an error's message, which follows the header
  std::int32_t logits_rows = 0;
  std::int32_t logits_width = 0;  // V, where there are such rows
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 48);

/// Byte offsets of the arrays.
struct Layout {
  Layout(std::size_t rows,
         std::uint32_t flags,
         std::size_t rows_with_logits = 0,
         std::size_t vocabulary = 0) {
    const auto take = [this](std::size_t size) {
      const std::size_t at = bytes;
      bytes = round_up(bytes + size, std::size_t{8});
      return at;
    };
    tokens = take(4 * rows);
    ends = take(rows);
    logprobs = take((flags & kHasLogprobs) != 0 ? 4 * rows : 0);
    const std::size_t top = (flags & kHasTop) != 0 ? 4 * rows * StepResult::kTop : 0;
    top_ids = take(top);
    top_logprobs = take(top);
    logits_rows = take(4 * rows_with_logits);
    logits = take(4 * rows_with_logits * vocabulary);
  }

  std::size_t bytes = sizeof(Header);
  std::size_t tokens, ends, logprobs, top_ids, top_logprobs, logits_rows, logits;
};

template <typename T>
void put(std::span<std::byte> space, std::size_t offset, const std::vector<T>& values) {
  if (!values.empty()) std::memcpy(space.data() + offset, values.data(), values.size() * sizeof(T));
}

template <typename T>
void take(std::vector<T>& values,
          std::span<const std::byte> bytes,
          std::size_t offset,
          std::size_t count) {
  values.resize(count);
  if (count > 0) std::memcpy(values.data(), bytes.data() + offset, count * sizeof(T));
}

Error broken(std::string_view what, std::int64_t found) {
  return make_error(ErrorCode::corrupt_data, "step result: {} is {}", what, found);
}

Status read_error(std::span<const std::byte> bytes, const Header& header) {
  if (header.message > kMessageMax || bytes.size() < sizeof(Header) + header.message)
    return broken("the length of a message", header.message);
  if (header.code > static_cast<std::uint32_t>(ErrorCode::internal))
    return broken("the code of an error", header.code);
  return Error{
      static_cast<ErrorCode>(header.code),
      std::string(reinterpret_cast<const char*>(bytes.data()) + sizeof(Header), header.message)};
}

Status check_values(const StepResult& result, const ResultBounds& bounds) {
  for (const std::int32_t token : result.tokens)
    if (token < kSampledElsewhere || token >= bounds.vocabulary) return broken("a token", token);
  for (const RowEnd end : result.ends)
    if (end != RowEnd::none && end != RowEnd::ended && end != RowEnd::frozen)
      return broken("a row's end", static_cast<std::int64_t>(end));
  std::int32_t above = -1;
  for (const std::int32_t row : result.logits_rows) {
    if (row <= above || std::cmp_greater_equal(row, result.tokens.size()))
      return broken("a row of logits", row);
    above = row;
  }
  return {};
}

}  // namespace

std::size_t flat_result_bytes(std::int64_t rows) {
  return std::max(Layout(static_cast<std::size_t>(rows), kHasLogprobs | kHasTop).bytes,
                  sizeof(Header) + kMessageMax);
}

std::size_t flat_result_bytes(std::int64_t rows, std::int32_t vocabulary) {
  const auto size = static_cast<std::size_t>(rows);
  return std::max(
      Layout(size, kHasLogprobs | kHasTop, size, static_cast<std::size_t>(vocabulary)).bytes,
      sizeof(Header) + kMessageMax);
}

std::size_t write_flat_result(const StepResult& result, std::span<std::byte> space) {
  Header header{.step = result.step, .rows = static_cast<std::int32_t>(result.tokens.size())};
  if (!result.logprobs.empty()) header.flags |= kHasLogprobs;
  if (!result.top_ids.empty()) header.flags |= kHasTop;
  const std::size_t logits_rows = result.logits_rows.size();
  const std::size_t width = logits_rows == 0 ? 0 : result.logits.size() / logits_rows;
  header.logits_rows = static_cast<std::int32_t>(logits_rows);
  header.logits_width = static_cast<std::int32_t>(width);
  const Layout at(result.tokens.size(), header.flags, logits_rows, width);
  KOHO_CHECK_LE(at.bytes, space.size());
  header.bytes = at.bytes;
  std::memcpy(space.data(), &header, sizeof(header));
  put(space, at.tokens, result.tokens);
  put(space, at.ends, result.ends);
  put(space, at.logprobs, result.logprobs);
  put(space, at.top_ids, result.top_ids);
  put(space, at.top_logprobs, result.top_logprobs);
  put(space, at.logits_rows, result.logits_rows);
  put(space, at.logits, result.logits);
  return at.bytes;
}

std::size_t write_flat_error(const Error& error, std::span<std::byte> space) {
  const std::size_t length = std::min(error.message.size(), kMessageMax);
  const Header header{.bytes = sizeof(Header) + length,
                      .flags = kIsError,
                      .code = static_cast<std::uint32_t>(error.code),
                      .message = static_cast<std::uint32_t>(length)};
  KOHO_CHECK_LE(header.bytes, space.size());
  std::memcpy(space.data(), &header, sizeof(header));
  std::memcpy(space.data() + sizeof(header), error.message.data(), length);
  return header.bytes;
}

Status read_flat_result(std::span<const std::byte> bytes,
                        const ResultBounds& bounds,
                        StepResult& result) {
  Header header;
  if (bytes.size() < sizeof(header)) return broken("its length", std::ssize(bytes));
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic || header.version != kVersion)
    return broken("its magic", header.magic);
  if ((header.flags & kIsError) != 0) return read_error(bytes, header);
  if (header.rows < 0 || header.rows > bounds.rows_max) return broken("the rows", header.rows);
  if ((header.flags & ~(kHasLogprobs | kHasTop)) != 0) return broken("the flags", header.flags);
  if (header.logits_rows < 0 || header.logits_rows > header.rows)
    return broken("the rows of logits", header.logits_rows);
  if (header.logits_width != (header.logits_rows == 0 ? 0 : bounds.vocabulary))
    return broken("the length of logits", header.logits_width);
  const auto rows = static_cast<std::size_t>(header.rows);
  const auto logits_rows = static_cast<std::size_t>(header.logits_rows);
  const auto width = static_cast<std::size_t>(header.logits_width);
  const Layout at(rows, header.flags, logits_rows, width);
  if (header.bytes != at.bytes || bytes.size() < at.bytes)
    return broken("its length", static_cast<std::int64_t>(header.bytes));
  result.step = header.step;
  take(result.tokens, bytes, at.tokens, rows);
  take(result.ends, bytes, at.ends, rows);
  take(result.logprobs, bytes, at.logprobs, (header.flags & kHasLogprobs) != 0 ? rows : 0);
  const std::size_t top = (header.flags & kHasTop) != 0 ? rows * StepResult::kTop : 0;
  take(result.top_ids, bytes, at.top_ids, top);
  take(result.top_logprobs, bytes, at.top_logprobs, top);
  take(result.logits_rows, bytes, at.logits_rows, logits_rows);
  take(result.logits, bytes, at.logits, logits_rows * width);
  // Alternatives of a row that asked for none are whatever the device had there.
  for (std::int32_t& id : result.top_ids)
    if (id < 0 || id >= bounds.vocabulary) id = 0;
  return check_values(result, bounds);
}

}  // namespace koho
