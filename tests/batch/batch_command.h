// SPDX-License-Identifier: Apache-2.0
// Runs `koho batch` in a directory of its own, and reads what it wrote.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <sys/wait.h>

#include <gtest/gtest.h>

#include "chat/json.h"
#include "tests/support/command_test.h"

namespace koho::testing {

using chat::Json;

inline const std::string kModel = KOHO_SOURCE_DIR "/models/tiny";

inline std::string text_of(const Json* json) {
  return json == nullptr ? "missing" : json->is_string() ? json->text : chat::dump_json(*json);
}

class BatchCommand : public CommandTest {
 protected:
  std::filesystem::path path(const char* name) const { return directory_.path() / name; }

  /// Runs a shell command in the directory; `bare` is the batch command with the model, `koho` the
  /// same with sizes.
  Ran shell(const std::string& command) const {
    const std::string whole =
        "cd '" + directory_.path().string() + "' && bare() { '" KOHO_BINARY "' batch --model '" +
        kModel + "' \"$@\"; } && koho() { bare --context 512 --kv-pages 200 \"$@\"; } && { " +
        command + "; } >out 2>err";
    const int status = std::system(("bash -c '" + escaped(whole) + "'").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read("out"),
            read("err")};
  }
  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out;
  }

  /// The lines of a file of answers, by id as JSON.
  std::multimap<std::string, Json> answers(const char* name) const {
    std::multimap<std::string, Json> found;
    const std::string text = read(name);
    EXPECT_TRUE(text.empty() || text.back() == '\n');
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\n', begin);
      Result<Json> json = chat::parse_json(std::string_view(text).substr(begin, end - begin));
      EXPECT_TRUE(json.ok()) << text.substr(begin, end - begin);
      if (json.ok()) found.emplace(chat::dump_json(*json->find("id")), std::move(json).value());
      begin = end + 1;
    }
    return found;
  }
  /// What does not depend on time.
  static std::string result_of(const Json& answer) {
    std::string result;
    for (const char* name : {"ids", "text", "finish_reason", "stop_reason", "logprobs", "choices"})
      if (const Json* value = answer.find(name)) result += chat::dump_json(*value) + "\n";
    return result;
  }
  static std::string error_of(const Json& answer) {
    const Json* error = answer.find("error");
    return error == nullptr ? "no error" : text_of(error->find("message"));
  }
  /// `count` greedy and sampled requests of short prompts.
  static std::string requests(int count) {
    std::string lines;
    for (int i = 0; i < count; ++i)
      lines += R"({"id":"r)" + std::to_string(i) + R"(","prompt":"Once upon a time there were )" +
               std::to_string(i) + R"( foxes","max_tokens":)" + std::to_string(4 + i % 13) +
               R"(,"temperature":)" + (i % 2 == 0 ? "0" : "1.1") + R"(,"seed":)" +
               std::to_string(i) + R"(,"logprobs":2})" + "\n";
    return lines;
  }
};

}  // namespace koho::testing
