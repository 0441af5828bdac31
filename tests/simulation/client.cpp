// SPDX-License-Identifier: Apache-2.0
// The model of one request: every token, stop, text piece and count that its stream must bring.
#include "client.h"

#include <algorithm>

#include <fmt/core.h>

#include "fake_executor.h"
#include "random.h"

namespace koho::simulation {

void FakeDecoder::push(Token token, std::string& text) {
  text += pending_;
  pending_.clear();
  if (token % 5 == 0) return;
  std::string& out = token % 7 == 3 ? pending_ : text;
  out += static_cast<char>('a' + token % 3);
  if (token % 2 == 0) out += 'b';
}

void FakeDecoder::flush(std::string& text) {
  text += pending_;
  pending_.clear();
}

Client::Client(const Request& request, std::int32_t vocabulary, bool with_text, bool tells_decodes)
    : request_(request),
      grammar_(static_cast<const FakeGrammar*>(request.grammar.get())),
      vocabulary_(vocabulary),
      with_text_(with_text),
      tells_decodes_(tells_decodes) {
  const SamplingParameters& sampling = request_.sampling;
  penalties_ = has_penalties(sampling);
  std::uint64_t content = kRootContent;
  std::uint64_t history = request_.prompt.size();
  for (const Token token : request_.prompt) {
    content = slot_content(content, token);
    history = slot_content(history, token);
  }
  const std::uint64_t seed =
      sampling.seed ? static_cast<std::uint64_t>(*sampling.seed) : request_.seed;
  choices_.resize(static_cast<std::size_t>(request_.choices));
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].content = content;
    choices_[i].history = history;
    choices_[i].seed = choice_seed(seed, static_cast<std::int32_t>(i));
    choices_[i].in_reasoning = request_.starts_in_reasoning;
    choices_[i].constrained = !(request_.starts_in_reasoning && request_.reasoning_end >= 0);
  }
}

bool Client::is_stop(Token token) const {
  return std::ranges::find(request_.stop_tokens, token) != request_.stop_tokens.end();
}

bool Client::grammar_goes_on(const Choice& choice) const {
  for (Token token = 0; token < vocabulary_; ++token)
    if (!is_stop(token) && grammar_->allows(choice.constrained_tokens, token)) return true;
  return false;
}

bool Client::budget_is_spent(const Choice& choice) const {
  return !choice.constrained && request_.reasoning_tokens_max >= 0 &&
         choice.tokens >= request_.reasoning_tokens_max;
}

bool Client::allowed(const Choice& choice, Token token) const {
  if (budget_is_spent(choice)) return token == request_.reasoning_end;
  if (grammar_ == nullptr) return true;
  if (!choice.constrained) return !is_stop(token);
  if (!is_stop(token)) return grammar_->allows(choice.constrained_tokens, token);
  return grammar_->can_end(choice.constrained_tokens) &&
         (choice.tokens >= request_.min_tokens || !grammar_goes_on(choice));
}

Token Client::expected_token(const Choice& choice) const {
  const std::uint64_t hash =
      draw_hash(choice.content, choice.seed, choice.tokens, penalties_ ? choice.history : 0);
  auto token = static_cast<Token>(hash % static_cast<std::uint64_t>(vocabulary_));
  if (grammar_ != nullptr || budget_is_spent(choice)) {
    while (!allowed(choice, token)) token = (token + 1) % vocabulary_;
    return token;
  }
  if (choice.tokens < request_.min_tokens)
    while (std::ranges::find(request_.stop_tokens, token) != request_.stop_tokens.end())
      token = (token + 1) % vocabulary_;
  return token;
}

std::int32_t Client::find_stop(const std::string& text, std::size_t from, std::size_t& end) const {
  for (end = from + 1; end <= text.size(); ++end) {
    std::int32_t best = -1;
    for (std::size_t s = 0; s < request_.stop_strings.size(); ++s)
      if (std::string_view(text).substr(0, end).ends_with(request_.stop_strings[s]) &&
          (best < 0 || request_.stop_strings[s].size() >
                           request_.stop_strings[static_cast<std::size_t>(best)].size()))
        best = static_cast<std::int32_t>(s);
    if (best >= 0) return best;
  }
  return -1;
}

bool Client::ends_with_stop(const Choice& choice) const {
  return choice.tokens > request_.min_tokens &&
         std::ranges::any_of(request_.stop_sequences, [&](const std::vector<Token>& sequence) {
           return sequence.size() <= choice.output.size() &&
                  std::equal(sequence.rbegin(), sequence.rend(), choice.output.rbegin());
         });
}

