// SPDX-License-Identifier: Apache-2.0
#include "api/answer.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include <fmt/core.h>

namespace koho::api {

struct Answer::Choice {
  std::optional<chat::OutputParser> parser;
  // The engine holds text back while it may become a stop string, so a tag's text can arrive later
  // than its token: the tags whose text is still due, in order.
  std::deque<std::int32_t> tags_due;
  std::string held;  // text that may be the beginning of the first tag due
  // For separate_reasoning false.
  bool has_reasoned = false;  // there was reasoning
  bool in_reasoning = false;  // it has not ended
  bool answered = false;      // there was content or a call
};

Answer::Answer(const Model& model,
               const GenerationRequest& request,
               std::unique_ptr<Responder> responder)
    : model_(&model),
      responder_(std::move(responder)),
      record_(model, request),
      choices_per_prompt_(request.base.choices),
      reasoning_as_content_(request.output.include_reasoning && !request.output.separate_reasoning),
      starts_in_reasoning_(request.starts_in_reasoning),
      stop_strings_(request.base.stop_strings),
      end_tokens_(model.defaults.stop_tokens),
      prompts_left_(request.requests.size()) {
  choices_.resize(request.requests.size() * static_cast<std::size_t>(choices_per_prompt_));
  if (!request.conversation) return;
  for (std::size_t i = 0; i < choices_.size(); ++i)
    choices_[i].parser.emplace(chat::OutputParserOptions{
        .starts_in_reasoning = request.starts_in_reasoning,
        .newline_after_tags = model.style != chat::TemplateStyle::glm_4_7,
        .exact_content =
            request.constraint && request.constraint->kind != Constraint::Kind::tool_calls,
        .tools = request.tool_schemas,
        .tag_ids = model.tag_ids,
        .call_id_prefix =
            i == 0 ? request.call_id_prefix : fmt::format("{}{}_", request.call_id_prefix, i)});
}

Answer::~Answer() = default;
Answer::Answer(Answer&&) noexcept = default;

void Answer::begin(const AnswerStart& started, std::string& out) {
  record_.begin(started.id);
  responder_->begin(started, out);
}

void Answer::parse(Choice& choice, const OutputEvent& event, std::string_view text) {
  constexpr std::int32_t kNoToken = -1;
  chat::OutputParser& parser = *choice.parser;
  const bool is_tag =
      event.token >= 0 && std::ranges::find(model_->tag_ids, event.token) != model_->tag_ids.end();
  if (stop_strings_.empty()) {
    parser.feed_token(is_tag ? event.token : kNoToken, text, parsed_);
    return;
  }
  if (is_tag) choice.tags_due.push_back(event.token);
  std::string joined = std::move(choice.held);
  choice.held.clear();
  joined += text;
  std::string_view rest = joined;
  while (!choice.tags_due.empty()) {
    const auto place = std::ranges::find(model_->tag_ids, choice.tags_due.front());
    const std::string_view tag =
        chat::tag_text(static_cast<chat::Tag>(place - model_->tag_ids.begin()));
    const std::size_t found = rest.find(tag);
    if (found != std::string_view::npos) {
      if (found > 0) parser.feed_token(kNoToken, rest.substr(0, found), parsed_);
      parser.feed_token(*place, tag, parsed_);
      rest.remove_prefix(found + tag.size());
      choice.tags_due.pop_front();
      continue;
    }
    for (std::size_t length = std::min(tag.size() - 1, rest.size()); length > 0; --length) {
      if (!rest.ends_with(tag.substr(0, length))) continue;
      choice.held = rest.substr(rest.size() - length);
      rest.remove_suffix(length);
      break;
    }
    break;
  }
  if (event.finish != FinishReason::none && !choice.held.empty()) {
    joined = std::string(rest) + choice.held;
    rest = joined;
  }
  if (!rest.empty()) parser.feed_token(kNoToken, rest, parsed_);
}

/// Turns the parsed events into one text: reasoning, </think>, content.
void Answer::put_reasoning_into_content(Choice& choice) {
  using Kind = chat::OutputEvent::Kind;
  std::vector<chat::OutputEvent> joined;
  for (chat::OutputEvent& event : parsed_) {
    if (event.kind == Kind::reasoning) {
      const bool tag_is_in_prompt = starts_in_reasoning_ && !choice.has_reasoned;
      if (!choice.in_reasoning && !tag_is_in_prompt)
        event.text.insert(0, chat::tag_text(chat::Tag::think_open));
      event.kind = Kind::content;
      choice.has_reasoned = choice.in_reasoning = true;
    } else {
      // If the answer ended within its reasoning, the parser repeats the reasoning as content.
      if (choice.in_reasoning && !choice.answered && choice.parser->counts().unclosed_reasoning > 0)
        continue;
      choice.answered = true;
      if (std::exchange(choice.in_reasoning, false))
        joined.emplace_back().text = chat::tag_text(chat::Tag::think_close);
    }
    joined.push_back(std::move(event));
  }
  parsed_ = std::move(joined);
}

void Answer::add(std::size_t prompt, const OutputEvent& event, std::string& out) {
  const std::int32_t index = static_cast<std::int32_t>(prompt) * choices_per_prompt_ + event.choice;
  Choice& choice = choices_[static_cast<std::size_t>(index)];
  Piece piece{.choice = index, .event = &event, .text = event.text};
  parsed_.clear();
  const bool itself = event.stop_token >= 0 &&
                      std::ranges::find(end_tokens_, event.stop_token) != end_tokens_.end();
  if (event.finish == FinishReason::stop) piece.finish = Finish::stop;
  if (event.finish == FinishReason::length) piece.finish = Finish::length;
  if (event.stop_string >= 0)
    piece.stop_string = stop_strings_[static_cast<std::size_t>(event.stop_string)];
  if (choice.parser) {
    parse(choice, event, event.text);
    if (piece.finish != Finish::none) {
      choice.parser->finish(itself ? chat::AnswerEnd::finished : chat::AnswerEnd::cut_off, parsed_);
      if (piece.finish == Finish::stop && choice.parser->num_complete_calls() > 0)
        piece.finish = Finish::tool_calls;
    }
    piece.parsed = parsed_;
  }
  if (piece.finish != Finish::none) finish_ = piece.finish;
  record_.add(piece, itself);
  if (choice.parser && reasoning_as_content_) {
    put_reasoning_into_content(choice);
    piece.parsed = parsed_;
  }
  responder_->piece(piece, out);
}

void Answer::end(std::size_t /*prompt*/, const Summary& summary, std::string& out) {
  totals_.usage.prompt_tokens += summary.usage.prompt_tokens;
  totals_.usage.cached_tokens += summary.usage.cached_tokens;
  totals_.usage.completion_tokens += summary.usage.completion_tokens;
  totals_.usage.reasoning_tokens += summary.usage.reasoning_tokens;
  Timings& timings = totals_.timings;
  timings.queued_us = std::max(timings.queued_us, summary.timings.queued_us);
  timings.prefill_us = std::max(timings.prefill_us, summary.timings.prefill_us);
  timings.decode_us = std::max(timings.decode_us, summary.timings.decode_us);
  timings.stalled_us = std::max(timings.stalled_us, summary.timings.stalled_us);
  timings.total_us = std::max(timings.total_us, summary.timings.total_us);
  timings.preemptions += summary.timings.preemptions;
  if (--prompts_left_ > 0) return;
  record_.end(totals_.usage);
  responder_->end(totals_, out);
  done_ = true;
}

void Answer::fail(const ApiError& error, std::string& out) {
  responder_->fail(error, out);
  done_ = true;
}

chat::OutputParser::Counts Answer::parser_counts() const {
  chat::OutputParser::Counts sum;
  for (const Choice& choice : choices_) {
    if (!choice.parser) continue;
    const chat::OutputParser::Counts& counts = choice.parser->counts();
    sum.unknown_tools += counts.unknown_tools;
    sum.malformed_calls += counts.malformed_calls;
    sum.mended_calls += counts.mended_calls;
    sum.unclosed_reasoning += counts.unclosed_reasoning;
  }
  return sum;
}

}  // namespace koho::api
