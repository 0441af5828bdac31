// SPDX-License-Identifier: Apache-2.0
// Every broken model directory of the table gives one clear error that names the culprit.
#include <cstdio>
#include <set>
#include <string>

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

/// What is wrong with an error message, or nothing.
std::string fault_of(const std::string& message, const Mutation& mutation) {
  if (message.empty()) return "empty";
  if (message.size() > 6000) return "too long";
  for (const char c : message)
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n') return "control characters";
  for (const std::string& word : mutation.words)
    if (message.find(word) == std::string::npos) return "lacks '" + word + "'";
  return "";
}

TEST(CorruptCheckpoint, TheUnbrokenDirectoryIsGood) {
  const TemporaryDirectory directory;
  testing::good_directory().write(directory.path());
  const Result<ModelFiles> files = open_model_files(directory.path());
  ASSERT_TRUE(files.ok()) << files.error().message;
}

TEST(CorruptCheckpoint, EveryMutationGivesOneClearError) {
  const std::vector<Mutation> mutations = testing::all_mutations();
  const DirectoryImage good = testing::good_directory();
  EXPECT_GE(mutations.size(), 200U);
  std::set<std::string> names;
  for (const Mutation& mutation : mutations) {
    SCOPED_TRACE(printable(mutation.name));
    EXPECT_TRUE(names.insert(mutation.name).second) << "the name appears twice";
    const TemporaryDirectory directory;
    DirectoryImage image = good;
    mutation.apply(image);
    image.write(directory.path());
    const Result<ModelFiles> files = open_model_files(directory.path());
    if (files.ok()) {
      ADD_FAILURE() << "was accepted";
      continue;
    }
    EXPECT_NE(files.error().code, ErrorCode::internal);
    EXPECT_EQ(fault_of(files.error().message, mutation), "") << files.error().message;
  }
  std::printf("%zu mutations\n", mutations.size());
}

}  // namespace
}  // namespace koho
