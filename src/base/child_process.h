// SPDX-License-Identifier: Apache-2.0
// A program that this process starts, watches and ends. The parent is not forked: posix_spawn
// starts the program without running any code of ours in between, so threads, locks and open
// devices of the parent do not matter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "base/descriptor.h"
#include "base/error.h"

namespace koho {

/// A descriptor that becomes readable once this very process has ended, for its children. Errors:
/// unsupported (a kernel before 5.3).
Result<Descriptor> own_end_notice();

class ChildProcess {
 public:
  struct Start {
    std::string program;                 // a path
    std::vector<std::string> arguments;  // argv, with the program's name
    /// They become descriptors 3, 4, ... of the program. Standard input is empty, standard output
    /// and error are this process' standard error, and nothing else is open.
    std::vector<int> descriptors;
  };

  /// The program starts with SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 blocked: what a
  /// terminal or a service manager sends to all processes is the parent's to answer. NOTE:
  /// PR_SET_PDEATHSIG in the program refers to the thread that calls this. Errors: not_found (no
  /// such program), resource_exhausted, unsupported (a kernel before 5.4).
  static Result<ChildProcess> spawn(const Start& start);

  ChildProcess(ChildProcess&&) noexcept = default;
  ChildProcess& operator=(ChildProcess&&) noexcept = default;
  /// Kills the process, if it lives, and waits some seconds for its end.
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  /// Becomes readable once the process has ended.
  int end_notice() const { return notice_.get(); }
  /// SIGKILL, which a stopped process obeys, too.
  void kill() const;
  /// How it ended, "was killed by signal 9 (Killed)"; nothing while it lives. Waits up to
  /// `timeout_ms`.
  std::optional<std::string_view> ended(int timeout_ms = 0);

 private:
  ChildProcess() = default;

  pid_t pid_ = -1;
  Descriptor notice_;  // a pidfd
  std::string ending_;
};

}  // namespace koho
