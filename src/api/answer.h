// SPDX-License-Identifier: Apache-2.0
// Turns the engine's events into a responder's pieces, for streams and complete answers alike. Each
// choice of a chat has a parser for reasoning, content and tool calls. No I/O: the server passes
// events in and bytes out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/answer_record.h"
#include "api/generation.h"
#include "api/responder.h"
#include "chat/output_parser.h"
#include "engine/output_stream.h"

namespace koho::api {

class Answer {
 public:
  /// `request` has been through encode(); it need not outlive the answer, but the model does.
  Answer(const Model& model,
         const GenerationRequest& request,
         std::unique_ptr<Responder> responder);
  ~Answer();
  Answer(Answer&&) noexcept;

  void begin(const AnswerStart& started, std::string& out);
  /// An event of prompt `prompt`'s stream.
  void add(std::size_t prompt, const OutputEvent& event, std::string& out);
  /// The end of a prompt's stream; the answer is complete after the last one.
  void end(std::size_t prompt, const Summary& summary, std::string& out);
  /// Ends the answer with an error.
  void fail(const ApiError& error, std::string& out);
  void ping(std::string& out) { responder_->ping(out); }

  bool done() const { return done_; }
  const AnswerTotals& totals() const { return totals_; }
  Finish finish() const { return finish_; }  // of the choice that ended last
  /// Irregularities that the parsers counted.
  chat::OutputParser::Counts parser_counts() const;

 private:
  struct Choice;

  void parse(Choice& choice, const OutputEvent& event, std::string_view text);
  void put_reasoning_into_content(Choice& choice);

  const Model* model_;
  std::unique_ptr<Responder> responder_;
  AnswerRecord record_;
  std::vector<Choice> choices_;
  std::int32_t choices_per_prompt_;
  bool reasoning_as_content_;  // with separate_reasoning false
  bool starts_in_reasoning_;
  std::vector<std::string> stop_strings_;
  std::vector<Token> end_tokens_;  // the model's own end tokens
  std::size_t prompts_left_;
  AnswerTotals totals_;
  Finish finish_ = Finish::none;
  bool done_ = false;
  std::vector<chat::OutputEvent> parsed_;  // scratch
};

}  // namespace koho::api
