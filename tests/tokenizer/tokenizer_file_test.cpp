// SPDX-License-Identifier: Apache-2.0
// A tokenizer.json that asks for an unsupported feature or contradicts itself is refused with the
// name of the field.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tokenizer/tokenizer_json.h"
#include "tokenizer/tokenizer.h"

namespace koho {
namespace {

testing::TokenizerRecipe good_recipe() {
  testing::TokenizerRecipe recipe;
  recipe.tokens = {"hi", " hi"};
  recipe.merges = {{"h", "i"}, {" ", "hi"}};
  recipe.added = {{"<|user|>", 258, true, false}, {"<think>", 259, false, false}};
  return recipe;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  if (place != std::string::npos) text.replace(place, from.size(), to);
  return text;
}

struct Change {
  const char* from;
  const char* to;
  ErrorCode code;
  const char* named;  // what the message contains
};

TEST(TokenizerFile, RefusesUnsupportedFeaturesByName) {
  const std::string good = testing::tokenizer_json(good_recipe());
  const std::vector<Change> changes{
      {"\"1.0\"", "\"2.0\"", ErrorCode::unsupported, "version"},
      {"\"truncation\": null", "\"truncation\": {}", ErrorCode::unsupported, "truncation"},
      {"\"padding\": null", "\"padding\": {}", ErrorCode::unsupported, "padding"},
      {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}", ErrorCode::unsupported,
       "normalizer"},
      {"\"version\"", "\"colour\": 1, \"version\"", ErrorCode::unsupported, "colour"},
      {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", ErrorCode::unsupported, "Unigram"},
      {"\"dropout\": null", "\"dropout\": 0.1", ErrorCode::unsupported, "model.dropout"},
      {"\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\"", ErrorCode::unsupported,
       "model.end_of_word_suffix"},
      {"\"byte_fallback\": false", "\"byte_fallbacks\": false", ErrorCode::unsupported,
       "model.byte_fallbacks"},
      {"\"type\": \"Split\"", "\"type\": \"Digits\"", ErrorCode::unsupported,
       "pre_tokenizer.pretokenizers[0].type"},
      {"\"Isolated\"", "\"Removed\"", ErrorCode::unsupported, "behavior"},
      {"\"invert\": false", "\"invert\": true", ErrorCode::unsupported, "invert"},
      {"\"Regex\"", "\"String\"", ErrorCode::unsupported, "pattern.String"},
      {"{1,3}", "{,3}", ErrorCode::unsupported, "split pattern"},
      {"\"add_prefix_space\": false", "\"add_prefix_space\": true", ErrorCode::unsupported,
       "add_prefix_space"},
      {"\"post_processor\": {\"type\": \"ByteLevel\"",
       "\"post_processor\": {\"type\": \"TemplateProcessing\"", ErrorCode::unsupported,
       "TemplateProcessing"},
      {"\"decoder\": {\"type\": \"ByteLevel\"", "\"decoder\": {\"type\": \"WordPiece\"",
       ErrorCode::unsupported, "decoder.type"},
      {"\"single_word\": false", "\"single_word\": true", ErrorCode::unsupported,
       "'<|user|>': added_tokens[0].single_word"},
      {"\"lstrip\": false", "\"lstrip\": true", ErrorCode::unsupported, "lstrip"},
      {"\"rstrip\": false", "\"rstrip\": true", ErrorCode::unsupported, "rstrip"},
  };
  ASSERT_TRUE(Tokenizer::from_json(good).ok());
  for (const Change& change : changes) {
    const Result<Tokenizer> tokenizer =
        Tokenizer::from_json(replaced(good, change.from, change.to));
    ASSERT_FALSE(tokenizer.ok()) << change.to;
    EXPECT_EQ(tokenizer.error().code, change.code) << tokenizer.error().message;
    EXPECT_NE(tokenizer.error().message.find(change.named), std::string::npos)
        << tokenizer.error().message;
  }
}

TEST(TokenizerFile, RefusesContradictions) {
  const std::string good = testing::tokenizer_json(good_recipe());
  const std::vector<Change> changes{
      {"\"hi\": 256", "\"hi\": 257", ErrorCode::corrupt_data, "id 257"},
      {"\"hi\": 256", "\"hi\": 300", ErrorCode::corrupt_data, "id 300"},
      {"\"hi\": 256", "\"hi\": -1", ErrorCode::corrupt_data, "'hi'"},
      {"\"hi\": 256", "\"hi\": 4294967552", ErrorCode::corrupt_data, "'hi'"},
      {"\"hi\": 256", "\"hi\": \"256\"", ErrorCode::corrupt_data, "'hi'"},
      {"\"hi\": 256", "\"hi\": [256]", ErrorCode::corrupt_data, "'hi'"},
      {"\"hi\": 256", "\"h\": 256", ErrorCode::corrupt_data, "'h' has two ids"},
      {"\"a\": 97", "\"aa\": 97", ErrorCode::corrupt_data, "0x61"},
      {"\"h\",\n        \"i\"", "\"h\",\n        \"q\"", ErrorCode::corrupt_data, "entry 0"},
      {"\"h\",\n        \"i\"", "\"h\",\n        \"iii\"", ErrorCode::corrupt_data, "'iii'"},
      {"\"h\",\n        \"i\"", "\"h\"", ErrorCode::corrupt_data, "entry 0"},
      {"\"h\",\n        \"i\"", "\"h\", \"i\", \"j\"", ErrorCode::corrupt_data, "entry"},
      {"\"h\",\n        \"i\"", "\"h\", 1", ErrorCode::corrupt_data, "entry 0"},
      {"\"id\": 258", "\"id\": 259", ErrorCode::corrupt_data, "both have the id 259"},
      {"\"id\": 258", "\"id\": 257", ErrorCode::corrupt_data, "another token"},
      {"\"id\": 258", "\"id\": 99999999", ErrorCode::corrupt_data, "added_tokens[0].id"},
      {"<|user|>", "<think>", ErrorCode::corrupt_data, "appears twice"},
      {"<|user|>", "hi", ErrorCode::corrupt_data, "256 in model.vocab"},
      {"<|user|>", "", ErrorCode::corrupt_data, "added_tokens[0].content"},
      {"\"unk_token\": null", "\"unk_token\": 7", ErrorCode::corrupt_data, "model.unk_token"},
      {"\"byte_fallback\": false", "\"byte_fallback\": 1", ErrorCode::corrupt_data,
       "model.byte_fallback"},
      {"\"special\": true", "\"special\": 1", ErrorCode::corrupt_data, "special"},
      {"\"vocab\": {", "\"vocab\": [], \"vocab\": {", ErrorCode::corrupt_data, "vocab"},
      {"\"vocab\": {", "\"vocab\": {}, \"vocab\": {", ErrorCode::corrupt_data, "vocab"},
      {"\"merges\": [", "\"merges\": [], \"merges\": [", ErrorCode::corrupt_data, "merges"},
      {"\"merges\": [", "\"mergers\": [", ErrorCode::unsupported, "model.mergers"},
      {"\"decoder\": {", "\"decoder\": null, \"decoder\": {", ErrorCode::corrupt_data, "decoder"},
      {"\"model\": {", "\"model\": 1, \"models\": {", ErrorCode::unsupported, "models"},
  };
  for (const Change& change : changes) {
    const Result<Tokenizer> tokenizer =
        Tokenizer::from_json(replaced(good, change.from, change.to));
    ASSERT_FALSE(tokenizer.ok()) << change.to;
    EXPECT_EQ(tokenizer.error().code, change.code) << tokenizer.error().message;
    EXPECT_NE(tokenizer.error().message.find(change.named), std::string::npos)
        << change.to << ": " << tokenizer.error().message;
  }
  for (std::size_t size = 0; size < good.size() - 2; size += 17)
    EXPECT_FALSE(Tokenizer::from_json(std::string_view(good).substr(0, size)).ok()) << size;
}

TEST(TokenizerFile, AcceptsTheOtherSpellingsOfTheSame) {
  const std::string good = testing::tokenizer_json(good_recipe());
  const std::vector<std::pair<const char*, const char*>> changes{
      {"\"continuing_subword_prefix\": null", "\"continuing_subword_prefix\": \"\""},
      {"\"fuse_unk\": false", "\"fuse_unk\": true"},
      {"\"unk_token\": null", "\"unk_token\": \"?\""},
      {"\"byte_fallback\": false", "\"byte_fallback\": true"},
      {"\"dropout\": null,", ""},
      {"\"normalizer\": null,", ""},
      {"[\n        \"h\",\n        \"i\"\n      ]", "\"h i\""},
      {", \"use_regex\": false", ", \"use_regex\": true"}};
  for (const auto& [from, to] : changes) {
    const Result<Tokenizer> tokenizer = Tokenizer::from_json(replaced(good, from, to));
    ASSERT_TRUE(tokenizer.ok()) << to << ": " << tokenizer.error().message;
    EXPECT_EQ(*tokenizer->encode("hi hi"), (std::vector<std::int32_t>{256, 257})) << to;
  }
}

// A token with characters outside the byte alphabet means its own text, and encoding never gives
// it.
TEST(TokenizerFile, KeepsTokensOutsideTheByteAlphabetForDecoding) {
  testing::TokenizerRecipe recipe = good_recipe();
  recipe.added[0].id = 259;
  recipe.added[1].id = 260;
  const std::string json =
      replaced(testing::tokenizer_json(recipe), "\"Ġhi\": 257", "\"Ġhi\": 257, \"東 x\": 258");
  const Result<Tokenizer> tokenizer = Tokenizer::from_json(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->token_bytes(258), "東 x");
  EXPECT_EQ(tokenizer->encode("東")->size(), 3U);
}

TEST(TokenizerFile, NamesTheFile) {
  const Result<Tokenizer> tokenizer = Tokenizer::load("no/such/tokenizer.json");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.error().code, ErrorCode::not_found);
  EXPECT_NE(tokenizer.error().message.find("no/such/tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace koho
