// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/split_pattern.h"

#include <string>

#include <gtest/gtest.h>

#include "tokenizer/pre_tokenizer.h"

namespace koho {
namespace {

constexpr const char* kGlmPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<std::string> pieces(const std::vector<std::string>& patterns, std::string_view text) {
  const Result<PreTokenizer> pre_tokenizer = PreTokenizer::compile(patterns);
  EXPECT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.error().message;
  std::vector<std::uint32_t> ends;
  const Status status = pre_tokenizer->split(text, ends);
  EXPECT_TRUE(status.ok()) << status.error().message;
  std::vector<std::string> out;
  std::size_t begin = 0;
  for (const std::uint32_t end : ends) {
    out.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return out;
}

using Pieces = std::vector<std::string>;

TEST(SplitPattern, SplitsAsGlmDoes) {
  EXPECT_EQ(pieces({kGlmPattern}, "I'LL  pay 12345€!\r\n\n  x "),
            (Pieces{"I", "'LL", " ", " pay", " ", "123", "45", "€!\r\n\n", " ", " x", " "}));
  EXPECT_EQ(pieces({kGlmPattern}, ""), Pieces{});
}

// PCRE2's own \s has U+180E, Oniguruma's does not.
TEST(SplitPattern, ReadsBlankAsWhiteSpaceOfUnicode) {
  EXPECT_EQ(pieces({R"(\s+)"}, "a\u180E\u3000\u0085\x1C!"),
            (Pieces{"a\u180E", "\u3000\u0085", "\x1C!"}));
  EXPECT_EQ(pieces({R"([^\S]+)"}, "a\u180E \t"), (Pieces{"a\u180E", " \t"}));
}

TEST(SplitPattern, CutsWithEachPatternOfAList) {
  EXPECT_EQ(pieces({R"(\p{N})", R"([a-c]+)"}, "xab12cd"), (Pieces{"x", "ab", "1", "2", "c", "d"}));
}

TEST(SplitPattern, CutsAtEmptyMatches) {
  EXPECT_EQ(pieces({"(?=b)"}, "abab"), (Pieces{"a", "ba", "b"}));
  EXPECT_EQ(pieces({"x*"}, "axé"), (Pieces{"a", "x", "é"}));
}

TEST(SplitPattern, TranslatesConstructsThatMeanTheSame) {
  const auto translated = [](std::string_view pattern) {
    const Result<std::string> result = translate_split_pattern(pattern);
    return result.ok() ? *result : "refused: " + result.error().message;
  };
  EXPECT_EQ(translated(R"(\s\S)"), R"(\p{White_Space}\P{White_Space})");
  EXPECT_EQ(translated(R"((a|\u4e00-)++)"), R"((?:a|\x{4e00}\-)++)");
  EXPECT_EQ(translated(R"([-a\-z'"^])"), R"([\-a\-z\'\"\^])");
  EXPECT_EQ(translated(R"((?i:[sdmt]|ll)x{2,})"), R"((?i:[sdmt]|ll)x{2,})");
  EXPECT_EQ(translated("é#"), "é\\#");
}

TEST(SplitPattern, RefusesConstructsThatTheEnginesReadDifferently) {
  for (const char* pattern :
       {R"(\w+)",    R"(\h)",        R"(\b)",     R"(\v)",     R"(\x41)",
        R"(\1)",     R"(\p{Greek})", R"(\p{^L})", "^a",        "a$",
        "a.b",       "[a[b]]",       "[a&&b]",    "[]a]",      "[[:alpha:]]",
        "a{,3}",     "a{2}?",        "a{2}+",     "a{3,2}",    "a{2000}",
        "a**",       "a+++",         "(?i)a",     "(?<n>a)",   "(*UTF)a",
        "(?#x)",     "(?i:é)",       "(?i:ss)",   "(?i:[^a])", R"((?i:\p{Lu}))",
        R"([a-\s])", R"([\s-a])",    "[a-c-e]",   "(a",        "a)",
        "[a",        "a\\",          "",          "{"}) {
    const Result<std::string> result = translate_split_pattern(pattern);
    ASSERT_FALSE(result.ok()) << pattern << " became " << *result;
    EXPECT_EQ(result.error().code, ErrorCode::unsupported) << pattern;
  }
}

TEST(SplitPattern, EndsARunawayPatternWithAnError) {
  const std::vector<std::string> patterns{"(a|a)*[bc]"};
  const Result<PreTokenizer> pre_tokenizer = PreTokenizer::compile(patterns);
  ASSERT_TRUE(pre_tokenizer.ok());
  std::vector<std::uint32_t> ends;
  const Status status = pre_tokenizer->split(std::string(200, 'a'), ends);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::resource_exhausted);
}

TEST(SplitPattern, TakesMegabytesOfOneCharacter) {
  for (const char* unit : {" ", "a", "\n", "\u3000", "\u0301", "!", " \n", "👩\u200D"}) {
    std::string text;
    while (text.size() < (4U << 20U)) text += unit;
    EXPECT_EQ(pieces({kGlmPattern}, text + "1").back(), "1") << unit;
  }
}

}  // namespace
}  // namespace koho
