// SPDX-License-Identifier: Apache-2.0
// For tests: commands of koho as processes in a directory of the test's own.
#pragma once

#include <cstdlib>
#include <string>
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
  Ran koho(const std::string& arguments, const std::string& input = "") const {
    write_file(directory_.path() / "input", input);
    const std::string command = "cd '" + directory_.path().string() + "' && '" KOHO_BINARY "' " +
                                arguments + " <input >out 2>err";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read("out"), read("err")};
  }
  std::string read(const char* name) const {
    const Result<std::string> text = read_file(directory_.path() / name, 64U << 20U);
    return text.ok() ? *text : "unreadable";
  }

  TemporaryDirectory directory_;
};

}  // namespace koho::testing
