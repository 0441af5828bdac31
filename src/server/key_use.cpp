// SPDX-License-Identifier: Apache-2.0
#include "server/key_use.h"

namespace koho::server {

KeyUse::~KeyUse() {
  if (begun_) key_->end(answer_taken_);
}

api::Refusal KeyUse::begin(std::int64_t now_us) {
  api::Refusal refused = key_->begin(now_us);
  begun_ = !refused;
  return refused;
}

api::Refusal KeyUse::take_tokens(std::int64_t prompt, std::int64_t answer, std::int64_t now_us) {
  api::Refusal refused = key_->take_tokens(prompt, answer, now_us);
  if (refused) return refused;
  const std::lock_guard lock(mutex_);
  prompt_taken_ = prompt;
  answer_taken_ = answer;
  return {};
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
  key_->forgive(prompt_taken_ + generated_);
}

}  // namespace koho::server
