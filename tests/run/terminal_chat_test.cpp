// SPDX-License-Identifier: Apache-2.0
// The interactive chat of `koho run` on a pseudo-terminal.
#include <chrono>
#include <poll.h>
#include <pty.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

namespace koho::testing {
namespace {

constexpr const char* kModel = KOHO_SOURCE_DIR "/models/tiny";
constexpr const char* kInterrupt = "\x03";  // Ctrl-C
constexpr const char* kEnd = "\x04";        // Ctrl-D

/// `koho run` on its own pseudo-terminal.
class TerminalChat {
 public:
  explicit TerminalChat(std::vector<const char*> flags) {
    std::vector<const char*> arguments{KOHO_BINARY, "run", "--model", kModel, "--device", "cpu"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.push_back(nullptr);
    child_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (child_ != 0) return;
    execv(KOHO_BINARY, const_cast<char* const*>(arguments.data()));
    _exit(127);
  }
  TerminalChat(const TerminalChat&) = delete;
  TerminalChat& operator=(const TerminalChat&) = delete;
  ~TerminalChat() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    close(terminal_);
  }

  void type(const std::string& text) {
    ASSERT_EQ(write(terminal_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  /// Reads until `text` has appeared after what earlier calls saw; false after a minute.
  bool sees(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < deadline) {
      const std::size_t at = screen_.find(text, seen_);
      if (at != std::string::npos) {
        seen_ = at + text.size();
        return true;
      }
      pollfd ready{.fd = terminal_, .events = POLLIN, .revents = 0};
      if (poll(&ready, 1, 100) <= 0) continue;
      char piece[4096];
      const ssize_t got = read(terminal_, piece, sizeof piece);
      if (got <= 0) return false;
      screen_.append(piece, static_cast<std::size_t>(got));
    }
    return false;
  }

  /// The exit code, or -1.
  int exit_code() {
    char piece[4096];
    while (read(terminal_, piece, sizeof piece) > 0) {
    }
    int status = 0;
    waitpid(child_, &status, 0);
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  const std::string& screen() const { return screen_; }

 private:
  int terminal_ = -1;
  pid_t child_ = -1;
  std::string screen_;
  std::size_t seen_ = 0;
};

TEST(TerminalChat, RemembersTheTurnsAndEndsWithCtrlD) {
  TerminalChat chat({"--temperature", "0"});
  ASSERT_TRUE(chat.sees("> ")) << chat.screen();
  chat.type("What is the capital of France?\n");
  ASSERT_TRUE(chat.sees("\x1b[2mThe capital")) << "reasoning is dim: " << chat.screen();
  ASSERT_TRUE(chat.sees("\x1b[0m")) << chat.screen();
  ASSERT_TRUE(chat.sees("Paris")) << chat.screen();
  ASSERT_TRUE(chat.sees("[12 prompt tokens")) << chat.screen();
  ASSERT_TRUE(chat.sees("> ")) << chat.screen();
  EXPECT_EQ(chat.screen().find("think>"), std::string::npos) << chat.screen();
  chat.type("And of Italy?\n");
  ASSERT_TRUE(chat.sees("[27 prompt tokens")) << "with the first turn: " << chat.screen();
  ASSERT_TRUE(chat.sees("> ")) << chat.screen();
  chat.type(kEnd);
  EXPECT_EQ(chat.exit_code(), 0);
}

TEST(TerminalChat, CtrlCStopsTheAnswerAndNotTheChat) {
  TerminalChat chat({"--no-thinking", "--ignore-eos", "--max-tokens", "7000"});
  ASSERT_TRUE(chat.sees("> ")) << chat.screen();
  chat.type(kInterrupt);
  ASSERT_TRUE(chat.sees("> ")) << "at the prompt it does nothing: " << chat.screen();
  chat.type("Hello\n");
  ASSERT_TRUE(chat.sees("\n")) << chat.screen();
  ASSERT_TRUE(chat.sees("e")) << "the answer has begun: " << chat.screen();
  chat.type(kInterrupt);
  ASSERT_TRUE(chat.sees("generated at")) << chat.screen();
  EXPECT_EQ(chat.screen().find(" 7000 generated"), std::string::npos) << chat.screen();
  ASSERT_TRUE(chat.sees("> ")) << chat.screen();
  chat.type(kEnd);
  EXPECT_EQ(chat.exit_code(), 0);
}

TEST(TerminalAnswer, CtrlCEndsItWithAnExitCode) {
  TerminalChat answer({"Once upon a time", "--ignore-eos", "--max-tokens", "7000"});
  ASSERT_TRUE(answer.sees("e")) << "the answer has begun: " << answer.screen();
  answer.type(kInterrupt);
  EXPECT_EQ(answer.exit_code(), 130);
}

TEST(TerminalAnswer, ControlCharactersAreShownAndNotObeyed) {
  for (const char* prompt : {"--chat=Hi", "Hi"}) {
    TerminalChat answer({prompt, "--no-thinking", "--temperature", "0", "--max-tokens", "9",
                         "--regex", "\x1b\\[31m\x01"});
    ASSERT_TRUE(answer.sees("\\x1b[31m\\x01")) << answer.screen();
    EXPECT_EQ(answer.exit_code(), 0);
    EXPECT_EQ(answer.screen().find('\x1b'), std::string::npos) << answer.screen();
  }
}

}  // namespace
}  // namespace koho::testing
