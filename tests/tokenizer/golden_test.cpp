// SPDX-License-Identifier: Apache-2.0
// Compares ids and texts with those of Hugging Face tokenizers on random strings and lists of ids,
// and pieces with those of the GLM-4.5 tokenizer.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/json.h"
#include "tests/tokenizer/tokenizer_json.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace koho {
namespace {

const std::filesystem::path kData = std::filesystem::path(KOHO_SOURCE_DIR) / "tests/tokenizer/data";

using Ids = std::vector<std::int32_t>;

std::vector<json::Value> read_lines(const std::filesystem::path& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in) << path;
  std::vector<json::Value> values;
  for (std::string line; std::getline(in, line);) {
    Result<json::Value> value = json::parse(line);
    EXPECT_TRUE(value.ok()) << (value.ok() ? "" : value.error().message);
    if (value.ok()) values.push_back(std::move(*value));
  }
  return values;
}

Ids ids_of(const json::Value& value) {
  Ids ids;
  for (const json::Value& id : *value.array())
    ids.push_back(static_cast<std::int32_t>(id.integer().value()));
  return ids;
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  Detokenizer stream(tokenizer, skip_special);
  std::string text;
  for (const std::int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

void expect_encoding(const Tokenizer& tokenizer, const json::Value& line) {
  const std::string& text = *line.find("text")->string();
  const Result<Ids> plain = tokenizer.encode(text);
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  EXPECT_EQ(*plain, ids_of(*line.find("ids"))) << text;
  EXPECT_EQ(tokenizer.decode(*plain), text);
  const json::Value* with_special = line.find("ids_with_special");
  const Result<Ids> special = tokenizer.encode_with_special(text);
  ASSERT_TRUE(special.ok()) << special.error().message;
  EXPECT_EQ(*special, with_special != nullptr ? ids_of(*with_special) : *plain) << text;
}

void expect_decoding(const Tokenizer& tokenizer, const json::Value& line) {
  const Ids ids = ids_of(*line.find("decode"));
  const std::string& text = *line.find("text")->string();
  const json::Value* other = line.find("text_without_special");
  const std::string& skipped = other != nullptr ? *other->string() : text;
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_EQ(tokenizer.decode(ids, true), skipped);
  EXPECT_EQ(streamed(tokenizer, ids, false), text);
  EXPECT_EQ(streamed(tokenizer, ids, true), skipped);
}

void expect_equal_to_golden(const std::filesystem::path& model, const char* golden) {
  const Result<Tokenizer> tokenizer = Tokenizer::load(model / "tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const std::vector<json::Value> lines = read_lines(kData / golden);
  ASSERT_EQ(lines.size(), 600U);
  for (const json::Value& line : lines) {
    if (line.find("decode") != nullptr) {
      expect_decoding(*tokenizer, line);
    } else {
      expect_encoding(*tokenizer, line);
    }
  }
}

TEST(TokenizerGolden, EqualsHuggingFaceOnRandomStringsAndIdLists) {
  expect_equal_to_golden(kData / "small", "small.jsonl");
}

TEST(TokenizerGolden, EqualsHuggingFaceOnTheEmbeddedModelsTokenizer) {
  expect_equal_to_golden(std::filesystem::path(KOHO_SOURCE_DIR) / "models/tiny", "tiny.jsonl");
}

TEST(TokenizerGolden, CutsTextIntoThePiecesOfTheRealTokenizer) {
  const std::vector<std::string> patterns{testing::TokenizerRecipe().pattern};
  const Result<PreTokenizer> pre_tokenizer = PreTokenizer::compile(patterns);
  ASSERT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.error().message;
  const std::vector<json::Value> lines = read_lines(kData / "glm4_pieces.jsonl");
  ASSERT_EQ(lines.size(), 68U);
  for (const json::Value& line : lines) {
    const std::string& text = *line.find("text")->string();
    std::vector<std::uint32_t> ends;
    ASSERT_TRUE(pre_tokenizer->split(text, ends).ok());
    std::vector<std::uint32_t> expected;
    std::uint32_t end = 0;
    for (const json::Value& piece : *line.find("pieces")->array())
      expected.push_back(end += static_cast<std::uint32_t>(piece.string()->size()));
    EXPECT_EQ(ends, expected) << text;
  }
}

}  // namespace
}  // namespace koho
