// SPDX-License-Identifier: Apache-2.0
// The common part of the responders for chats, completions and /generate: the head, the frame of a
// chunk, usage at the end, errors as events, keep-alives. Derived classes write the choices.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/responder.h"

namespace koho::api {

class OpenAiResponder : public Responder {
 public:
  void end(const AnswerTotals& ended, std::string& out) final;
  void fail(const ApiError& error, std::string& out) final;
  void ping(std::string& out) final;

 protected:
  /// How a choice ended, and its token ids if the request wants them.
  struct Outcome {
    std::vector<Token> ids;
    Finish finish = Finish::none;
    std::string stop_reason;  // as JSON
  };

  /// The model outlives the answer.
  OpenAiResponder(const GenerationRequest& request, const Model& model);

  bool streams() const { return stream_; }
  const Model& model() const { return model_; }
  const OutputOptions& options() const { return options_; }
  std::size_t num_choices() const { return num_choices_; }

  /// Begins the head: the id with its prefix, the object name unless it is "", the model.
  void begin_head(const AnswerStart& started, std::string_view prefix, std::string_view object);
  /// A member of the body or of every chunk, before "choices".
  std::string& head() { return head_; }

  void count(const Piece& piece);
  /// Whether a piece becomes a chunk of the stream; `says`: it has text.
  bool is_worth_a_chunk(const Piece& piece, bool says) const;
  /// `data: {…,"choices":[{"index":3`.
  void open_chunk(std::size_t choice, std::string& out) const;
  /// finish_reason and the members that follow it in the choice.
  void append_finish_fields(const Piece& piece, std::string& out) const;
  /// Ends the choices and the chunk; `more`: members of the chunk, ",…".
  void close_chunk(std::string& out, std::string_view more = {}) const;

  /// The same as append_finish_fields(), for a complete answer.
  void note(const Piece& piece, Outcome& outcome) const;
  void append_outcome(const Outcome& outcome, std::string& out) const;

 private:
  /// A choice of a complete answer: one JSON object.
  virtual void append_choice(std::size_t choice, std::string& out) const = 0;

  void append_totals(const AnswerTotals& ended, bool usage, std::string& out) const;

  const Model& model_;
  bool stream_;
  OutputOptions options_;
  std::string shown_model_;
  std::size_t num_choices_;
  std::string head_;  // the beginning of every chunk, up to "choices"
  Usage usage_;       // so far
  Token reasoning_begin_;
  Token reasoning_end_;
  std::vector<bool> reasoning_;  // per choice: the model is still reasoning
};

}  // namespace koho::api
