// SPDX-License-Identifier: Apache-2.0
#include "app/answer_display.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <unistd.h>
#include <utility>

#include <fmt/core.h>

#include "app/terminal.h"
#include "base/check.h"
#include "base/json_writer.h"
#include "chat/json.h"

namespace koho::app {
namespace {

constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kCall = "\x1b[35m";
constexpr std::string_view kPlain = "\x1b[0m";

void write(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

AnswerDisplay::Options display_options(std::optional<bool> show_reasoning) {
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  return {.terminal = terminal,
          .color = use_color(STDOUT_FILENO),
          .reasoning = show_reasoning.value_or(terminal)};
}

AnswerDisplay::AnswerDisplay(chat::OutputParserOptions parser, const Options& options)
    : parser_(parser), tag_ids_(parser.tag_ids), options_(options) {
  if (options.color) colors_.emplace();
}

void AnswerDisplay::show(const OutputEvent& event) {
  events_.clear();
  if (options_.by_spelling) {
    parser_.feed_text(event.text, events_);
  } else {
    const bool is_tag =
        event.token >= 0 && std::ranges::find(tag_ids_, event.token) != tag_ids_.end();
    parser_.feed_token(is_tag ? event.token : -1, event.text, events_);
  }
  take();
  if (!options_.silent) std::fflush(stdout);
}

void AnswerDisplay::finish() {
  events_.clear();
  // Reasoning without </think> stays reasoning: cut_off does not report it again as content.
  parser_.finish(chat::AnswerEnd::cut_off, events_);
  take();
  end_reasoning();
  if (options_.silent) return;
  if (colors_) write(colors_->finish());
  std::fflush(stdout);
}

void AnswerDisplay::take() {
  using Kind = chat::OutputEvent::Kind;
  for (const chat::OutputEvent& event : events_) {
    parsed_.add(event);
    if (options_.silent) continue;
    if (event.kind == Kind::reasoning) {
      print_reasoning(event.text);
      continue;
    }
    end_reasoning();
    switch (event.kind) {
      case Kind::content:
        if (!event.text.empty()) print(event.text);
        break;
      case Kind::call_begin:
        if (!line_begins_) write("\n");
        write(fmt::format("{}tool call: {}(", options_.color ? kCall : "",
                          terminal_text(event.text)));
        break;
      case Kind::call_arguments:
        write(options_.terminal ? terminal_text(event.text) : event.text);
        break;
      default:
        write(fmt::format("){}\n", options_.color ? kPlain : ""));
        line_begins_ = true;
    }
  }
}

void AnswerDisplay::print_reasoning(std::string_view text) {
  if (!options_.reasoning || text.empty()) return;
  if (!in_reasoning_) write(options_.color ? kDim : "<think>");
  in_reasoning_ = reasoned_ = true;
  write(options_.terminal ? terminal_text(text) : text);
}

void AnswerDisplay::end_reasoning() {
  if (!in_reasoning_) return;
  in_reasoning_ = false;
  write(options_.color ? "\x1b[0m\n" : "</think>\n");
}

void AnswerDisplay::print(std::string_view text) {
  const std::string shown = options_.terminal ? terminal_text(text) : std::string(text);
  line_begins_ = shown.ends_with('\n');
  write(colors_ ? colors_->feed(shown) : shown);
}

chat::Message AnswerDisplay::message() const {
  chat::Message made;
  made.role = "assistant";
  made.content = chat::Json::string(parsed_.content);
  if (!parsed_.reasoning.empty()) made.reasoning_content = parsed_.reasoning;
  // What the model wrote has no limit but the context's.
  std::size_t values_left = std::numeric_limits<std::size_t>::max();
  for (const chat::ParsedOutput::Call& call : parsed_.calls) {
    Result<chat::Json> arguments = chat::read_arguments(call.arguments, values_left);
    KOHO_CHECK(arguments.ok());
    made.tool_calls.push_back(
        {.id = call.id, .name = call.name, .arguments = std::move(*arguments)});
  }
  return made;
}

std::string calls_json(const std::vector<chat::ParsedOutput::Call>& calls) {
  std::string out = "[";
  for (const chat::ParsedOutput::Call& call : calls) {
    out += out.size() > 1 ? R"(,{"id":)" : R"({"id":)";
    append_json_string(out, call.id);
    out += R"(,"name":)";
    append_json_string(out, call.name);
    out += R"(,"arguments":)";
    if (call.complete)
      out += call.arguments;
    else
      append_json_string(out, call.arguments);
    out += '}';
  }
  return out + "]";
}

}  // namespace koho::app
