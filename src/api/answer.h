// SPDX-License-Identifier: Apache-2.0
// From the engine's events to a responder's pieces: one parser a choice takes chats apart, the same
// for streams and whole answers. Pure: the server moves the events and the bytes.
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
  /// Takes what it needs of `request`, which encode() has completed. The model outlives the answer.
  Answer(const Model& model,
         const GenerationRequest& request,
         std::unique_ptr<Responder> responder);
  ~Answer();
  Answer(Answer&&) noexcept;

  void begin(const AnswerStart& started, std::string& out);
  /// An event of prompt `prompt`'s stream.
  void add(std::size_t prompt, const OutputEvent& event, std::string& out);
  /// The end of a prompt's stream. After the last one the answer is complete.
  void end(std::size_t prompt, const Summary& summary, std::string& out);
  /// The answer breaks off.
  void fail(const ApiError& error, std::string& out);
  void ping(std::string& out) { responder_->ping(out); }

  bool done() const { return done_; }
  const AnswerTotals& totals() const { return totals_; }
  Finish finish() const { return finish_; }  // of the choice that ended last
  /// What the parsers met that was not as it should be.
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
  bool reasoning_as_content_;  // thoughts become content
  bool starts_in_reasoning_;
  std::vector<std::string> stop_strings_;
  std::vector<Token> end_tokens_;  // with which the model ends an answer itself
  std::size_t prompts_left_;
  AnswerTotals totals_;
  Finish finish_ = Finish::none;
  bool done_ = false;
  std::vector<chat::OutputEvent> parsed_;  // scratch
};

}  // namespace koho::api
