// SPDX-License-Identifier: Apache-2.0
// posix_spawn, pidfds. The system calls on pidfds go without the C library, which has them from
// glibc 2.36 on.
#include "base/child_process.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace koho {
namespace {

// A killed process that has not ended by then hangs in a driver; nobody can wait for it.
constexpr int kEndMs = 10'000;

constexpr idtype_t kByPidfd = static_cast<idtype_t>(3);  // P_PIDFD

int pidfd_of(pid_t pid) {
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));  // close-on-exec by itself
}

/// The attributes and file actions of one spawn, which are freed with it.
class Plan {
 public:
  Plan() {
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_init(&actions);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
  }

  void set_signals() {
    sigset_t blocked;
    sigemptyset(&blocked);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
      sigaddset(&blocked, signal);
    posix_spawnattr_setsigmask(&attributes, &blocked);
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes,
                             static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
  }

  /// `from` are above all numbers that they become.
  bool set_descriptors(const std::vector<Descriptor>& from) {
    bool good = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0) == 0;
    if (fcntl(STDERR_FILENO, F_GETFD) < 0)
      good = good && posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0) == 0;
    good = good && posix_spawn_file_actions_adddup2(&actions, 2, 1) == 0;
    int number = 3;
    for (const Descriptor& descriptor : from)
      good = good && posix_spawn_file_actions_adddup2(&actions, descriptor.get(), number++) == 0;
    return good && posix_spawn_file_actions_addclosefrom_np(&actions, number) == 0;
  }

  posix_spawnattr_t attributes{};
  posix_spawn_file_actions_t actions{};
};

std::string ending_of(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return fmt::format("ended with exit code {}", info.si_status);
  return fmt::format("was killed by signal {} ({})", info.si_status, strsignal(info.si_status));
}

}  // namespace

Result<Descriptor> own_end_notice() {
  Descriptor notice(pidfd_of(getpid()));
  if (notice.is_open()) return notice;
  return make_error(ErrorCode::unsupported, "processes cannot be watched (Linux 5.4 is needed): {}",
                    std::strerror(errno));
}

Result<ChildProcess> ChildProcess::spawn(const Start& start) {
  // Copies above the numbers that the child gives them: no copy overwrites another one's source.
  const int above = 3 + static_cast<int>(start.descriptors.size());
  std::vector<Descriptor> copies;
  for (const int descriptor : start.descriptors) {
    copies.emplace_back(fcntl(descriptor, F_DUPFD_CLOEXEC, above));
    if (!copies.back().is_open())
      return make_error(ErrorCode::resource_exhausted, "no descriptor for {}: {}", start.program,
                        std::strerror(errno));
  }
  std::vector<std::string> arguments = start.arguments;
  std::vector<char*> raw;
  for (std::string& argument : arguments) raw.push_back(argument.data());
  raw.push_back(nullptr);
  Plan plan;
  plan.set_signals();
  if (!plan.set_descriptors(copies))
    return make_error(ErrorCode::resource_exhausted, "{} could not be started: no memory",
                      start.program);
  ChildProcess child;
  const int refusal = posix_spawn(&child.pid_, start.program.c_str(), &plan.actions,
                                  &plan.attributes, raw.data(), environ);
  if (refusal != 0) {
    child.pid_ = -1;
    return make_error(refusal == ENOENT || refusal == EACCES ? ErrorCode::not_found
                                                             : ErrorCode::resource_exhausted,
                      "{} could not be started: {}", start.program, std::strerror(refusal));
  }
  child.notice_ = Descriptor(pidfd_of(child.pid_));
  if (child.notice_.is_open()) return child;
  const int reason = errno;
  ::kill(child.pid_, SIGKILL);
  waitpid(child.pid_, nullptr, 0);
  return make_error(ErrorCode::unsupported, "processes cannot be watched (Linux 5.4 is needed): {}",
                    std::strerror(reason));
}

ChildProcess::~ChildProcess() {
  if (!notice_.is_open() || !ending_.empty()) return;
  kill();
  ended(kEndMs);
}

void ChildProcess::kill() const {
  syscall(SYS_pidfd_send_signal, notice_.get(), SIGKILL, nullptr, 0);
}

std::optional<std::string_view> ChildProcess::ended(int timeout_ms) {
  if (!ending_.empty()) return ending_;
  pollfd waiting{.fd = notice_.get(), .events = POLLIN, .revents = 0};
  while (poll(&waiting, 1, timeout_ms) < 0 && errno == EINTR) {
  }
  if ((waiting.revents & POLLIN) == 0) return std::nullopt;
  siginfo_t info{};
  int refusal = 0;
  do {
    refusal = waitid(kByPidfd, static_cast<id_t>(notice_.get()), &info, WEXITED);
  } while (refusal != 0 && errno == EINTR);
  // A program that ignores SIGCHLD, or waits for every child, has taken the ending for itself.
  ending_ = refusal == 0 ? ending_of(info) : "has ended";
  return ending_;
}

}  // namespace koho
