// SPDX-License-Identifier: Apache-2.0
// A simulated client: it knows what its request gives when it runs alone, one token after another
// and with nobody beside it, and compares what it reads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/output_stream.h"
#include "engine/request.h"
#include "engine/text_decoder.h"
#include "fake_grammar.h"

namespace koho::simulation {

/// Letters for tokens, one of them now and then held back until the next token, as half a UTF-8
/// character would be.
class FakeDecoder final : public TextDecoder {
 public:
  void push(Token token, std::string& text) override;
  void flush(std::string& text) override;

 private:
  std::string pending_;
};

class Client {
 public:
  /// `tells_decodes`: as FakeExecutor's.
  Client(const Request& request,
         std::int32_t vocabulary,
         bool with_text,
         bool tells_decodes = false);

  /// Compares one event with the truth; returns what is wrong, or empty.
  std::string check(const OutputEvent& event);
  /// Compares the end with what was read.
  std::string check_end(const Summary& summary) const;

  const Request& request() const { return request_; }
  /// Prompt and output of the first choice so far, as a next turn would send them.
  std::vector<Token> conversation() const;
  std::int64_t tokens_read() const { return tokens_read_; }
  /// Choices that a stop sequence ended.
  std::int64_t stop_sequences() const { return stop_sequences_; }

  std::shared_ptr<OutputStream> stream;
  std::int64_t submitted_us = 0;
  bool cancelled = false;
  std::size_t unread_at_cancel = 0;  // events the stream held then
  bool asleep = false;               // a reader that does not read
  bool may_fail = false;             // the simulation broke something that may end this request

 private:
  struct Choice {
    std::uint64_t content = 0;
    std::uint64_t history = 0;
    std::uint64_t seed = 0;
    std::vector<Token> output;
    std::int32_t tokens = 0;
    bool finished = false;
    FakeDecoder decoder;
    std::string text;       // decoded so far
    std::string text_read;  // shown by the engine
    std::int64_t reasoning = 0;
    bool in_reasoning = false;
    bool constrained = false;               // the reasoning is over, the grammar has begun
    std::vector<Token> constrained_tokens;  // that it has seen
  };
  bool is_stop(Token token) const;
  /// Whether the choice's grammar, if it has one, lets `token` come next.
  bool allowed(const Choice& choice, Token token) const;
  bool grammar_goes_on(const Choice& choice) const;
  /// Whether the reasoning must end.
  bool budget_is_spent(const Choice& choice) const;
  /// Whether the output so far ends with one of the request's stop sequences.
  bool ends_with_stop(const Choice& choice) const;
  /// How the choice goes on after `token`, alone.
  OutputEvent expected_after(Choice& choice, Token token) const;
  Token expected_token(const Choice& choice) const;
  std::int32_t find_stop(const std::string& text, std::size_t from, std::size_t& end) const;

  Request request_;
  const FakeGrammar* grammar_;  // null: none
  std::int32_t vocabulary_;
  bool with_text_;
  bool tells_decodes_;
  bool penalties_;
  std::vector<Choice> choices_;
  std::vector<Token> output_;  // of the first choice
  std::int64_t tokens_read_ = 0;
  std::int64_t stop_sequences_ = 0;
};

}  // namespace koho::simulation
