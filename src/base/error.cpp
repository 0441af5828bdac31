// SPDX-License-Identifier: Apache-2.0
// The table of error codes, and the end of a failed check.
#include "base/error.h"

#include <array>
#include <cstdio>
#include <cstdlib>

namespace koho {
namespace {

constexpr std::array<ErrorCodeInfo, 11> kErrorCodes{{
    {ErrorCode::invalid_argument, "invalid_argument", 400, -1, 2},
    {ErrorCode::not_found, "not_found", 404, -2, 3},
    {ErrorCode::corrupt_data, "corrupt_data", 500, -3, 4},
    {ErrorCode::unsupported, "unsupported", 400, -4, 5},
    {ErrorCode::resource_exhausted, "resource_exhausted", 429, -5, 6},
    {ErrorCode::unavailable, "unavailable", 503, -6, 7},
    {ErrorCode::cancelled, "cancelled", 499, -7, 8},
    {ErrorCode::deadline_exceeded, "deadline_exceeded", 408, -8, 9},
    {ErrorCode::io_error, "io_error", 500, -9, 10},
    {ErrorCode::device_error, "device_error", 500, -10, 11},
    {ErrorCode::internal, "internal", 500, -11, 70},
}};

constexpr bool rows_follow_the_enumeration() {
  for (std::size_t i = 0; i < kErrorCodes.size(); ++i)
    if (static_cast<std::size_t>(kErrorCodes[i].code) != i) return false;
  return kErrorCodes.size() == static_cast<std::size_t>(ErrorCode::internal) + 1;
}
static_assert(rows_follow_the_enumeration());

constexpr std::array<std::string_view, 10> kReasonNames{
    "",
    "numerical_error",
    "invalid_encoding",
    "too_deep",
    "too_long",
    "beyond_64_bits",
    "invalid_grammar",
    "unsupported_schema",
    "grammar_too_complex",
    "unsatisfiable_schema",
};
static_assert(kReasonNames.size() ==
              static_cast<std::size_t>(ErrorReason::unsatisfiable_schema) + 1);

}  // namespace

const ErrorCodeInfo& error_code_info(ErrorCode code) {
  return kErrorCodes[static_cast<std::size_t>(code)];
}

std::string_view error_reason_name(ErrorReason reason) {
  return kReasonNames[static_cast<std::size_t>(reason)];
}

void check_failed(const char* file, int line, const char* condition, std::string_view detail) {
  std::fprintf(stderr, "%s:%d: check failed: %s %.*s\n", file, line, condition,
               static_cast<int>(detail.size()), detail.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace koho
