// SPDX-License-Identifier: Apache-2.0
// The part of a GenerationJob that computes the log probabilities of its prompts.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "grammar/forced_tokens.h"
#include "server/generation_job.h"

namespace koho::server {

/// Log probabilities of the prompt's own tokens. The engine computes logits only where it samples,
/// so the prompt is split into chunks of one page's tokens, and each chunk is generated as forced
/// tokens after the tokens before it. The last chunk runs first: it fills the prefix cache with all
/// pages of the prompt, where the other chunks find them.
void GenerationJob::begin_prompt_logprobs() {
  constexpr std::size_t kScoredTokensMax = 16'384;
  const api::Model& model = setup_.serving->model;
  const std::int32_t vocabulary = model.tokenizer == nullptr
                                      ? model.limits.vocabulary
                                      : static_cast<std::int32_t>(model.tokenizer->vocab_size());
  cached_tokens_.resize(request_.requests.size());
  std::size_t tokens = 0;
  for (std::size_t i = 0; i < request_.requests.size(); ++i) {
    const std::vector<Token>& prompt = request_.requests[i].prompt;
    tokens += prompt.size();
    request_.prompt_logprobs.emplace_back(prompt.size() - 1);
    if (prompt.size() > 1)
      pending_chunks_.push_back(chunk_of(i, (prompt.size() - 2) / kScoreChunkTokens));
    for (const Token token : prompt)
      if (token >= vocabulary)
        refused_ = api::wrong_field(
            "echo", fmt::format("token {} has no logprob: the tokenizer does not have it", token));
  }
  if (tokens > kScoredTokensMax)
    refused_ = api::wrong_field(
        "echo",
        fmt::format("echo with logprobs is limited to {} prompt tokens per request, found {}",
                    kScoredTokensMax, tokens));
  if (refused_) return;
  stage_ = Stage::scoring;
  scoring_.emplace(core_.counters().requests_scoring);
}

/// Chunk `number` of a prompt. Chunk 0 begins at the second token, since the first has no log
/// probability; so the tokens before every chunk are whole pages and one token.
GenerationJob::ScoreChunk GenerationJob::chunk_of(std::size_t prompt, std::size_t number) const {
  const std::size_t length = request_.requests[prompt].prompt.size();
  const std::size_t begin = number * kScoreChunkTokens + 1;
  const std::size_t end = std::min(begin + kScoreChunkTokens, length);
  return {.prompt = prompt, .position = begin, .end = end, .leads = end == length && number > 0};
}

void GenerationJob::read_prompt_logprobs(ScoreChunk& chunk) {
  while (true) {
    const OutputStream::Read read = chunk.submitted.stream->poll(event_);
    if (read == OutputStream::Read::nothing) return;
    if (read == OutputStream::Read::event) {
      api::PromptLogprob& logprob = request_.prompt_logprobs[chunk.prompt][chunk.position++ - 1];
      logprob.logprob = event_.logprob;
      logprob.top = event_.top;
      continue;
    }
    const Summary& summary = chunk.submitted.stream->summary();
    if (summary.ending == Ending::failed) refused_ = api::to_api_error(summary.error);
    if (chunk.end == request_.requests[chunk.prompt].prompt.size())  // the first to run
      cached_tokens_[chunk.prompt] = summary.usage.cached_tokens;
    chunk.submitted.stream.reset();
    if (chunk.in_place) streams_[chunk.prompt] = std::move(chunk.submitted);
    chunk.submitted = {};
    return;
  }
}

void GenerationJob::compute_prompt_logprobs() {
  constexpr std::size_t kAtOnce = 32;
  for (std::size_t i = 0; i < active_chunks_.size(); ++i) {
    const std::size_t before = active_chunks_[i].position;
    read_prompt_logprobs(active_chunks_[i]);
    if (!active_chunks_[i].leads || active_chunks_[i].position == before) continue;
    active_chunks_[i].leads = false;
    for (std::size_t number = (before - 1) / kScoreChunkTokens; number > 0; --number)
      pending_chunks_.push_front(chunk_of(active_chunks_[i].prompt, number - 1));
  }
  std::erase_if(active_chunks_,
                [](const ScoreChunk& chunk) { return chunk.submitted.stream == nullptr; });
  while (!refused_ && active_chunks_.size() < kAtOnce && !pending_chunks_.empty()) {
    ScoreChunk& chunk = pending_chunks_.front();
    const Request& whole = request_.requests[chunk.prompt];
    const auto at = [&whole](std::size_t position) {
      return whole.prompt.begin() + static_cast<std::ptrdiff_t>(position);
    };
    Request one;
    one.prompt.assign(at(0), at(chunk.position));
    one.grammar = forced_tokens({at(chunk.position), at(chunk.end)});
    one.sampling.temperature = 0.0;
    one.sampling.logprobs = *request_.output.logprobs;
    one.max_tokens = static_cast<std::int32_t>(chunk.end - chunk.position);
    one.salt = whole.salt;
    one.priority = whole.priority;
    one.client = whole.client;
    one.deadline_us = whole.deadline_us;
    // Not refused halfway for want of a place: it has its request's.
    const bool in_place = std::ranges::none_of(active_chunks_, [&chunk](const ScoreChunk& active) {
      return active.in_place && active.prompt == chunk.prompt;
    });
    Submitted places = std::exchange(streams_[chunk.prompt], {});
    if (!in_place && !take_places(places, one.choices)) break;
    if (const Status submitted = submit_one(std::move(one), places); !submitted.ok()) {
      refused_ = api::to_api_error(submitted.error());
      break;
    }
    if (use_ != nullptr) use_->use_prompt();  // the last chunk computes all of it
    chunk.submitted = std::move(places);
    chunk.in_place = in_place;
    active_chunks_.push_back(std::move(chunk));
    pending_chunks_.pop_front();
  }
  if (refused_ || !active_chunks_.empty() || !pending_chunks_.empty()) return;
  submit();
  scoring_.reset();
}

}  // namespace koho::server
