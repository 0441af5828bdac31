// SPDX-License-Identifier: Apache-2.0
// Limits on what runs inside xgrammar, which has none of its own: time and memory of one call on
// one thread, and what it would have logged. Plain C++17; the only file besides guard.cpp that
// knows of xgrammar's allocations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

namespace koho::guard {

/// Thrown out of an allocation of xgrammar's when a limit is passed.
class Exceeded : public std::exception {
 public:
  const char* what() const noexcept override { return "the limit of time or memory was passed"; }
};

/// While it lives, xgrammar's allocations on this thread are counted. Scopes do not nest.
class Scope {
 public:
  /// `time_us_max` of this thread's processor time; `bytes_max` of allocations together, freed or
  /// not; `fail_at`: for tests, the number of the allocation that fails. 0 = no such limit.
  Scope(std::int64_t time_us_max, std::size_t bytes_max, std::uint64_t fail_at = 0);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  std::uint64_t allocations() const;
  std::size_t bytes() const;
  /// The first warning of xgrammar's in this scope: that it leaves a part of its input unheeded.
  const std::string& warning() const;
};

}  // namespace koho::guard
