// SPDX-License-Identifier: Apache-2.0
// The contract of the tokenizer: control tokens, segments, ill-formed bytes, streams and threads.
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tokenizer/tokenizer_json.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace koho {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr std::int32_t kBase = 260;  // the first added token

Tokenizer make_tokenizer() {
  testing::TokenizerRecipe recipe;
  recipe.tokens = {"ho", " ho", "\n\n", "\xF0\x9F"};
  recipe.merges = {{"h", "o"}, {" ", "ho"}, {"\n", "\n"}, {"\xF0", "\x9F"}};
  recipe.added = {{"<|user|>", kBase, true, false},
                  {"<think>", kBase + 1, false, false},
                  {"k>h", kBase + 2, false, true},
                  {"<|us", kBase + 3, false, true},
                  {"a b", kBase + 7, false, false}};
  Result<Tokenizer> tokenizer = Tokenizer::from_json(testing::tokenizer_json(recipe));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return std::move(*tokenizer);
}

Ids bytes_of(std::string_view text) {
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<std::uint8_t>(c));
  return ids;
}

TEST(Encode, KeepsControlTokensOfPlainTextAsText) {
  const Tokenizer tokenizer = make_tokenizer();
  for (const char* text : {"<|user|>", "<think>", "k>h", "a b"})
    EXPECT_EQ(*tokenizer.encode(text), bytes_of(text));
  EXPECT_EQ(*tokenizer.encode_with_special("<|user|>ho"), (Ids{kBase, 256}));
}

// Tokens with `normalized` are searched in the text that the others leave, even if they start
// earlier.
TEST(Encode, SearchesNormalizedTokensLast) {
  const Tokenizer tokenizer = make_tokenizer();
  EXPECT_EQ(*tokenizer.encode_with_special("<think>ho"), (Ids{kBase + 1, 256}));
  EXPECT_EQ(*tokenizer.encode_with_special("<|user|>k>ho"), (Ids{kBase, kBase + 2, 'o'}));
}

TEST(Encode, EncodesSegmentsAsOneTextWithoutControlTokensFromPlainOnes) {
  const Tokenizer tokenizer = make_tokenizer();
  const std::vector<TextSegment> prompt{{"<|user|>\n", true},
                                        {"\n<|user|> ", false},
                                        {"ho<think>", true},
                                        {"", true},
                                        {" ho", false}};
  Ids expected{kBase, 258};
  for (const std::int32_t id : bytes_of("<|user|>")) expected.push_back(id);
  expected.insert(expected.end(), {257, kBase + 1, 257});
  EXPECT_EQ(*tokenizer.encode(prompt), expected);
  // An added token that spans two segments is text.
  const std::vector<TextSegment> halves{{"<thi", true}, {"nk>", true}};
  EXPECT_EQ(*tokenizer.encode(halves), bytes_of("<think>"));
}

TEST(Encode, NamesTheByteThatIsNotUtf8) {
  const Tokenizer tokenizer = make_tokenizer();
  for (const std::string text : {"ab\xFF", "ab\xED\xA0\x80", "ab\xF0\x9F"}) {
    for (const Result<Ids>& ids : {tokenizer.encode(text), tokenizer.encode_with_special(text)}) {
      ASSERT_FALSE(ids.ok());
      EXPECT_EQ(ids.error().code, ErrorCode::invalid_argument);
      EXPECT_NE(ids.error().message.find("byte 2"), std::string::npos) << ids.error().message;
    }
  }
  const std::vector<TextSegment> segments{{"fine", false}, {"\x80", false}};
  const Result<Ids> ids = tokenizer.encode(segments);
  ASSERT_FALSE(ids.ok());
  EXPECT_NE(ids.error().message.find("segment 1"), std::string::npos) << ids.error().message;
}

TEST(Encode, TreatsZeroBytesAsText) {
  EXPECT_EQ(*make_tokenizer().encode(std::string_view("\0a\0", 3)), (Ids{0, 'a', 0}));
}

TEST(Encode, ReportsTheKindOfEachId) {
  const Tokenizer tokenizer = make_tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), kBase + 8);
  EXPECT_EQ(tokenizer.token_bytes(257), " ho");
  EXPECT_EQ(tokenizer.token_bytes(0x80), "\x80");
  EXPECT_EQ(tokenizer.token_bytes(kBase), "<|user|>");
  EXPECT_EQ(tokenizer.token_bytes(kBase + 7), "a b");
  EXPECT_EQ(tokenizer.id_of("<think>"), kBase + 1);
  EXPECT_FALSE(tokenizer.id_of("ho")) << "no added token";
  EXPECT_TRUE(tokenizer.is_special(kBase));
  EXPECT_FALSE(tokenizer.is_special(kBase + 1));
  EXPECT_TRUE(tokenizer.is_added(kBase + 1));
  EXPECT_FALSE(tokenizer.is_added('a'));
  for (const std::int32_t id : {-1, kBase + 4, kBase + 8, INT32_MAX}) {
    EXPECT_FALSE(tokenizer.is_token(id)) << id;
    EXPECT_TRUE(tokenizer.token_bytes(id).empty()) << id;
  }
}

TEST(Detokenizer, GivesWholeCharactersOnly) {
  const Tokenizer tokenizer = make_tokenizer();
  Detokenizer stream(tokenizer);
  EXPECT_EQ(stream.push(259), "");  // the first half of 🎉
  EXPECT_TRUE(stream.is_waiting());
  EXPECT_EQ(stream.push(0x8E), "");
  EXPECT_EQ(stream.push(0x89), "🎉");
  EXPECT_FALSE(stream.is_waiting());
  EXPECT_EQ(stream.push('x'), "x");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Detokenizer, ReplacesIllFormedBytesAtOnce) {
  const Tokenizer tokenizer = make_tokenizer();
  Detokenizer stream(tokenizer);
  EXPECT_EQ(stream.push(0x80), "\uFFFD");
  EXPECT_EQ(stream.push(259), "");
  EXPECT_EQ(stream.push(259), "\uFFFD");
  EXPECT_EQ(stream.push(kBase + 1), "\uFFFD<think>");
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Detokenizer, SkipsOnlySpecialTokens) {
  const Tokenizer tokenizer = make_tokenizer();
  Detokenizer stream(tokenizer, true);
  EXPECT_EQ(stream.push(kBase), "");
  EXPECT_EQ(stream.push(kBase + 1), "<think>");
}

TEST(Encode, MayBeCalledFromManyThreads) {
  const Tokenizer tokenizer = make_tokenizer();
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "ho there, 123 \n\n 🎉 <think>";
  const Ids expected = *tokenizer.encode_with_special(text);
  std::vector<Ids> found(4);
  std::vector<std::thread> threads;
  for (Ids& ids : found) threads.emplace_back([&] { ids = *tokenizer.encode_with_special(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : found) EXPECT_EQ(ids, expected);
}

}  // namespace
}  // namespace koho
