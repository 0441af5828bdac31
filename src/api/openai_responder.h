// SPDX-License-Identifier: Apache-2.0
// What answers in OpenAI's form have in common, chats, completions and koho's own alike: the head,
// the frame of a chunk, the totals at the end, errors as events, pings. What a choice says is left
// to each API.
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
  /// How a choice ended, and its tokens where they are asked for.
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

  /// Begins the head: the id with its prefix, the object's name unless it is "", the model.
  void begin_head(const AnswerStart& started, std::string_view prefix, std::string_view object);
  /// A member of the body or of every chunk, before "choices".
  std::string& head() { return head_; }

  void count(const Piece& piece);
  /// Whether a stream's client hears of a piece; `says`: it brings text.
  bool is_worth_a_chunk(const Piece& piece, bool says) const;
  /// `data: {…,"choices":[{"index":3`.
  void open_chunk(std::size_t choice, std::string& out) const;
  /// finish_reason and all that comes with it, within the choice.
  void append_finish_fields(const Piece& piece, std::string& out) const;
  /// Ends the choices and the chunk; `more`: members of the chunk, ",…".
  void close_chunk(std::string& out, std::string_view more = {}) const;

  /// What append_finish_fields() would have said of a stream's pieces, for a whole answer.
  void note(const Piece& piece, Outcome& outcome) const;
  void append_outcome(const Outcome& outcome, std::string& out) const;

 private:
  /// The choice of a whole answer: one JSON object.
  virtual void append_choice(std::size_t choice, std::string& out) const = 0;

  void append_totals(const AnswerTotals& ended, bool usage, std::string& out) const;

  const Model& model_;
  bool stream_;
  OutputOptions options_;
  std::string shown_model_;
  std::size_t num_choices_;
  std::string head_;  // what every chunk begins with, up to "choices"
  Usage usage_;       // so far
  Token reasoning_begin_;
  Token reasoning_end_;
  std::vector<bool> reasoning_;  // of each choice: it thinks
};

}  // namespace koho::api
