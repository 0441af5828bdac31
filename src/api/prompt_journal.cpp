// SPDX-License-Identifier: Apache-2.0
#include "api/prompt_journal.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_map>

#include <fmt/format.h>

#include "base/json_writer.h"

namespace koho::api {
namespace {

using Entry = PromptJournal::Entry;

constexpr std::size_t kContextTokens = 20;  // shown on each side of a difference

std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b) {
  const auto [in_a, in_b] = std::ranges::mismatch(a, b);
  return static_cast<std::size_t>(in_a - a.begin());
}

std::string text_of(std::span<const Token> ids, const Tokenizer* tokenizer) {
  return tokenizer == nullptr ? std::string() : tokenizer->decode(ids);
}

/// {"ids": [...], "text": "..."} of up to kContextTokens tokens from `begin` on.
void append_tokens(std::string& out,
                   std::span<const Token> ids,
                   std::size_t begin,
                   const Tokenizer* tokenizer) {
  const std::span<const Token> shown =
      ids.subspan(std::min(begin, ids.size()),
                  std::min(kContextTokens, ids.size() - std::min(begin, ids.size())));
  fmt::format_to(std::back_inserter(out), R"({{"ids":[{}],"text":)", fmt::join(shown, ","));
  append_json_string(out, text_of(shown, tokenizer));
  out += '}';
}

bool has_date(std::string_view text) {
  const auto digit = [&text](std::size_t i) { return text[i] >= '0' && text[i] <= '9'; };
  for (std::size_t i = 0; i + 10 <= text.size(); ++i)
    if (text.substr(i, 2) == "20" && digit(i + 2) && digit(i + 3) && text[i + 4] == '-' &&
        digit(i + 5) && digit(i + 6) && text[i + 7] == '-' && digit(i + 8) && digit(i + 9))
      return true;
  return false;
}

/// The oldest entry of the client that has most, in requests or in tokens, so that nobody's go for
/// another's.
auto oldest_of_most(const std::deque<std::shared_ptr<Entry>>& entries, bool in_requests) {
  std::unordered_map<std::uint64_t, std::size_t> held;
  for (const auto& entry : entries) held[entry->client] += in_requests ? 1 : entry->ids.size();
  const auto most = std::ranges::max_element(held, {}, [](const auto& one) { return one.second; });
  return std::ranges::find_if(entries,
                              [&](const auto& entry) { return entry->client == most->first; });
}

/// The probable cause of a difference, guessed from the text around it.
std::string_view cause_of(std::string_view around, std::string_view here, std::string_view there) {
  const auto anywhere = [&](std::string_view word) {
    return around.find(word) != std::string_view::npos ||
           here.find(word) != std::string_view::npos || there.find(word) != std::string_view::npos;
  };
  if (anywhere("x-anthropic-billing-header"))
    return "the billing header changed: /v1/messages removes it, other endpoints do not";
  const bool thinks_here = here.starts_with("<think>");
  const bool thinks_there = there.starts_with("<think>");
  if ((thinks_here && there.starts_with("</think>")) ||
      (thinks_there && here.starts_with("</think>")))
    return "the reasoning of an earlier turn was left out or added: send reasoning_content back, "
           "and "
           "\"clear_thinking\": false";
  if (has_date(std::string(around) + std::string(here)) ||
      has_date(std::string(around) + std::string(there)))
    return "a date in the prompt changed: move it after the text that stays the same";
  if (anywhere("\"type\": \"function\"")) return "the tools or their order changed";
  return "the text differs";
}

}  // namespace

std::string_view without_id_prefix(std::string_view id) {
  for (const std::string_view prefix : {"chatcmpl-", "cmpl-", "msg_", "resp_"})
    if (id.starts_with(prefix)) return id.substr(prefix.size());
  return id;
}

std::shared_ptr<Entry> PromptJournal::open(std::span<const Token> prompt,
                                           const CacheSalt& salt,
                                           std::uint64_t client) {
  auto entry = std::make_shared<Entry>();
  entry->salt = salt;
  entry->client = client;
  entry->ids.assign(prompt.begin(), prompt.end());
  entry->prompt_tokens = prompt.size();
  const std::scoped_lock lock(mutex_);
  entries_.push_back(entry);
  tokens_ += prompt.size();
  while (entries_.size() > requests_max_ || (tokens_ > tokens_max_ && entries_.size() > 1)) {
    const auto oldest = oldest_of_most(entries_, entries_.size() > requests_max_);
    Entry& forgotten = **oldest;
    tokens_ -= forgotten.ids.size();
    // Its answer may still be growing: add_token() ignores it from now on.
    forgotten.ids.clear();
    forgotten.ids.shrink_to_fit();
    forgotten.prompt_tokens = 0;
    entries_.erase(oldest);
  }
  return entry;
}

