// SPDX-License-Identifier: Apache-2.0
// Errors that can happen (files, requests, memory, devices): Error, Status and Result<T>, passed up
// with KOHO_TRY and KOHO_TRY_ASSIGN. Errors that cannot happen are in base/check.h. Nothing here
// throws.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/core.h>

#include "base/check.h"

namespace koho {

/// What kind of thing went wrong. `error_code_info` gives each code its name, HTTP status, C status
/// and exit code.
enum class ErrorCode : std::uint8_t {
  invalid_argument,    // the caller's value is wrong: a request field, a flag, a shape
  not_found,           // a file, a tensor, a model that was named does not exist
  corrupt_data,        // a file's bytes contradict its format
  unsupported,         // well-formed, but a feature koho does not have
  resource_exhausted,  // no memory, no page, a full queue
  unavailable,         // loading, draining, restarting: try again
  cancelled,           // the caller withdrew it
  deadline_exceeded,
  io_error,      // the operating system refused
  device_error,  // CUDA or NCCL reported a failure
  internal       // our mistake, caught before it did harm
};

/// The faces of one error code.
struct ErrorCodeInfo {
  ErrorCode code;
  std::string_view name;  // as logged
  int http_status;        // of the API's answer
  std::int32_t c_status;  // of the C ABI, negative
  int exit_code;          // of the program
};

/// The table row of `code`.
const ErrorCodeInfo& error_code_info(ErrorCode code);

/// What exactly went wrong, where a caller acts on more than the code. The maker of the error sets
/// it; nobody looks for it in the message.
enum class ErrorReason : std::uint8_t {
  none,
  numerical,         // the logits of a row hold a NaN, or allow no token
  invalid_encoding,  // the text holds a lone surrogate
  too_deep,          // JSON nested deeper than the reader's limit
  too_long,          // a JSON string or number longer than the reader's limit
  beyond_64_bits,    // an integer that the reader's 64 bits cannot hold
  // A grammar or schema was refused.
  invalid_grammar,
  unsupported_schema,
  grammar_too_complex,
  unsatisfiable_schema
};

/// The reason's name as the API's `code` spells it; empty for none.
std::string_view error_reason_name(ErrorReason reason);

/// An error with what was expected, what was found and, if known, what to do.
struct Error {
  ErrorCode code = ErrorCode::internal;
  std::string message;
  ErrorReason reason = ErrorReason::none;
  std::string field{};  // of the request, as a path, where the error is about one: "tools[0].type"

  /// The same error with `context` before its message ("loading layer 17: …"). Code, reason and
  /// field stay.
  [[nodiscard]] Error with_context(std::string_view context) && {
    message.insert(0, std::string(context) + ": ");
    return std::move(*this);
  }
};

/// Builds an error; the message in fmt's syntax.
template <typename... Args>
[[nodiscard]] Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{code, fmt::format(format, std::forward<Args>(args)...)};
}

/// The same for an error with a reason.
template <typename... Args>
[[nodiscard]] Error make_error(ErrorCode code,
                               ErrorReason reason,
                               fmt::format_string<Args...> format,
                               Args&&... args) {
  return Error{code, fmt::format(format, std::forward<Args>(args)...), reason};
}

/// The same for an error about a field of a request: `field` is the first argument of the format.
template <typename... Args>
[[nodiscard]] Error make_field_error(ErrorCode code,
                                     std::string_view field,
                                     fmt::format_string<std::string_view&, Args...> format,
                                     Args&&... args) {
  Error error{code, fmt::format(format, field, std::forward<Args>(args)...)};
  error.field = field;
  return error;
}

/// Success, or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error)
      : error_(std::move(error)) {}  // NOLINT: `return make_error(...)` is the point

  bool ok() const { return !error_.has_value(); }
  /// Requires: !ok().
  const Error& error() const& { return *error_; }
  Error&& error() && { return std::move(*error_); }
  Status with_context(std::string_view context) && {
    if (error_) return std::move(*error_).with_context(context);
    return {};
  }

 private:
  std::optional<Error> error_;
};

inline Status ok_status() {
  return {};
}

/// A T, or an Error.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::in_place_index<1>, std::move(value)) {}      // NOLINT
  Result(Error error) : value_(std::in_place_index<0>, std::move(error)) {}  // NOLINT

  bool ok() const { return value_.index() == 1; }
  /// Requires: !ok().
  const Error& error() const& { return std::get<0>(value_); }
  Error&& error() && { return std::move(std::get<0>(value_)); }
  /// Requires: ok().
  T& value() & {
    KOHO_CHECK(ok());
    return *std::get_if<1>(&value_);
  }
  const T& value() const& {
    KOHO_CHECK(ok());
    return *std::get_if<1>(&value_);
  }
  T&& value() && {
    KOHO_CHECK(ok());
    return std::move(*std::get_if<1>(&value_));
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  std::variant<Error, T> value_;
};

}  // namespace koho

#define KOHO_CONCAT_INNER(a, b) a##b
#define KOHO_CONCAT(a, b) KOHO_CONCAT_INNER(a, b)

/// Returns the error of `expr` (a Status or a Result) from the enclosing function, if it has one.
#define KOHO_TRY(expr)                                      \
  do {                                                      \
    if (auto koho_status = (expr); !koho_status.ok())       \
      return ::koho::Error(std::move(koho_status).error()); \
  } while (false)

/// KOHO_TRY_ASSIGN(T x, expr): declares or assigns the value of the Result `expr`, or returns its
/// error.
#define KOHO_TRY_ASSIGN(target, ...) \
  KOHO_TRY_ASSIGN_INNER(KOHO_CONCAT(koho_result_, __LINE__), target, __VA_ARGS__)
#define KOHO_TRY_ASSIGN_INNER(name, target, ...)                 \
  auto name = (__VA_ARGS__);                                     \
  if (!name.ok()) return ::koho::Error(std::move(name).error()); \
  target = std::move(name).value()
