// SPDX-License-Identifier: Apache-2.0
#include "guard.h"

#include <ctime>
#include <new>
#include <stdexcept>

namespace koho::guard {
namespace {

struct State {
  bool active = false;
  std::int64_t deadline_us = 0;
  std::size_t bytes_max = 0;
  std::uint64_t allocations = 0;
  std::size_t bytes = 0;
  std::string warning;
};

thread_local State state;

/// What this thread has computed: a limit by the wall would refuse good schemas on a busy machine.
std::int64_t now_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

/// A look at the clock costs as much as an allocation.
constexpr std::uint64_t kLookEvery = 32;

void count(std::size_t bytes) {
  state.bytes += bytes;
  ++state.allocations;
  const bool late =
      state.deadline_us > 0 && state.allocations % kLookEvery == 0 && now_us() > state.deadline_us;
  const bool large = state.bytes_max > 0 && state.bytes > state.bytes_max;
  if (!late && !large) return;
  // What unwinds from here allocates, too.
  state.deadline_us = 0;
  state.bytes_max = 0;
  throw Exceeded();
}

}  // namespace

Scope::Scope(std::int64_t time_us_max, std::size_t bytes_max) {
  state.active = true;
  state.deadline_us = time_us_max > 0 ? now_us() + time_us_max : 0;
  state.bytes_max = bytes_max;
  state.allocations = 0;
  state.bytes = 0;
  state.warning.clear();
}

Scope::~Scope() {
  state.active = false;
}

const std::string& Scope::warning() const {
  return state.warning;
}

}  // namespace koho::guard

/// What xgrammar's objects call in place of operator new.
extern "C" void* koho_guarded_new(std::size_t bytes) {
  if (koho::guard::state.active) koho::guard::count(bytes);
  return ::operator new(bytes);
}

namespace xgrammar {

// XGRAMMAR_LOG_CUSTOMIZE: xgrammar leaves these to whoever builds it.
[[noreturn]] void LogFatalImpl(const std::string& file, int lineno, const std::string& message);
void LogMessageImpl(const std::string& file, int lineno, int level, const std::string& message);

void LogFatalImpl(const std::string& /*file*/, int /*lineno*/, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string& /*file*/,
                    int /*lineno*/,
                    int level,
                    const std::string& message) {
  constexpr int kWarning = 2;
  koho::guard::State& state = koho::guard::state;
  if (level >= kWarning && state.active && state.warning.empty()) state.warning = message;
}

}  // namespace xgrammar