void PromptJournal::set_id(Entry& entry, std::string id) {
  const std::scoped_lock lock(mutex_);
  entry.id = std::move(id);
}

void PromptJournal::add_token(Entry& entry, Token token) {
  const std::scoped_lock lock(mutex_);
  if (entry.prompt_tokens == 0) return;
  entry.ids.push_back(token);
  ++tokens_;
}

void PromptJournal::close(Entry& entry, std::int64_t cached_tokens) {
  const std::scoped_lock lock(mutex_);
  entry.cached_tokens = cached_tokens;
}

std::string PromptJournal::explain(std::string_view id,
                                   std::uint64_t client,
                                   const Tokenizer* tokenizer,
                                   std::int32_t tokens_per_page) const {
  const std::string_view bare = without_id_prefix(id);
  const std::scoped_lock lock(mutex_);
  const auto is_own = [client](const Entry& entry) {
    return client == 0 || entry.client == client;
  };
  auto found = entries_.end();
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
    if (((*entry)->id == id || (*entry)->id == bare) && is_own(**entry)) found = entry;
  if (id.empty() || found == entries_.end()) return {};
  const Entry& here = **found;
  const std::span<const Token> prompt = std::span(here.ids).first(here.prompt_tokens);
  const Entry* nearest = nullptr;
  std::size_t shared = 0;
  std::size_t shared_under_other_salt = 0;
  for (auto other = entries_.begin(); other != found; ++other) {
    const std::size_t common = common_prefix(prompt, (*other)->ids);
    if ((*other)->salt != here.salt) {
      if (!is_own(**other)) continue;  // a salt hides what others sent
      shared_under_other_salt = std::max(shared_under_other_salt, common);
    } else if (nearest == nullptr || common >= shared) {
      nearest = other->get();
      shared = common;
    }
  }
  const auto page = static_cast<std::size_t>(tokens_per_page);
  const auto expected = static_cast<std::int64_t>(shared == 0 ? 0 : (shared - 1) / page * page);
  std::string out;
  fmt::format_to(std::back_inserter(out),
                 R"({{"id":"{}","prompt_tokens":{},"cached_tokens":{},)"
                 R"("longest_shared_prefix":{},"cacheable_tokens":{},"shared_with":)",
                 here.id, here.prompt_tokens,
                 here.cached_tokens < 0 ? "null" : fmt::format("{}", here.cached_tokens), shared,
                 expected);
  std::string_view cause = "there is no earlier request";
  if (nearest == nullptr) {
    out += R"(null,"first_difference":null)";
  } else {
    const bool own = is_own(*nearest);
    out += own ? '"' + nearest->id + '"' : "null";
    out += R"(,"first_difference":)";
    const bool whole = shared == prompt.size() || shared == nearest->ids.size();
    if (whole || !own) {
      out += "null";
    } else {
      const std::size_t before = shared - std::min(shared, kContextTokens);
      fmt::format_to(std::back_inserter(out), R"({{"position":{},"before":)", shared);
      append_tokens(out, prompt.first(shared), before, tokenizer);
      out += R"(,"here":)";
      append_tokens(out, prompt, shared, tokenizer);
      out += R"(,"there":)";
      append_tokens(out, nearest->ids, shared, tokenizer);
      out += '}';
    }
    const auto window = [&](std::span<const Token> ids, std::size_t begin) {
      return text_of(ids.subspan(begin, std::min(kContextTokens, ids.size() - begin)), tokenizer);
    };
    if (here.cached_tokens >= 0 && here.cached_tokens < expected) {
      cause = "the shared part was evicted, or not computed yet";
    } else if (whole) {
      cause = "the whole shared prefix was cached";
    } else if (!own) {
      cause = "the text differs";
    } else {
      const std::size_t before = shared - std::min(shared, kContextTokens);
      cause =
          cause_of(window(prompt, before), window(prompt, shared), window(nearest->ids, shared));
    }
  }
  if (shared_under_other_salt > shared)
    cause = "an earlier prompt shares more, but was sent with another cache_salt";
  out += R"(,"cause":)";
  append_json_string(out, cause);
  out += '}';
  return out;
}

}  // namespace koho::api
