// SPDX-License-Identifier: Apache-2.0
#include "plan/flat_result.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace koho {
namespace {

constexpr ResultBounds kBounds{.rows_max = 8, .vocabulary = 100};

/// A result of three rows with everything in it, and its bytes.
struct Example {
  StepResult result;
  std::vector<std::uint64_t> words =
      std::vector<std::uint64_t>(flat_result_bytes(kBounds.rows_max, kBounds.vocabulary) / 8);
  std::size_t size = 0;

  Example() {
    result.step = 77;
    result.tokens = {5, -1, kSampledElsewhere};
    result.ends = {RowEnd::none, RowEnd::ended, RowEnd::frozen};
    result.logprobs = {-0.5F, -1.5F, 0.0F};
    result.top_ids.assign(3 * StepResult::kTop, 99);
    result.top_logprobs.assign(3 * StepResult::kTop, -2.0F);
    result.logits_rows = {0, 2};
    for (int i = 0; i < 2 * kBounds.vocabulary; ++i)
      result.logits.push_back(0.5F * static_cast<float>(i));
    size = write_flat_result(result, space());
  }
  std::span<std::byte> space() { return std::as_writable_bytes(std::span(words)); }
  Status read(StepResult& into) { return read_flat_result(space().first(size), kBounds, into); }
};

TEST(FlatResult, ComesBackAsItWas) {
  Example example;
  StepResult read;
  ASSERT_TRUE(example.read(read).ok());
  EXPECT_EQ(read.step, 77);
  EXPECT_EQ(read.tokens, example.result.tokens);
  EXPECT_EQ(read.ends, example.result.ends);
  EXPECT_EQ(read.logprobs, example.result.logprobs);
  EXPECT_EQ(read.top_ids, example.result.top_ids);
  EXPECT_EQ(read.top_logprobs, example.result.top_logprobs);
  EXPECT_EQ(read.logits_rows, example.result.logits_rows);
  EXPECT_EQ(read.logits, example.result.logits);
  example.result.logprobs.clear();
  example.result.top_ids.clear();
  example.result.top_logprobs.clear();
  example.result.logits_rows.clear();
  example.result.logits.clear();
  example.size = write_flat_result(example.result, example.space());
  ASSERT_TRUE(example.read(read).ok());
  EXPECT_TRUE(read.logprobs.empty() && read.top_ids.empty() && read.top_logprobs.empty());
  EXPECT_TRUE(read.logits_rows.empty() && read.logits.empty());
}

TEST(FlatResult, CarriesAnErrorWithItsCode) {
  Example example;
  example.size =
      write_flat_error(make_error(ErrorCode::device_error, "an illegal address"), example.space());
  StepResult read;
  const Status status = example.read(read);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::device_error);
  EXPECT_EQ(status.error().message, "an illegal address");
  const std::string endless(1 << 20, 'x');
  example.size = write_flat_error(Error{ErrorCode::internal, endless}, example.space());
  ASSERT_LE(example.size, flat_result_bytes(0));
  const Status cut = example.read(read);
  EXPECT_EQ(cut.error().message, endless.substr(0, 1024));
}

TEST(FlatResult, WrongNumbersAreRefusedByName) {
  const auto expect_error = [](const char* name, const auto& change) {
    Example example;
    change(example.result);
    example.size = write_flat_result(example.result, example.space());
    StepResult read;
    const Status status = example.read(read);
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_EQ(status.error().code, ErrorCode::corrupt_data);
    EXPECT_NE(status.error().message.find(name), std::string::npos) << status.error().message;
  };
  expect_error("a token", [](StepResult& result) { result.tokens[0] = 100; });
  expect_error("a token", [](StepResult& result) { result.tokens[0] = -3; });
  expect_error("a row's end", [](StepResult& result) { result.ends[0] = static_cast<RowEnd>(9); });
  expect_error("a row of logits", [](StepResult& result) { result.logits_rows[1] = 3; });
  expect_error("a row of logits", [](StepResult& result) { result.logits_rows[0] = -1; });
  expect_error("a row of logits", [](StepResult& result) { result.logits_rows[1] = 0; });
  expect_error("the length of logits", [](StepResult& result) { result.logits.resize(198); });
}

TEST(FlatResult, AlternativesOfARowThatAskedForNoneMayBeAnything) {
  Example example;
  example.result.top_ids[7] = 1'000'000;
  example.size = write_flat_result(example.result, example.space());
  StepResult read;
  ASSERT_TRUE(example.read(read).ok());
  EXPECT_EQ(read.top_ids[7], 0);
  EXPECT_EQ(read.top_ids[6], 99);
}

TEST(FlatResult, SurvivesAnyBytes) {
  std::mt19937_64 random(3);
  int accepted = 0;
  for (int round = 0; round < 200'000; ++round) {
    Example example;
    if (round % 3 == 0) example.size = write_flat_error({}, example.space());
    for (std::uint64_t change = random() % 4; change > 0; --change)
      example.space()[random() % (random() % 2 == 0 ? 48 : example.size)] =
          static_cast<std::byte>(random());
    if (random() % 8 == 0) example.size = random() % example.space().size();
    StepResult read;
    const Status status = example.read(read);
    if (!status.ok()) continue;
    ++accepted;
    ASSERT_LE(read.tokens.size(), 8U);
    ASSERT_EQ(read.ends.size(), read.tokens.size());
    ASSERT_EQ(read.logits.size(), read.logits_rows.size() * 100);
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace koho
