// SPDX-License-Identifier: Apache-2.0
// Keeps the token ids of the last requests to explain why a prompt was or was not found in the
// prefix cache: the longest prefix that it shares with an earlier prompt and answer, and the first
// token that differs. Bounded in requests and in ids.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/prefix_cache.h"
#include "tokenizer/tokenizer.h"

namespace koho::api {

/// The request's name in an answer's id: without the API's prefix, such as "chatcmpl-".
std::string_view without_id_prefix(std::string_view id);

/// Threads: any.
class PromptJournal {
 public:
  /// One request. AnswerRecord fills it.
  struct Entry {
    std::string id;
    CacheSalt salt;
    std::uint64_t client = 0;
    std::vector<Token> ids;  // prompt, then answer
    std::size_t prompt_tokens = 0;
    std::int64_t cached_tokens = -1;  // unknown yet
  };

  PromptJournal(std::size_t requests_max, std::size_t tokens_max)
      : requests_max_(requests_max), tokens_max_(tokens_max) {}

  /// Adds a request; the caller adds its answer with the returned entry.
  std::shared_ptr<Entry> open(std::span<const Token> prompt,
                              const CacheSalt& salt,
                              std::uint64_t client);
  void set_id(Entry& entry, std::string id);
  void add_token(Entry& entry, Token token);
  void close(Entry& entry, std::int64_t cached_tokens);

  /// A JSON object about the last request with this id, with or without an API's prefix; "" if
  /// there is none. `client`: only its requests are found, and nothing but lengths is told of
  /// others'; 0: of all. `tokens_per_page`: the cache's page size.
  std::string explain(std::string_view id,
                      std::uint64_t client,
                      const Tokenizer* tokenizer,
                      std::int32_t tokens_per_page) const;

 private:
  std::size_t requests_max_;
  std::size_t tokens_max_;
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<Entry>> entries_;  // oldest first
  std::size_t tokens_ = 0;
};

}  // namespace koho::api
