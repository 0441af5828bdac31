// SPDX-License-Identifier: Apache-2.0
// Remembers the sampled token ids of answers. When a later request's history has such an answer, it
// becomes the same ids again: tokenising its text could give other ids, and the prefix cache would
// miss from there on. An answer is found only after the same prompt, under the same salt and by the
// same API key, so a conversation never gets another one's answer.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "chat/message.h"
#include "chat/output_parser.h"
#include "chat/template.h"
#include "kvcache/prefix_cache.h"
#include "tokenizer/tokenizer.h"

namespace koho::api {

/// A 128-bit hash.
struct TurnKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const TurnKey&) const = default;
};

/// Whose answers these are.
struct TurnScope {
  CacheSalt salt{};
  std::uint64_t key = 0;  // the API key; 0: without keys
};

/// Where an answer begins: the hash of everything before its turn, and the ids that open the turn
/// ("<|assistant|><think>").
struct TurnPlace {
  TurnKey before;
  std::vector<Token> opening;
  std::uint64_t client = 0;  // which keeps the answer
};

/// A rendered conversation as ids.
struct EncodedTurns {
  std::vector<Token> ids;  // the first ones, if there are more than ids_max
  std::size_t total = 0;   // number of all
  TurnPlace place;         // of the answer; no opening if the conversation has no generation prompt
  std::int64_t turns_replayed = 0;
};

/// Threads: any.
class TurnMemory {
 public:
  /// Keeps up to `tokens_max` ids; evicts the least recently used answer of the client that has
  /// most, so that nobody's go for another's.
  explicit TurnMemory(std::size_t tokens_max) : tokens_max_(tokens_max) {}

  /// The ids of `prompt`, the rendered `conversation`: those of Tokenizer::encode, except that
  /// remembered answers become their sampled ids. If the client left out an answer's reasoning, it
  /// is restored where the template would have kept it. Errors: as Tokenizer::encode.
  Result<EncodedTurns> encode(const chat::Conversation& conversation,
                              const chat::Prompt& prompt,
                              chat::TemplateStyle style,
                              const TurnScope& scope,
                              const Tokenizer& tokenizer,
                              std::size_t ids_max = ~std::size_t{0});

  /// Adds an answer that the model ended itself, without its end token.
  void remember(const TurnPlace& place,
                const chat::ParsedOutput& answer,
                std::span<const Token> sampled);

  struct Counts {
    std::uint64_t remembered = 0;
    std::uint64_t replayed = 0;  // turns
    std::size_t tokens = 0;      // kept now, and what entries cost beside them
  };
  Counts counts() const;

 private:
  struct Turn {
    std::vector<Token> ids;  // from <|assistant|> on
    bool has_reasoning = false;
  };
  struct Entry {
    TurnKey key;
    std::shared_ptr<const Turn> turn;
    std::uint64_t client = 0;
  };
  struct Client {
    std::list<Entry> entries;  // most recently used first
    std::size_t tokens = 0;
  };
  struct KeyHash {
    std::size_t operator()(const TurnKey& key) const { return key.low; }
  };

  std::shared_ptr<const Turn> find(const TurnKey& key);
  void insert(const TurnKey& key, const std::shared_ptr<const Turn>& turn, std::uint64_t client);
  void erase(std::list<Entry>::iterator entry);
  static std::size_t cost(const Turn& turn);

  std::size_t tokens_max_;
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, Client> clients_;  // none without entries
  std::unordered_map<TurnKey, std::list<Entry>::iterator, KeyHash> index_;
  std::size_t tokens_ = 0;
  std::uint64_t remembered_ = 0;
  std::uint64_t replayed_ = 0;
};

}  // namespace koho::api
