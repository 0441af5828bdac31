// SPDX-License-Identifier: Apache-2.0
#include "server/key_use.h"

#include <algorithm>

namespace koho::server {

KeyUse::~KeyUse() {
  give_back_prompts();
  if (begun_) key_->end(answer_taken_);
}

api::Refusal KeyUse::begin(std::int64_t now_us) {
  api::Refusal refused = key_->begin(now_us);
  begun_ = !refused;
  return refused;
}

api::Refusal KeyUse::take_tokens(std::int64_t prompt, std::int64_t answer, std::int64_t now_us) {
  const std::lock_guard lock(mutex_);
  api::Refusal refused = key_->take_tokens(prompt, answer, now_us, &limited_);
  if (refused) return refused;
  prompt_taken_ = prompt;
  answer_taken_ = limited_ ? answer : 0;
  return {};
}

void KeyUse::use_prompt(std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  const std::int64_t used = std::min(tokens, prompt_taken_);
  prompt_taken_ -= used;
  prompt_used_ += used;
}

void KeyUse::give_back_prompts() {
  const std::lock_guard lock(mutex_);
  const std::int64_t tokens = std::exchange(prompt_taken_, 0);
  if (tokens > 0) key_->give_back(tokens, limited_);
}

void KeyUse::add_generated(std::int64_t tokens, std::int64_t now_us) {
  const std::lock_guard lock(mutex_);
  generated_ += tokens;
  for (; tokens > 0; --tokens) {
    key_->add_generated(forgiven_ || answer_taken_ > 0, now_us);
    if (!forgiven_ && answer_taken_ > 0) --answer_taken_;
  }
}

void KeyUse::forgive() {
  const std::lock_guard lock(mutex_);
  if (!begun_ || forgiven_) return;
  forgiven_ = true;
  key_->forgive(limited_ ? prompt_used_ + generated_ : 0);
}

}  // namespace koho::server
