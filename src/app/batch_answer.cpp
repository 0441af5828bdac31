// SPDX-License-Identifier: Apache-2.0
#include "app/batch_answer.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "base/json_writer.h"
#include "tokenizer/utf8.h"

namespace koho::app {
namespace {

double ms(std::int64_t us) {
  return static_cast<double>(us) / 1e3;
}

}  // namespace

BatchAnswer::BatchAnswer(std::string id,
                         const Request& request,
                         const std::optional<chat::OutputParserOptions>& parser)
    : id_(std::move(id)),
      wants_logprobs_(request.sampling.logprobs.has_value()),
      stop_strings_(request.stop_strings),
      choices_(static_cast<std::size_t>(request.choices)) {
  if (!parser) return;
  for (Choice& choice : choices_)
    choice.chat.emplace(
        *parser, AnswerDisplay::Options{.silent = true, .by_spelling = !stop_strings_.empty()});
}

void BatchAnswer::add(const OutputEvent& event) {
  Choice& choice = choices_[static_cast<std::size_t>(event.choice)];
  choice.text += event.text;
  if (choice.chat) choice.chat->show(event);
  if (event.token >= 0) {
    choice.ids.push_back(event.token);
    if (wants_logprobs_) {
      choice.logprobs.push_back(event.logprob);
      choice.top.push_back(event.top);
    }
  }
  if (event.finish == FinishReason::none) return;
  choice.finish = event.finish;
  if (choice.chat) choice.chat->finish();
  if (event.stop_string >= 0) {
    append_json_string(choice.stop_reason,
                       stop_strings_[static_cast<std::size_t>(event.stop_string)]);
  } else if (event.stop_token >= 0) {
    choice.stop_reason = std::to_string(event.stop_token);
  }
}

void BatchAnswer::append_choice(std::string& out, const Choice& choice) const {
  fmt::format_to(std::back_inserter(out), R"("ids":[{}],"text":)", fmt::join(choice.ids, ","));
  append_json_string(out, choice.chat ? choice.chat->parsed().content : choice.text);
  if (choice.chat) {
    const chat::ParsedOutput& parsed = choice.chat->parsed();
    out += R"(,"reasoning":)";
    append_json_string(out, parsed.reasoning);
    out += R"(,"tool_calls":)" + calls_json(parsed.calls);
  }
  out += choice.finish == FinishReason::stop ? R"(,"finish_reason":"stop")"
                                             : R"(,"finish_reason":"length")";
  if (!choice.stop_reason.empty()) out += R"(,"stop_reason":)" + choice.stop_reason;
  if (!wants_logprobs_) return;
  out += R"(,"logprobs":[)";
  for (std::size_t i = 0; i < choice.logprobs.size(); ++i) {
    out += i == 0 ? R"({"logprob":)" : R"(,{"logprob":)";
    append_json_float(out, choice.logprobs[i]);
    out += R"(,"top":[)";
    for (const TokenLogprob& top : choice.top[i]) {
      if (out.back() != '[') out += ',';
      fmt::format_to(std::back_inserter(out), "[{},", top.token);
      append_json_float(out, top.logprob);
      out += ']';
    }
    out += "]}";
  }
  out += ']';
}

bool BatchAnswer::is_cut() const {
  return std::ranges::any_of(
      choices_, [](const Choice& choice) { return choice.finish == FinishReason::length; });
}

std::string BatchAnswer::line(const Summary& summary) const {
  std::string out = R"({"id":)" + id_ + ",";
  if (choices_.size() == 1) {
    append_choice(out, choices_[0]);
  } else {
    out += R"("choices":[)";
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      fmt::format_to(std::back_inserter(out), R"({}{{"index":{},)", i == 0 ? "" : ",", i);
      append_choice(out, choices_[i]);
      out += '}';
    }
    out += ']';
  }
  const Usage& usage = summary.usage;
  const Timings& timings = summary.timings;
  fmt::format_to(
      std::back_inserter(out),
      R"(,"usage":{{"prompt_tokens":{},"cached_tokens":{},"completion_tokens":{},"reasoning_tokens":{}}})"
      R"(,"timings":{{"queued_ms":{:.3f},"prefill_ms":{:.3f},"decode_ms":{:.3f},"stalled_ms":{:.3f},"total_ms":{:.3f},)"
      R"("preemptions":{}}}}})",
      usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens,
      ms(timings.queued_us), ms(timings.prefill_us), ms(timings.decode_us), ms(timings.stalled_us),
      ms(timings.total_us), timings.preemptions);
  return out;
}

std::string error_line(std::string_view id, std::int64_t number, const Error& error) {
  std::string message;
  append_utf8_lossy(message, error.message);
  std::string quoted;
  append_json_string(quoted, message);
  return fmt::format(R"({{"id":{},"line":{},"error":{{"code":"{}","message":{}}}}})", id, number,
                     error_code_info(error.code).name, quoted);
}

}  // namespace koho::app
