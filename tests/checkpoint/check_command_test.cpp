// SPDX-License-Identifier: Apache-2.0
// `koho check` on every broken model directory of the table: the library's one error, and its exit
// code.
#include <array>
#include <cstdio>
#include <string>
#include <sys/wait.h>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/printable.h"
#include "model/model_files.h"
#include "tests/checkpoint/mutations.h"
#include "tests/support/temporary_directory.h"

namespace koho {
namespace {

using testing::DirectoryImage;
using testing::Mutation;
using testing::TemporaryDirectory;

struct Outcome {
  int exit_code = 0;
  std::string errors;  // standard error
};

Outcome run_check(const std::filesystem::path& directory) {
  const std::string command =
      std::string(KOHO_PROGRAM) + " check --model " + directory.string() + " 2>&1 >/dev/null";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  Outcome outcome;
  std::array<char, 4096> buffer{};
  for (std::size_t got = 0; (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    outcome.errors.append(buffer.data(), got);
  const int status = ::pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

TEST(CheckCommand, TheUnbrokenDirectoryIsGood) {
  const TemporaryDirectory directory;
  testing::good_directory().write(directory.path());
  const Outcome outcome = run_check(directory.path());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.errors;
  EXPECT_EQ(outcome.errors, "");
}

TEST(CheckCommand, SaysItOnceAndExitsWithTheCode) {
  const DirectoryImage good = testing::good_directory();
  for (const Mutation& mutation : testing::all_mutations()) {
    SCOPED_TRACE(printable(mutation.name));
    const TemporaryDirectory directory;
    DirectoryImage image = good;
    mutation.apply(image);
    image.write(directory.path());
    const Outcome outcome = run_check(directory.path());
    const Result<ModelFiles> files = open_model_files(directory.path());
    ASSERT_FALSE(files.ok());
    EXPECT_EQ(outcome.exit_code, error_code_info(files.error().code).exit_code);
    if (image.files.empty()) {  // the command says what a model directory has
      EXPECT_NE(outcome.errors.find(" has no config.json: koho reads"), std::string::npos);
      continue;
    }
    EXPECT_EQ(outcome.errors, "koho: error: " + files.error().message + "\n");
  }
}

}  // namespace
}  // namespace koho
