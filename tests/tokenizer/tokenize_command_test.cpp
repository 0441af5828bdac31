// SPDX-License-Identifier: Apache-2.0
// Runs the command `koho tokenize`: texts on standard input, ids on standard output, errors with
// the number of the line.
#include <filesystem>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "tests/support/command_test.h"

namespace koho {
namespace {

namespace fs = std::filesystem;

using testing::Ran;

/// Runs in a directory that holds only a copy of the small tokenizer.json of the tests.
class TokenizeCommand : public testing::CommandTest {
 protected:
  TokenizeCommand() {
    fs::create_directory(directory_.path() / "model");
    fs::copy_file(fs::path(KOHO_SOURCE_DIR) / "tests/tokenizer/data/small/tokenizer.json",
                  directory_.path() / "model/tokenizer.json");
  }
  Ran tokenize(const std::string& flags, std::string_view input) const {
    return koho("tokenize " + flags, input);
  }
};

TEST_F(TokenizeCommand, TurnsStringsIntoIdsAndBack) {
  const Ran ids = tokenize("--model model --jsonl", "\"Hi\"\n\"\"\n\"\\u00e9\\n\"\n");
  EXPECT_EQ(ids.exit_code, 0) << ids.errors;
  EXPECT_EQ(ids.output, "[39,72]\n[]\n[127,102,198]\n");
  const Ran texts = tokenize("--model model --jsonl --decode", ids.output + "[127]\n[9999]");
  EXPECT_EQ(texts.output, "\"Hi\"\n\"\"\n\"é\\n\"\n\"\uFFFD\"\n\"\"\n");
}

TEST_F(TokenizeCommand, MakesControlTokensOnlyWhenAsked) {
  EXPECT_EQ(tokenize("--model model --jsonl --allow-special", "\"<think>\"").output, "[1021]\n");
  EXPECT_EQ(tokenize("--model model --jsonl", "\"<think>\"").output.find("1021"),
            std::string::npos);
  EXPECT_EQ(tokenize("--model model --jsonl --decode", "[1000,1021]").output,
            "\"<|endoftext|><think>\"\n");
  EXPECT_EQ(tokenize("--model model --jsonl --decode --skip-special", "[1000,1021]").output,
            "\"<think>\"\n");
}

TEST_F(TokenizeCommand, NamesTheBadLine) {
  struct Case {
    const char* flags;
    const char* line;
    const char* reason;
  };
  for (const Case& bad :
       {Case{"", "\"\\ud800\"", "surrogate"}, Case{"", "", "JSON"}, Case{"", "\"a\" 1", "JSON"},
        Case{"", "\"a\xFF\"", "UTF-8"}, Case{"", "[1]", "expected a JSON string, found an array"},
        Case{"--decode", "\"a\"", "expected a JSON array of ids"},
        Case{"--decode", "[1,-1]", "element 1"}, Case{"--decode", "[1,1.0]", "element 1"},
        Case{"--decode", "[4294967296]", "element 0"}}) {
    const bool decode = *bad.flags != '\0';
    const Ran ran =
        tokenize(std::string("--model model --jsonl ") + bad.flags,
                 std::string(decode ? "[39]" : "\"H\"") + "\n" + bad.line + "\n\"H\"\n");
    EXPECT_EQ(ran.exit_code, 2) << bad.line;
    EXPECT_EQ(ran.output, decode ? "\"H\"\n" : "[39]\n");
    EXPECT_EQ(ran.errors.rfind("koho: error: line 2: ", 0), 0U) << ran.errors;
    EXPECT_NE(ran.errors.find(bad.reason), std::string::npos) << ran.errors;
  }
}

TEST_F(TokenizeCommand, ATextIsAWordOrAllOfStandardInput) {
  const std::string ids = tokenize("model 'Hello, world'", "").output;
  EXPECT_EQ(ids.front(), '[') << ids;
  EXPECT_EQ(tokenize("-m model 'Hello, world'", "").output, ids);
  EXPECT_EQ(tokenize("model", "Hello, world").output, ids);
  EXPECT_EQ(tokenize("model --decode '" + ids + "'", "").output, "Hello, world\n");
  EXPECT_EQ(tokenize("model --decode words", "").exit_code, 2);
  EXPECT_EQ(tokenize("model words --jsonl", "").exit_code, 2);
}

TEST_F(TokenizeCommand, RefusesWrongFlagsAndMissingModels) {
  EXPECT_EQ(tokenize("--jsonl", "").exit_code, 2);
  EXPECT_EQ(tokenize("", "").exit_code, 2);
  EXPECT_EQ(tokenize("--model model --jsonl --decode --allow-special", "").exit_code, 2);
  EXPECT_EQ(tokenize("--model nowhere --jsonl", "").exit_code, 3);
  const Ran empty = tokenize("--model . --jsonl", "");
  EXPECT_EQ(empty.exit_code, 3);
  EXPECT_NE(empty.errors.find("tokenizer.json"), std::string::npos);
  EXPECT_NE(tokenize("--help", "").output.find("Examples:"), std::string::npos);
}

}  // namespace
}  // namespace koho
