// SPDX-License-Identifier: Apache-2.0
// For tests: commands of koho as processes in a directory of the test's own.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>
#include <sys/wait.h>

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "tests/support/temporary_directory.h"

namespace koho::testing {

/// What a command did.
struct Ran {
  int exit_code = -1;
  std::string output;
  std::string errors;
};

class CommandTest : public ::testing::Test {
 protected:
  /// Runs `arguments` behind "koho" in the test's directory, with `input` as standard input.
  Ran koho(const std::string& arguments, std::string_view input = "") const {
    write("input", input);
    const int exit_code = sh("'" KOHO_BINARY "' " + arguments + " <input >out 2>err");
    return {exit_code, read("out"), read("err")};
  }
  /// Runs a command of the shell there; its exit code, -1 if a signal ended it.
  int sh(const std::string& command) const {
    const int status =
        std::system(("cd '" + directory_.path().string() + "' && " + command).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void write(const char* name, std::string_view text) const {
    write_file(directory_.path() / name, text);
  }
  std::string read(const char* name) const {
    const Result<std::string> text = read_file(directory_.path() / name, 64U << 20U);
    return text.ok() ? *text : "unreadable";
  }

  TemporaryDirectory directory_;
};

}  // namespace koho::testing
