// SPDX-License-Identifier: Apache-2.0
#include "api/turn_memory.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "chat/prompt_tokens.h"

namespace koho::api {
namespace {

constexpr std::size_t kRoomy = 1U << 20U;
constexpr chat::TemplateStyle kStyle = chat::TemplateStyle::glm_4_7;

const Tokenizer& tokenizer() {
  static const Tokenizer loaded =
      *Tokenizer::load(std::string(KOHO_SOURCE_DIR) + "/models/tiny/tokenizer.json");
  return loaded;
}

chat::Conversation conversation(std::string_view messages, bool keep_thinking = true) {
  chat::Conversation read = *chat::read_conversation(
      *chat::parse_json(R"({"messages": [)" + std::string(messages) + "]}"));
  read.add_generation_prompt = true;
  if (keep_thinking) read.clear_thinking = false;
  EXPECT_TRUE(chat::normalize(read).ok());
  return read;
}

EncodedTurns encode(TurnMemory& memory,
                    const chat::Conversation& read,
                    const TurnScope& scope = {}) {
  return *memory.encode(read, *chat::render(read, kStyle), kStyle, scope, tokenizer());
}

/// As the tokenizer never would: byte for byte.
std::vector<Token> odd_ids(std::string_view text) {
  std::vector<Token> ids;
  for (const char c : text) {
    const Result<std::vector<Token>> encoded = tokenizer().encode(std::string_view(&c, 1));
    ids.insert(ids.end(), encoded->begin(), encoded->end());
  }
  return ids;
}

std::vector<Token> joined(std::vector<Token> a, const std::vector<Token>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

bool begins_with(const std::vector<Token>& ids, const std::vector<Token>& prefix) {
  return ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
}

constexpr std::string_view kAsked = R"({"role": "user", "content": "Add 68 and 57."})";
constexpr std::string_view kNext = R"(, {"role": "user", "content": "And 3 more?"})";
constexpr std::string_view kAnswered =
    R"(, {"role": "assistant", "reasoning_content": "68 + 57", "content": "It is 125."})";
constexpr std::string_view kBare = R"(, {"role": "assistant", "content": "It is 125."})";

/// A memory that holds one answer, in ids that no tokenizer would give.
struct Answered {
  TurnMemory memory{kRoomy};
  EncodedTurns prompt;
  std::vector<Token> history;  // the prompt and the answer as sampled

  explicit Answered(bool with_reasoning = true, const TurnScope& scope = {}) {
    chat::Conversation asked = conversation(kAsked);
    asked.enable_thinking = with_reasoning;
    prompt = encode(memory, asked, scope);
    chat::ParsedOutput answer;
    answer.content = "It is 125.";
    if (with_reasoning) answer.reasoning = "68 + 57";
    std::vector<Token> sampled;
    if (with_reasoning) {
      sampled = odd_ids("68 + 57");
      sampled.push_back(*tokenizer().id_of("</think>"));
    }
    sampled = joined(sampled, odd_ids("It is 125."));
    history = joined(prompt.ids, sampled);
    memory.remember(prompt.place, answer, sampled);
  }
};

std::string text(std::string_view a, std::string_view b, std::string_view c) {
  return std::string(a) + std::string(b) + std::string(c);
}

TEST(TurnMemory, EncodesAsTheTokenizerWhereNothingIsKnown) {
  TurnMemory memory(kRoomy);
  const chat::Conversation read = conversation(text(kAsked, kAnswered, kNext));
  const chat::Prompt prompt = *chat::render(read, kStyle);
  const EncodedTurns encoded = encode(memory, read);
  EXPECT_EQ(encoded.ids, *chat::encode(prompt.segments, tokenizer()));
  EXPECT_EQ(encoded.turns_replayed, 0);
}

TEST(TurnMemory, GivesAnAnswerBackAsItWasSampled) {
  Answered known;
  const EncodedTurns next = encode(known.memory, conversation(text(kAsked, kAnswered, kNext)));
  EXPECT_TRUE(begins_with(next.ids, known.history));
  EXPECT_EQ(next.turns_replayed, 1);
  // And the turn after it, behind the replayed ids.
  chat::ParsedOutput answer;
  answer.content = "128.";
  answer.reasoning = "125 + 3";
  std::vector<Token> sampled = odd_ids("125 + 3");
  sampled.push_back(*tokenizer().id_of("</think>"));
  sampled = joined(sampled, odd_ids("128."));
  known.memory.remember(next.place, answer, sampled);
  const EncodedTurns third = encode(
      known.memory,
      conversation(text(kAsked, kAnswered, kNext) +
                   R"(, {"role": "assistant", "reasoning_content": "125 + 3", "content": "128."})" +
                   std::string(kNext)));
  EXPECT_TRUE(begins_with(third.ids, joined(next.ids, sampled)));
  EXPECT_EQ(third.turns_replayed, 2);
}

TEST(TurnMemory, RestoresReasoningThatTheClientLeftOut) {
  Answered known;
  EXPECT_TRUE(begins_with(encode(known.memory, conversation(text(kAsked, kBare, kNext))).ids,
                          known.history));
}

TEST(TurnMemory, LeavesReasoningOutWhereTheTemplateDoes) {
  Answered known;
  for (const std::string_view answer : {kAnswered, kBare}) {
    const EncodedTurns next =
        encode(known.memory, conversation(text(kAsked, answer, kNext), false));
    EXPECT_EQ(next.turns_replayed, 0);
  }
  Answered without_reasoning(false);
  EXPECT_TRUE(begins_with(
      encode(without_reasoning.memory, conversation(text(kAsked, kBare, kNext), false)).ids,
      without_reasoning.history));
}

TEST(TurnMemory, KnowsAnAnswerBehindItsOwnPromptOnly) {
  Answered known;
  const std::string other = R"({"role": "user", "content": "Add 68 and 57!"})";
  EXPECT_EQ(encode(known.memory, conversation(text(other, kAnswered, kNext))).turns_replayed, 0);
  for (const TurnScope& scope : {TurnScope{.salt = {.low = 1, .high = 2}}, TurnScope{.key = 1}})
    EXPECT_EQ(
        encode(known.memory, conversation(text(kAsked, kAnswered, kNext)), scope).turns_replayed,
        0);
  const std::string changed =
      R"(, {"role": "assistant", "reasoning_content": "68 + 57", "content": "It is 126."})";
  EXPECT_EQ(encode(known.memory, conversation(text(kAsked, changed, kNext))).turns_replayed, 0);
}

TEST(TurnMemory, KnowsCallsWhateverTheOrderAndSpellingOfTheirArguments) {
  TurnMemory memory(kRoomy);
  const EncodedTurns prompt = encode(memory, conversation(kAsked));
  chat::ParsedOutput answer;
  answer.calls.push_back({.id = "call_0",
                          .name = "add",
                          .arguments = R"({"b": 57.0, "a": 68, "note": {"y": [1], "x": null}})",
                          .complete = true});
  const std::vector<Token> sampled = odd_ids("whatever was sampled");
  memory.remember(prompt.place, answer, sampled);
  const std::string sent =
      R"(, {"role": "assistant", "content": null, "tool_calls": [{"id": "x", "type": "function",
          "function": {"name": "add",
                       "arguments": "{\"a\":68,\"b\":57,\"note\":{\"x\":null,\"y\":[1]}}"}}]},
          {"role": "tool", "content": "125"})";
  const EncodedTurns next = encode(memory, conversation(text(kAsked, sent, "")));
  EXPECT_TRUE(begins_with(next.ids, joined(prompt.ids, sampled)));
}

