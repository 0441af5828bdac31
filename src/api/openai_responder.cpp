// SPDX-License-Identifier: Apache-2.0
#include "api/openai_responder.h"

#include "api/json_text.h"
#include "base/json_writer.h"

namespace koho::api {

OpenAiResponder::OpenAiResponder(const GenerationRequest& request, const Model& model)
    : model_(model),
      stream_(request.stream),
      options_(request.output),
      shown_model_(request.model),
      num_choices_(request.requests.size() * static_cast<std::size_t>(request.base.choices)),
      reasoning_begin_(request.base.reasoning_begin),
      reasoning_end_(request.base.reasoning_end) {
  for (const Request& one : request.requests)
    reasoning_.insert(reasoning_.end(), static_cast<std::size_t>(request.base.choices),
                      one.starts_in_reasoning);
}

void OpenAiResponder::count(const Piece& piece) {
  const Token token = piece.event->token;
  if (token < 0) return;
  const auto choice = static_cast<std::size_t>(piece.choice);
  ++usage_.completion_tokens;
  bool reasons = reasoning_[choice];
  if (counts_as_reasoning(token, reasoning_begin_, reasoning_end_, reasons))
    ++usage_.reasoning_tokens;
  reasoning_[choice] = reasons;
}

void OpenAiResponder::begin_head(const AnswerStart& started,
                                 std::string_view prefix,
                                 std::string_view object) {
  usage_.prompt_tokens = started.prompt_tokens;
  head_ = R"({"id":")";
  head_ += prefix;
  head_ += started.id;
  head_ += R"(","object":")";
  head_ += object;
  head_ += R"(","created":)";
  append_json_integer(head_, started.created);
  head_ += R"(,"model":)";
  append_json_string(head_, shown_model_);
  if (!model_.fingerprint.empty()) head_ += R"(,"system_fingerprint":")" + model_.fingerprint + '"';
}

bool OpenAiResponder::is_worth_a_chunk(const Piece& piece, bool says) const {
  return says || piece.finish != Finish::none ||
         (piece.event->token >= 0 && (options_.logprobs || options_.token_ids));
}

void OpenAiResponder::open_chunk(std::size_t choice, std::string& out) const {
  out += "data: ";
  out += head_;
  out += R"(,"choices":[{"index":)";
  append_json_integer(out, static_cast<std::int64_t>(choice));
}

void OpenAiResponder::append_finish_fields(const Piece& piece, std::string& out) const {
  out += R"(,"finish_reason":)";
  append_finish(out, piece.finish);
  if (piece.finish != Finish::none) {
    out += R"(,"stop_reason":)";
    append_stop_reason(out, piece, model_);
  }
  if (options_.token_ids && piece.event->token >= 0) {
    out += R"(,"token_ids":)";
    append_ids(out, {&piece.event->token, 1});
  }
}

void OpenAiResponder::close_chunk(std::string& out, std::string_view more) const {
  out += "}]";
  out += more;
  if (options_.usage_in_every_chunk) {
    out += R"(,"usage":)";
    append_usage(out, usage_);
  }
  out += "}\n\n";
}

void OpenAiResponder::note(const Piece& piece, Outcome& outcome) const {
  if (options_.token_ids && piece.event->token >= 0) outcome.ids.push_back(piece.event->token);
  if (piece.finish == Finish::none) return;
  outcome.finish = piece.finish;
  append_stop_reason(outcome.stop_reason, piece, model_);
}

void OpenAiResponder::append_outcome(const Outcome& outcome, std::string& out) const {
  out += R"(,"finish_reason":)";
  append_finish(out, outcome.finish);
  out += R"(,"stop_reason":)" + outcome.stop_reason;
  if (!options_.token_ids) return;
  out += R"(,"token_ids":)";
  append_ids(out, outcome.ids);
}

void OpenAiResponder::append_totals(const AnswerTotals& ended, bool usage, std::string& out) const {
  if (usage) {
    out += R"(,"usage":)";
    append_usage(out, ended.usage);
  }
  if (options_.timings) {
    out += R"(,"timings":)";
    append_timings(out, ended);
  }
  out += '}';
}

void OpenAiResponder::end(const AnswerTotals& ended, std::string& out) {
  if (stream_) {
    if (options_.include_usage || options_.timings) {
      out += "data: " + head_ + R"(,"choices":[])";
      append_totals(ended, options_.include_usage, out);
      out += "\n\n";
    }
    out += "data: [DONE]\n\n";
    return;
  }
  out += head_ + R"(,"choices":[)";
  for (std::size_t i = 0; i < num_choices_; ++i) {
    if (i > 0) out += ',';
    append_choice(i, out);
  }
  out += ']';
  append_totals(ended, true, out);
}

void OpenAiResponder::fail(const ApiError& error, std::string& out) {
  if (!stream_) return;
  out += "data: ";
  append_error(out, ErrorStyle::openai, error);
  out += "\n\ndata: [DONE]\n\n";
}

void OpenAiResponder::ping(std::string& out) {
  if (stream_) out += ": ping\n\n";
}

}  // namespace koho::api
