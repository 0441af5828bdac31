// SPDX-License-Identifier: Apache-2.0
// A run of `koho serve` as a process, for the tests of the command.
#pragma once

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <sstream>
#include <string>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "tests/support/patience.h"

namespace koho::server {

inline const std::string kTiny = std::string(KOHO_SOURCE_DIR) + "/models/tiny";

/// A process of `koho serve` with its output in a file. `prepare` runs in the new process first.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments, void (*prepare)() = nullptr)
      : output_(std::tmpfile()) {
    arguments.insert(arguments.begin(), "serve");
    arguments.insert(arguments.begin(), KOHO_BINARY);
    process_ = fork();
    if (process_ != 0) return;
    if (prepare != nullptr) prepare();
    dup2(fileno(output_), STDOUT_FILENO);
    dup2(fileno(output_), STDERR_FILENO);
    std::vector<char*> raw;
    for (std::string& argument : arguments) raw.push_back(argument.data());
    raw.push_back(nullptr);
    execv(KOHO_BINARY, raw.data());
    _exit(127);
  }
  ~Process() {
    if (process_ > 0) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
    }
    std::fclose(output_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return process_; }
  void signal(int number) { kill(process_, number); }
  /// CPU seconds of all threads so far.
  double cpu_s() const {
    clockid_t clock = 0;
    timespec time{};
    if (clock_getcpuclockid(process_, &clock) != 0 || clock_gettime(clock, &time) != 0) return -1.0;
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
  }
  /// Waits for the end; returns the exit code, or minus the signal.
  int wait() {
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string output() {
    std::string text;
    char buffer[4096];
    long at = 0;
    while (true) {
      const ssize_t bytes = pread(fileno(output_), buffer, sizeof buffer, at);
      if (bytes <= 0) return text;
      text.append(buffer, static_cast<std::size_t>(bytes));
      at += bytes;
    }
  }
  /// Waits until `text` stands in the output. False: that does not come.
  bool says(std::string_view text) {
    return testing::comes_true([&] { return output().find(text) != std::string::npos; });
  }
  /// Waits for the log line "ready: … on 127.0.0.1:PORT"; 0 if the process ends before.
  std::uint16_t ready_port() {
    while (true) {
      const std::string text = output();
      const std::size_t ready = text.find("ready: ");
      if (ready != std::string::npos) {
        const std::size_t port = text.find("127.0.0.1:", ready) + 10;
        return static_cast<std::uint16_t>(std::stoi(text.substr(port)));
      }
      if (waitpid(process_, nullptr, WNOHANG) != 0) return 0;
      usleep(2000);
    }
  }

 private:
  std::FILE* output_;
  pid_t process_ = -1;
};

inline std::vector<std::string> serving(std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--model", kTiny, "--host=127.0.0.1", "--port", "0", "--threads", "1",
                           "--max_model_len", "2k", "--log-format", "json"});
  return more;
}

/// Waits for the log line of the request with that id.
inline std::string line_of(Process& process, const std::string& name) {
  std::string line;
  const bool came = testing::comes_true([&] {
    std::istringstream lines(process.output());
    while (std::getline(lines, line))
      if (line.find(R"("request_id":")" + name + '"') != std::string::npos) return true;
    return false;
  });
  return came ? line : std::string();
}

}  // namespace koho::server