TEST(TurnMemory, ForgetsWhatWasUsedLongestAgo) {
  TurnMemory memory(1000);
  std::vector<EncodedTurns> prompts;
  const auto asked = [](int i) {
    return R"({"role": "user", "content": "Question )" + std::to_string(i) + "\"}";
  };
  for (int i = 0; i < 50; ++i) {
    const EncodedTurns prompt = encode(memory, conversation(asked(i)));
    chat::ParsedOutput answer;
    answer.content = "It is 125.";
    memory.remember(prompt.place, answer, odd_ids("It is 125."));
    EXPECT_LE(memory.counts().tokens, 1000U);
  }
  EXPECT_EQ(encode(memory, conversation(text(asked(49), kBare, kNext))).turns_replayed, 1);
  EXPECT_EQ(encode(memory, conversation(text(asked(0), kBare, kNext))).turns_replayed, 0);
}

TEST(TurnMemory, ForgetsOfTheClientThatHasMost) {
  TurnMemory memory(1000);
  const auto asked = [](int i) {
    return R"({"role": "user", "content": "Question )" + std::to_string(i) + "\"}";
  };
  for (int i = 0; i < 50; ++i) {
    EncodedTurns prompt = encode(memory, conversation(asked(i)));
    prompt.place.client = i == 0 ? 1 : 2;
    chat::ParsedOutput answer;
    answer.content = "It is 125.";
    memory.remember(prompt.place, answer, odd_ids("It is 125."));
  }
  for (const auto& [i, replayed] : {std::pair{0, 1}, {1, 0}, {49, 1}})
    EXPECT_EQ(encode(memory, conversation(text(asked(i), kBare, kNext))).turns_replayed, replayed);
}

}  // namespace
}  // namespace koho::api
