// SPDX-License-Identifier: Apache-2.0
// The C++ generator of the random checkpoints against its Python reference: every file, byte by
// byte (length and CRC-32), and the prompt.
#include "tests/support/random_checkpoint.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "tests/golden/golden_file.h"

namespace koho::testing {
namespace {

TEST(RandomCheckpoint, IsTheSameInPythonAndHere) {
  const Result<std::string> text = read_file(golden_path("checkpoints.json"), 1 << 20);
  ASSERT_TRUE(text.ok()) << text.error().message;
  const auto specs = parse_random_checkpoints(*text);
  ASSERT_TRUE(specs.ok()) << specs.error().message;
  const auto facts = read_golden_facts();
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  EXPECT_EQ(specs->size(), facts->size());
  for (const RandomCheckpointSpec& spec : *specs) {
    SCOPED_TRACE(spec.name);
    ASSERT_TRUE(facts->contains(spec.name)) << "run tools/make_golden.py --checkpoints";
    const CheckpointFacts& expected = facts->at(spec.name);
    const std::map<std::string, std::string> files = random_checkpoint_files(spec);
    EXPECT_EQ(files.size(), expected.files.size());
    for (const auto& [name, bytes] : files) {
      SCOPED_TRACE(name);
      ASSERT_TRUE(expected.files.contains(name));
      EXPECT_EQ(bytes.size(), expected.files.at(name).first);
      EXPECT_EQ(crc32(bytes), expected.files.at(name).second);
    }
    const auto golden = GoldenFile::open(spec.name + ".safetensors");
    ASSERT_TRUE(golden.ok()) << golden.error().message;
    EXPECT_EQ(random_checkpoint_prompt(spec), golden->integers("ids"));
  }
}

}  // namespace
}  // namespace koho::testing
