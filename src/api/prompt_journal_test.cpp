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
         const CacheSalt& salt = {}) {
  const std::shared_ptr<PromptJournal::Entry> entry = journal.open(prompt, salt);
  journal.set_id(*entry, id);
  for (const Token token : answer) journal.add_token(*entry, token);
  journal.close(*entry, cached);
}

chat::Json explain(const PromptJournal& journal, const std::string& id) {
  const Result<chat::Json> json = chat::parse_json(journal.explain(id, nullptr, 64));
  EXPECT_TRUE(json.ok()) << journal.explain(id, nullptr, 64);
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
  EXPECT_EQ(journal.explain("e", nullptr, 64), "");
  EXPECT_EQ(journal.explain("", nullptr, 64), "");
}

TEST(PromptJournal, IsBoundedInRequestsAndIds) {
  PromptJournal few(2, 10'000);
  for (const char* id : {"a", "b", "c"}) add(few, id, numbers(0, 10), 0);
  EXPECT_EQ(few.explain("a", nullptr, 64), "");
  EXPECT_NE(few.explain("b", nullptr, 64), "");
  PromptJournal short_one(10, 100);
  for (const char* id : {"a", "b"}) add(short_one, id, numbers(0, 80), 0);
  EXPECT_EQ(short_one.explain("a", nullptr, 64), "");
  // An answer that outlives its place in the journal adds nothing to it.
  const std::shared_ptr<PromptJournal::Entry> old = short_one.open(numbers(0, 80), {});
  add(short_one, "z", numbers(0, 80), 0);
  short_one.add_token(*old, 1);
  EXPECT_TRUE(old->ids.empty());
}

}  // namespace
}  // namespace koho::api
