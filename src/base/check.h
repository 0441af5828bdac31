// SPDX-License-Identifier: Apache-2.0
// What cannot happen: KOHO_CHECK and its family print the place and the values, then abort, in
// every build. Never reachable from a request or a file: those give an Error (base/error.h).
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include <fmt/core.h>

namespace koho {

/// Prints `file:line: check failed: condition detail` to standard error and aborts.
[[noreturn]] void check_failed(const char* file,
                               int line,
                               const char* condition,
                               std::string_view detail = {});

template <typename A, typename B>
[[noreturn]] void check_op_failed(
    const char* file, int line, const char* condition, const A& a, const B& b) {
  if constexpr (fmt::is_formattable<A>::value && fmt::is_formattable<B>::value) {
    check_failed(file, line, condition, fmt::format("({} vs {})", a, b));
  } else {
    check_failed(file, line, condition);
  }
}

}  // namespace koho

#define KOHO_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::koho::check_failed(__FILE__, __LINE__, #condition))

#define KOHO_CHECK_OP(a, op, b)                                                       \
  do {                                                                                \
    const auto& koho_a = (a);                                                         \
    const auto& koho_b = (b);                                                         \
    if (!(koho_a op koho_b))                                                          \
      ::koho::check_op_failed(__FILE__, __LINE__, #a " " #op " " #b, koho_a, koho_b); \
  } while (false)
#define KOHO_CHECK_EQ(a, b) KOHO_CHECK_OP(a, ==, b)
#define KOHO_CHECK_NE(a, b) KOHO_CHECK_OP(a, !=, b)
#define KOHO_CHECK_LT(a, b) KOHO_CHECK_OP(a, <, b)
#define KOHO_CHECK_LE(a, b) KOHO_CHECK_OP(a, <=, b)
#define KOHO_CHECK_GT(a, b) KOHO_CHECK_OP(a, >, b)
#define KOHO_CHECK_GE(a, b) KOHO_CHECK_OP(a, >=, b)

/// Checked in builds without NDEBUG only: for inner loops.
#ifdef NDEBUG
#define KOHO_DCHECK(condition) void(0)
#else
#define KOHO_DCHECK(condition) KOHO_CHECK(condition)
#endif
