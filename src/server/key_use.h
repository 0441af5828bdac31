// SPDX-License-Identifier: Apache-2.0
// What one request takes of its API key, from its beginning until the last of its tokens is
// counted: the engine may generate some that nobody reads, as the client has left.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "server/api_keys.h"

namespace koho::server {

/// Threads: any.
class KeyUse {
 public:
  explicit KeyUse(std::shared_ptr<ApiKey> key) : key_(std::move(key)) {}
  /// Gives back what was taken and is not used.
  ~KeyUse();
  KeyUse(const KeyUse&) = delete;
  KeyUse& operator=(const KeyUse&) = delete;

  /// As ApiKey's; once each, in this order.
  api::Refusal begin(std::int64_t now_us);
  api::Refusal take_tokens(std::int64_t prompt, std::int64_t answer, std::int64_t now_us);

  /// The engine has so many of the prompts' tokens, or all: they are used.
  void use_prompt(std::int64_t tokens = std::numeric_limits<std::int64_t>::max());
  /// Gives back what is not used of the prompts: the request is refused.
  void give_back_prompts();
  void add_generated(std::int64_t tokens, std::int64_t now_us);
  /// The request was taken back for others' sake: what it took, and still generates, does not count
  /// against the limits.
  void forgive();

 private:
  const std::shared_ptr<ApiKey> key_;
  std::mutex mutex_;
  bool begun_ = false;
  bool forgiven_ = false;
  bool limited_ = false;           // a limit has what was taken
  std::int64_t prompt_taken_ = 0;  // and not used
  std::int64_t prompt_used_ = 0;
  std::int64_t answer_taken_ = 0;  // and not generated; none where no limit has it
  std::int64_t generated_ = 0;
};

}  // namespace koho::server
