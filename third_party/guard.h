// SPDX-License-Identifier: Apache-2.0
// Limits on what runs inside xgrammar, which has none of its own: time and memory of one call on
// one thread, and what it would have logged. Plain C++17; the only file besides guard.cpp that
// knows of xgrammar's allocations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>

namespace koho::guard {

/// Thrown out of an allocation of xgrammar's when a limit is passed.
class Exceeded : public std::exception {
 public:
  const char* what() const noexcept override { return "the limit of time or memory was passed"; }
};

/// Thrown by xgrammar in place of its own exception where no value satisfies a JSON schema
/// (xgrammar/changes.cmake).
class Unsatisfiable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thrown by xgrammar where it can build no automaton of a string's pattern.
class NoAutomaton : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thrown by xgrammar in place of its own exception where it cannot hash a part of a grammar for
/// its cache of parts.
class NoHash : public std::exception {
 public:
  const char* what() const noexcept override { return "a part of the grammar has no hash"; }
};

/// While it lives, xgrammar's allocations on this thread are counted. Scopes do not nest.
class Scope {
 public:
  /// `time_us_max` of this thread's processor time; `bytes_max` of allocations together, freed or
  /// not. 0 = no such limit.
  Scope(std::int64_t time_us_max, std::size_t bytes_max);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  /// The first warning of xgrammar's in this scope: that it leaves a part of its input unheeded.
  const std::string& warning() const;
};

}  // namespace koho::guard
