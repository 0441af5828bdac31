// SPDX-License-Identifier: Apache-2.0
// Records an answer's token ids for the turn memory (conversations) and for the prompt journal, if
// the model has them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/generation.h"
#include "api/responder.h"
#include "chat/output_parser.h"

namespace koho::api {

class AnswerRecord {
 public:
  /// `request` has been through encode().
  AnswerRecord(const Model& model, const GenerationRequest& request);

  void begin(const std::string& id);
  /// Adds a piece. `itself`: the piece is an end token with which the model ended the answer.
  void add(const Piece& piece, bool itself);
  void end(const Usage& usage);

 private:
  struct Choice {
    std::vector<Token> ids;
    chat::ParsedOutput answer;
  };

  void remember(const Choice& choice);

  std::shared_ptr<TurnMemory> turns_;  // null: nothing is remembered
  std::shared_ptr<PromptJournal> journal_;
  std::shared_ptr<PromptJournal::Entry> entry_;  // null: not in the journal
  TurnPlace place_;
  bool starts_in_reasoning_;
  Token think_close_;
  std::vector<Choice> choices_;
};

}  // namespace koho::api
