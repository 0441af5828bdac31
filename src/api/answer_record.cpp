// SPDX-License-Identifier: Apache-2.0
#include "api/answer_record.h"

#include <algorithm>

namespace koho::api {

AnswerRecord::AnswerRecord(const Model& model, const GenerationRequest& request)
    : turns_(request.place.opening.empty() ? nullptr : model.turns),
      place_(request.place),
      starts_in_reasoning_(request.starts_in_reasoning),
      think_close_(model.tag_ids[static_cast<std::size_t>(chat::Tag::think_close)]) {
  if (turns_) choices_.resize(static_cast<std::size_t>(request.base.choices));
  // /debug/cache explains requests with one prompt only.
  if (!model.journal || request.requests.size() != 1) return;
  journal_ = model.journal;
  entry_ = journal_->open(request.requests.front().prompt, request.base.salt, request.base.client);
}

void AnswerRecord::begin(const std::string& id) {
  if (entry_) journal_->set_id(*entry_, id);
}

void AnswerRecord::add(const Piece& piece, bool itself) {
  const Token token = piece.event->token;
  if (entry_ && piece.choice == 0 && token >= 0) journal_->add_token(*entry_, token);
  if (!turns_) return;
  Choice& choice = choices_[static_cast<std::size_t>(piece.choice)];
  for (const chat::OutputEvent& event : piece.parsed) choice.answer.add(event);
  if (token >= 0 && piece.event->stop_token < 0) choice.ids.push_back(token);
  if (itself) remember(choice);
  if (piece.finish != Finish::none) choice = Choice{};
}

void AnswerRecord::remember(const Choice& choice) {
  // The template never writes a turn whose reasoning has no end.
  if (starts_in_reasoning_ && std::ranges::find(choice.ids, think_close_) == choice.ids.end())
    return;
  turns_->remember(place_, choice.answer, choice.ids);
}

void AnswerRecord::end(const Usage& usage) {
  if (entry_) journal_->close(*entry_, usage.cached_tokens);
}

}  // namespace koho::api
