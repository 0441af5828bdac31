// SPDX-License-Identifier: Apache-2.0
#include "api/prompt_journal.h"

#include <numeric>
#include <string>

#include <gtest/gtest.h>

#include "chat/json.h"

namespace koho::api {
namespace {

std::vector<Token> numbers(Token first, std::size_t count) {
  std::vector<Token> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

void add(PromptJournal& journal,
         const std::string& id,
         const std::vector<Token>& prompt,
         std::int64_t cached,
         const std::vector<Token>& answer = {},
         const CacheSalt& salt = {},
         std::uint64_t client = 0) {
  const std::shared_ptr<PromptJournal::Entry> entry = journal.open(prompt, salt, client);
  journal.set_id(*entry, id);
  for (const Token token : answer) journal.add_token(*entry, token);
  journal.close(*entry, cached);
}

chat::Json explain(const PromptJournal& journal, const std::string& id, std::uint64_t client = 0) {
  const Result<chat::Json> json = chat::parse_json(journal.explain(id, client, nullptr, 64));
  EXPECT_TRUE(json.ok()) << journal.explain(id, client, nullptr, 64);
  return json.ok() ? *json : chat::Json::object();
}

TEST(PromptJournal, FindsTheLongestSharedBeginningAndTheFirstDifference) {
  PromptJournal journal(10, 10'000);
  add(journal, "a", numbers(0, 100), 0, numbers(100, 50));
  add(journal, "b", numbers(500, 100), 0);
  std::vector<Token> prompt = numbers(0, 140);
  prompt.push_back(7);
  add(journal, "c", prompt, 128);
  const chat::Json report = explain(journal, "chatcmpl-c");
  EXPECT_EQ(report.find("longest_shared_prefix")->text, "140") << "the answer counts, too";
  EXPECT_EQ(report.find("cacheable_tokens")->text, "128");
  EXPECT_EQ(report.find("shared_with")->text, "a");
  const chat::Json& difference = *report.find("first_difference");
  EXPECT_EQ(difference.find("position")->text, "140");
  EXPECT_EQ(chat::dump_json(*difference.find("here")->find("ids")), "[7]");
  EXPECT_EQ(difference.find("there")->find("ids")->items.front().text, "140");
  EXPECT_EQ(difference.find("before")->find("ids")->items.size(), 20U);
  EXPECT_EQ(report.find("cause")->text, "the text differs");
}

TEST(PromptJournal, ForgetsOfTheClientThatHasMost) {
  PromptJournal journal(10, 1000);
  add(journal, "mine", numbers(0, 100), 0, {}, {}, 1);
  for (int i = 0; i < 40; ++i) add(journal, "other", numbers(0, 10), 0, {}, {}, 2);
  EXPECT_FALSE(journal.explain("mine", 1, nullptr, 64).empty()) << "many requests";
  for (int i = 0; i < 40; ++i) add(journal, "other", numbers(0, 400), 0, {}, {}, 2);
  EXPECT_FALSE(journal.explain("mine", 1, nullptr, 64).empty()) << "long ones";
  EXPECT_FALSE(journal.explain("other", 2, nullptr, 64).empty());
  for (int i = 0; i < 40; ++i) add(journal, "later", numbers(0, 400), 0, {}, {}, 1);
  EXPECT_TRUE(journal.explain("mine", 1, nullptr, 64).empty()) << "its own newer ones";
}

TEST(PromptJournal, NamesEvictionSaltAndFirstRequests) {
  PromptJournal journal(10, 10'000);
  add(journal, "a", numbers(0, 200), 0);
  EXPECT_EQ(explain(journal, "a").find("cause")->text, "there is no earlier request");
  add(journal, "b", numbers(0, 200), 64);
  EXPECT_EQ(explain(journal, "b").find("cause")->text,
            "the shared part was evicted, or not computed yet");
  add(journal, "c", numbers(0, 200), 0, {}, {.low = 1, .high = 0});
  EXPECT_EQ(explain(journal, "c").find("cause")->text,
            "an earlier prompt shares more, but was sent with another cache_salt");
  add(journal, "d", numbers(0, 200), 192);
  EXPECT_EQ(explain(journal, "d").find("cause")->text, "the whole shared prefix was cached");
  EXPECT_EQ(journal.explain("e", 0, nullptr, 64), "");
  EXPECT_EQ(journal.explain("", 0, nullptr, 64), "");
}

TEST(PromptJournal, TellsNothingButLengthsOfAnotherClient) {
  constexpr std::uint64_t kOne = 1;
  constexpr std::uint64_t kOther = 2;
  PromptJournal journal(10, 10'000);
  std::vector<Token> secret = numbers(0, 100);
  secret.push_back(777);
  add(journal, "theirs", secret, 0, {}, {}, kOther);
  add(journal, "mine", numbers(0, 140), 64, {}, {}, kOne);
  EXPECT_EQ(journal.explain("theirs", kOne, nullptr, 64), "");
  EXPECT_NE(journal.explain("theirs", kOther, nullptr, 64), "");
  const std::string text = journal.explain("mine", kOne, nullptr, 64);
  EXPECT_EQ(text.find("theirs"), std::string::npos) << text;
  EXPECT_EQ(text.find("777"), std::string::npos) << text;
  const chat::Json report = explain(journal, "mine", kOne);
  EXPECT_EQ(report.find("longest_shared_prefix")->text, "100") << "as the cached tokens tell";
  EXPECT_TRUE(report.find("first_difference")->is_null());
  // Under a salt not even that: it is there to hide what others send.
  add(journal, "salted", numbers(0, 140), 0, {}, {.low = 1, .high = 0}, kOne);
  add(journal, "again", numbers(200, 40), 0, {}, {}, kOther);
  add(journal, "other", numbers(200, 40), 0, {}, {.low = 2, .high = 0}, kOne);
  EXPECT_EQ(explain(journal, "other", kOne).find("cause")->text, "there is no earlier request");
  EXPECT_NE(explain(journal, "salted", kOne).find("cause")->text, "there is no earlier request");
}

TEST(PromptJournal, IsBoundedInRequestsAndIds) {
  PromptJournal few(2, 10'000);
  for (const char* id : {"a", "b", "c"}) add(few, id, numbers(0, 10), 0);
  EXPECT_EQ(few.explain("a", 0, nullptr, 64), "");
  EXPECT_NE(few.explain("b", 0, nullptr, 64), "");
  PromptJournal short_one(10, 100);
  for (const char* id : {"a", "b"}) add(short_one, id, numbers(0, 80), 0);
  EXPECT_EQ(short_one.explain("a", 0, nullptr, 64), "");
  // An answer that outlives its place in the journal adds nothing to it.
  const std::shared_ptr<PromptJournal::Entry> old = short_one.open(numbers(0, 80), {}, 0);
  add(short_one, "z", numbers(0, 80), 0);
  short_one.add_token(*old, 1);
  EXPECT_TRUE(old->ids.empty());
}

}  // namespace
}  // namespace koho::api
