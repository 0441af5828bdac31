// SPDX-License-Identifier: Apache-2.0
// The program on a pseudo-terminal: the chat and its line editor, answers, progress bars, Ctrl-C.
#include <chrono>
#include <cstdlib>
#include <poll.h>
#include <pty.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_directory.h"

namespace koho::testing {
namespace {

constexpr const char* kModel = KOHO_SOURCE_DIR "/models/tiny";
constexpr const char* kInterrupt = "\x03";  // Ctrl-C
constexpr const char* kEnd = "\x04";        // Ctrl-D

/// A command of koho on its own pseudo-terminal of 100 columns.
class TerminalChat {
 public:
  explicit TerminalChat(std::vector<const char*> flags, const char* command = "run") {
    std::vector<const char*> arguments{KOHO_BINARY, command, "--model", kModel, "--device", "cpu"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.push_back(nullptr);
    const winsize size{.ws_row = 40, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
    child_ = forkpty(&terminal_, nullptr, nullptr, &size);
    if (child_ != 0) return;
    setenv("TERM", "xterm", 1);
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

  /// Reads until `text` has appeared after what earlier calls saw; false: it does not come.
  bool sees(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
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

TEST(TerminalChat, AtThePromptCtrlCLeavesTheSecondTime) {
  TerminalChat chat({"--history", "none"}, "chat");
  ASSERT_TRUE(chat.sees("/help")) << chat.screen();
  ASSERT_TRUE(chat.sees("> ")) << chat.screen();
  chat.type("half a line");
  ASSERT_TRUE(chat.sees("line")) << chat.screen();
  chat.type(kInterrupt);
  ASSERT_TRUE(chat.sees("Ctrl-C again leaves")) << chat.screen();
  ASSERT_TRUE(chat.sees("> ")) << chat.screen();
  chat.type(kInterrupt);
  EXPECT_EQ(chat.exit_code(), 130) << chat.screen();
}

TEST(TerminalChat, CtrlCStopsTheAnswerAndThenTheProgram) {
  TerminalChat chat({"--history", "none", "--no-thinking", "--ignore-eos"}, "chat");
  ASSERT_TRUE(chat.sees("> ")) << chat.screen();
  chat.type("Hello\n");
  ASSERT_TRUE(chat.sees("e")) << chat.screen();
  ASSERT_TRUE(chat.sees("e")) << "the answer has begun: " << chat.screen();
  chat.type(kInterrupt);
  ASSERT_TRUE(chat.sees("generated")) << chat.screen();
  ASSERT_TRUE(chat.sees("> ")) << chat.screen();
  chat.type(kInterrupt);
  EXPECT_EQ(chat.exit_code(), 130) << chat.screen();
}

TEST(TerminalChat, KeepsItsHistoryForTheArrowKeys) {
  const TemporaryDirectory directory;
  const std::string file = (directory.path() / "history").string();
  for (int run = 0; run < 2; ++run) {
    TerminalChat chat({"--history", file.c_str(), "--temperature", "0"}, "chat");
    ASSERT_TRUE(chat.sees("> ")) << chat.screen();
    // The second time the arrow brings back what was typed the first time.
    chat.type(run == 0 ? "What is the capital of France?\n" : "\x1b[A\n");
    ASSERT_TRUE(chat.sees("Paris")) << chat.screen();
    ASSERT_TRUE(chat.sees("[12 prompt tokens")) << chat.screen();
    ASSERT_TRUE(chat.sees("> ")) << chat.screen();
    chat.type(kEnd);
    EXPECT_EQ(chat.exit_code(), 0);
  }
}

TEST(TerminalChat, APastedBlockIsOneMessageAndLettersAreUtf8) {
  const TemporaryDirectory directory;
  const std::string file = (directory.path() / "talk.json").string();
  TerminalChat chat({"--history", "none", "--max-tokens", "2"}, "chat");
  ASSERT_TRUE(chat.sees("\x1b[?2004h"))
      << "the terminal is asked to bracket pastes: " << chat.screen();
  chat.type("\x1b[200~first\rsecond\x1b[201~ k\xc3\xb3h\xc3\xb3\n");
  ASSERT_TRUE(chat.sees("2 generated")) << chat.screen();
  ASSERT_TRUE(chat.sees("> ")) << chat.screen();
  chat.type("/save " + file + "\n");
  ASSERT_TRUE(chat.sees("2 messages in")) << chat.screen();
  // A Ctrl-D before the editor asks for single keys would reach it as a zero byte.
  ASSERT_TRUE(chat.sees("> ")) << chat.screen();
  const Result<std::string> saved = read_file(file, 1U << 20U);
  ASSERT_TRUE(saved.ok());
  EXPECT_NE(saved->find("\"content\":\"first\\nsecond k\xc3\xb3h\xc3\xb3\""), std::string::npos)
      << *saved;
  chat.type(kEnd);
  EXPECT_EQ(chat.exit_code(), 0);
}

TEST(TerminalChat, ColoursMarkdownAndCode) {
  TerminalChat chat({"--history", "none", "--no-thinking", "--regex",
                     "# Title\n\\*\\*bold\\*\\* `code`\n```python\nreturn 42 # why\n```\n"},
                    "chat");
  ASSERT_TRUE(chat.sees("> ")) << chat.screen();
  chat.type("Hi\n");
  for (const char* part : {"\x1b[1;36m# Title", "\x1b[1m**bold**", "\x1b[36m`code`", "```python",
                           "\x1b[34mreturn\x1b[0m", "\x1b[33m42\x1b[0m", "\x1b[2m# why", "```"})
    ASSERT_TRUE(chat.sees(part)) << part << ": " << chat.screen();
  ASSERT_TRUE(chat.sees("generated")) << chat.screen();
  ASSERT_TRUE(chat.sees("> ")) << chat.screen();
  chat.type(kEnd);
  EXPECT_EQ(chat.exit_code(), 0);
}

TEST(TerminalAnswer, NoColorMeansNone) {
  setenv("NO_COLOR", "1", 1);
  TerminalChat answer({"What is the capital of France?", "--temperature", "0"});
  unsetenv("NO_COLOR");
  EXPECT_TRUE(answer.sees("<think>The capital of France is Paris.</think>")) << answer.screen();
  EXPECT_EQ(answer.exit_code(), 0);
  EXPECT_EQ(answer.screen().find("\x1b["), std::string::npos) << answer.screen();
}

TEST(TerminalProgress, BenchAndBatchDrawABarWithRateAndTimeLeft) {
  {
    TerminalChat bench({"--duration", "2", "--concurrency", "2", "--gen-len", "8"}, "bench");
    for (const char* part : {"bench ", "\xe2\x96\x88", " % \xc2\xb7 ", " tok/s", " left"})
      ASSERT_TRUE(bench.sees(part)) << part << ": " << bench.screen();
    EXPECT_TRUE(bench.sees("Output token throughput")) << bench.screen();
    EXPECT_EQ(bench.exit_code(), 0);
  }
  const TemporaryDirectory directory;
  const std::string in = (directory.path() / "in.jsonl").string();
  std::string lines;
  for (int i = 0; i < 64; ++i)
    lines += "{\"id\":" + std::to_string(i) +
             R"(,"prompt":"Once","max_tokens":60,"ignore_eos":true})"
             "\n";
  write_file(in, lines);
  const std::string out = (directory.path() / "out.jsonl").string();
  TerminalChat batch({in.c_str(), out.c_str(), "--concurrency", "2", "--threads", "1"}, "batch");
  for (const char* part : {"batch ", " answered", " running", " tok/s"})
    ASSERT_TRUE(batch.sees(part)) << part << ": " << batch.screen();
  EXPECT_TRUE(batch.sees("64 answered, 0 refused")) << batch.screen();
  EXPECT_EQ(batch.exit_code(), 0);
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
