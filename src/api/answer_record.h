// SPDX-License-Identifier: Apache-2.0
// What of an answer is kept beyond its end: its ids for the turn memory (conversations) and for the
// journal. Keeps nothing where the model has neither.
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
  /// `request` has been encoded.
  AnswerRecord(const Model& model, const GenerationRequest& request);

  void begin(const std::string& id);
  /// A piece; `itself`: with it the model ended the answer by one of its end tokens.
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
