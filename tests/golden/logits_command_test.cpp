// SPDX-License-Identifier: Apache-2.0
// `koho logits` from outside: what it writes is, bit for bit, what the model gives in one step.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "cpu/cpu_backend.h"
#include "tests/golden/golden_file.h"
#include "tests/golden/koho_model.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/temporary_directory.h"

namespace koho::testing {
namespace {

/// The numbers of a version 1 .npy file whose header must name `shape`.
std::vector<float> read_npy(const std::filesystem::path& path, const std::string& shape) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  constexpr std::size_t kPreamble = 10;  // magic, version, header length
  if (bytes.size() < kPreamble || bytes.compare(0, 6, "\x93NUMPY") != 0) return {};
  const std::size_t header = static_cast<std::uint8_t>(bytes[8]) +
                             256U * static_cast<std::size_t>(static_cast<std::uint8_t>(bytes[9]));
  const std::string description = bytes.substr(kPreamble, header);
  EXPECT_NE(description.find("'<f4'"), std::string::npos) << description;
  EXPECT_NE(description.find(shape), std::string::npos) << description;
  std::vector<float> values((bytes.size() - kPreamble - header) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + kPreamble + header, values.size() * sizeof(float));
  return values;
}

TEST(LogitsCommand, WritesWhatTheModelGivesInOneStep) {
  const Result<std::string> text = read_file(golden_path("checkpoints.json"), 1 << 20);
  ASSERT_TRUE(text.ok()) << text.error().message;
  const auto specs = parse_random_checkpoints(*text);
  ASSERT_TRUE(specs.ok()) << specs.error().message;
  const RandomCheckpointSpec& spec = specs->front();
  const TemporaryDirectory directory;
  write_random_checkpoint(directory.path(), spec);
  const std::vector<std::int32_t> ids = random_checkpoint_prompt(spec);
  Result<KohoModel> model = KohoModel::load(directory.path(), static_cast<std::int64_t>(ids.size()),
                                            make_cpu_backend({}));
  ASSERT_TRUE(model.ok()) << model.error().message;
  const Result<std::vector<float>> expected = model->prefill(ids);
  ASSERT_TRUE(expected.ok()) << expected.error().message;

  const std::string at = directory.path().string();
  write_file(directory.path() / "ids.json", fmt::format("[{}]", fmt::join(ids, ", ")));
  for (const int chunk : {100, 1}) {
    const std::string command =
        fmt::format("'{}' logits --model '{}' --ids '{}/ids.json' --out '{}/logits.npy' --chunk {}",
                    KOHO_BINARY, at, at, at, chunk);
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    EXPECT_EQ(read_npy(directory.path() / "logits.npy",
                       fmt::format("({}, {})", ids.size(), model->vocabulary())),
              *expected)
        << command;
  }
}

}  // namespace
}  // namespace koho::testing
