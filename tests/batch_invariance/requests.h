// SPDX-License-Identifier: Apache-2.0
// Requests of every kind for models/tiny, and what an engine answers to them, exactly: tokens, bits
// of logprobs, text, ends.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/runtime.h"

namespace koho::testing {

/// `count` requests, a function of the seed alone: chats, random ids and random ids behind common
/// beginnings, of 1 to 600 tokens; greedy and sampled, with and without penalties, biases, stops
/// and logprobs. Each has a seed of its own.
std::vector<Request> make_requests(const Runtime& runtime, std::size_t count, std::uint64_t seed);

/// Everything a reader sees of one choice.
struct ChoiceSeen {
  std::vector<Token> ids;
  std::vector<std::uint32_t> logprobs;                        // bits
  std::vector<std::pair<Token, std::uint32_t>> alternatives;  // of all tokens, one after another
  std::string text;
  FinishReason finish = FinishReason::none;
  Token stop_token = -1;
  std::int32_t stop_string = -1;

  bool operator==(const ChoiceSeen&) const = default;
};
using Seen = std::vector<ChoiceSeen>;  // by choice

struct ConcurrentLoad {
  std::size_t in_flight = 64;
  bool shuffled = false;
  /// Every third request has a duplicate with another seed that is cancelled after its third token.
  bool cancelled_duplicates = false;
};

/// What the engine answers to each request. A request that fails is a failure of the test.
std::vector<Seen> answers(Runtime& runtime,
                          const std::vector<Request>& requests,
                          const ConcurrentLoad& load);

}  // namespace koho::testing