OutputEvent Client::expected_after(Choice& choice, Token token) const {
  OutputEvent expected;
  expected.token = token;
  const bool stops = (grammar_ != nullptr || choice.tokens > request_.min_tokens) && is_stop(token);
  const bool complete = grammar_ != nullptr && choice.constrained && request_.stop_tokens.empty() &&
                        grammar_->can_end(choice.constrained_tokens) && !grammar_goes_on(choice);
  const bool full = choice.tokens == request_.max_tokens;
  if (stops) expected.stop_token = token;
  expected.finish = stops || complete || ends_with_stop(choice) ? FinishReason::stop
                    : full                                      ? FinishReason::length
                                                                : FinishReason::none;
  if (!with_text_) return expected;
  const std::size_t before = choice.text.size();
  if (!stops || request_.include_stop) choice.decoder.push(token, choice.text);
  if (expected.finish != FinishReason::none) choice.decoder.flush(choice.text);
  std::size_t end = 0;
  expected.stop_string = find_stop(choice.text, before, end);
  if (expected.stop_string >= 0) {
    expected.finish = FinishReason::stop;
    expected.stop_token = -1;
    const std::size_t stop =
        request_.stop_strings[static_cast<std::size_t>(expected.stop_string)].size();
    choice.text.resize(request_.include_stop ? end : end - stop);
  }
  return expected;
}

std::string Client::check(const OutputEvent& event) {
  if (event.choice < 0 || event.choice >= request_.choices) return "an unknown choice";
  Choice& choice = choices_[static_cast<std::size_t>(event.choice)];
  if (choice.finished) return "an event after the choice's last";
  if (request_.max_tokens == 0) {
    choice.finished = true;
    return event.token == -1 && event.finish == FinishReason::length ? "" : "a token unasked for";
  }
  if (event.token >= 0 && !allowed(choice, event.token))
    return fmt::format("token {} of choice {} is {}, which its grammar forbids", choice.tokens,
                       event.choice, event.token);
  const Token token = expected_token(choice);
  if (event.token != token)
    return fmt::format("token {} of choice {} is {}, alone it is {}", choice.tokens, event.choice,
                       event.token, token);
  if (request_.logits != !event.logits.empty() ||
      (request_.logits && event.logits.at(static_cast<std::size_t>(token)) != 1.0F))
    return fmt::format("token {} of choice {} has another's logits", choice.tokens, event.choice);
  if (!choice.constrained) {
    choice.constrained = token == request_.reasoning_end;
  } else if (grammar_ != nullptr) {
    choice.constrained_tokens.push_back(token);
  }
  ++tokens_read_;
  ++choice.tokens;
  choice.output.push_back(token);
  choice.content = slot_content(choice.content, token, tells_decodes_);
  choice.history = slot_content(choice.history, token);
  if (event.choice == 0) output_.push_back(token);
  if (token == request_.reasoning_begin) choice.in_reasoning = true;
  choice.reasoning += choice.in_reasoning ? 1 : 0;
  if (token == request_.reasoning_end) choice.in_reasoning = false;

  const OutputEvent expected = expected_after(choice, token);
  if (event.finish != expected.finish || event.stop_token != expected.stop_token ||
      event.stop_string != expected.stop_string)
    return fmt::format("after token {} the choice ends as {}, alone as {}", choice.tokens,
                       static_cast<int>(event.finish), static_cast<int>(expected.finish));
  choice.text_read += event.text;
  choice.finished = event.finish != FinishReason::none;
  stop_sequences_ += choice.finished && ends_with_stop(choice) ? 1 : 0;
  if (choice.finished && choice.text_read != choice.text)
    return fmt::format("the text is '{}', alone it is '{}'", choice.text_read, choice.text);
  return {};
}

std::string Client::check_end(const Summary& summary) const {
  const bool all = std::ranges::all_of(choices_, &Choice::finished);
  if ((summary.ending == Ending::completed) != all)
    return fmt::format("ended as {} with all choices finished: {}",
                       static_cast<int>(summary.ending), all);
  if (summary.ending == Ending::cancelled && !cancelled) return "cancelled by nobody";
  if (summary.ending == Ending::failed && !may_fail)
    return fmt::format("failed without a reason: {}", summary.error.message);
  std::int64_t reasoning = 0;
  for (const Choice& choice : choices_) reasoning += choice.reasoning;
  const auto prompt = static_cast<std::int64_t>(request_.prompt.size());
  const Usage& usage = summary.usage;
  if (usage.prompt_tokens != prompt || usage.completion_tokens != tokens_read_ ||
      usage.reasoning_tokens != reasoning || usage.cached_tokens < 0 ||
      usage.cached_tokens >= prompt)
    return fmt::format("usage {} {} {} {}, read {} {} and {} of reasoning", usage.prompt_tokens,
                       usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens, prompt,
                       tokens_read_, reasoning);
  const Timings& timings = summary.timings;
  if (timings.queued_us < 0 || timings.prefill_us < 0 || timings.decode_us < 0 ||
      timings.stalled_us < 0 ||
      timings.queued_us + timings.prefill_us + timings.decode_us > timings.total_us ||
      timings.stalled_us > timings.total_us)
    return "timings that do not add up";
  return {};
}

std::vector<Token> Client::conversation() const {
  std::vector<Token> tokens = request_.prompt;
  tokens.insert(tokens.end(), output_.begin(), output_.end());
  return tokens;
}

}  // namespace koho::simulation
