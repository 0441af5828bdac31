// SPDX-License-Identifier: Apache-2.0
// Splits a model's text into pieces, parses them and passes them to a responder, as the
// server does.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/responder.h"
#include "chat/json.h"

namespace koho::api {

struct ScriptedAnswer {
  std::vector<std::string> pieces{};  // what each token brings
  bool starts_in_reasoning = false;
  Finish finish = Finish::stop;  // tool_calls is found out, as the server does
  std::string stop_string{};
  Usage usage{.prompt_tokens = 100, .cached_tokens = 64, .completion_tokens = 7};

  /// Everything that the responder writes. `request` as encode() leaves it.
  std::string play(const GenerationRequest& request, Responder& responder) const {
    chat::OutputParser parser({.starts_in_reasoning = starts_in_reasoning,
                               .newline_after_tags = false,
                               .tools = request.tool_schemas});
    std::string out;
    responder.begin({.id = "1", .created = 1700000000, .prompt_tokens = usage.prompt_tokens}, out);
    std::vector<chat::OutputEvent> parsed;
    for (const std::string& text : pieces) {
      parsed.clear();
      parser.feed_text(text, parsed);
      Piece piece;
      piece.parsed = parsed;
      responder.piece(piece, out);
    }
    parsed.clear();
    parser.finish(finish == Finish::length ? chat::AnswerEnd::cut_off : chat::AnswerEnd::finished,
                  parsed);
    const bool called = finish == Finish::stop && parser.num_complete_calls() > 0;
    Piece last;
    last.parsed = parsed;
    last.finish = called ? Finish::tool_calls : finish;
    last.stop_string = stop_string;
    responder.piece(last, out);
    responder.end({.usage = usage, .timings = {}}, out);
    return out;
  }
};

/// The `data` of every event of a stream, in order, whose `event` line must be its type.
struct StreamedEvents {
  std::vector<chat::Json> events;
  std::string problem;  // empty: the stream is well-formed

  explicit StreamedEvents(std::string_view stream) {
    while (!stream.empty()) {
      const std::size_t end = stream.find("\n\n");
      if (end == std::string_view::npos) {
        problem = "no blank line at the end";
        return;
      }
      take(stream.substr(0, end));
      stream.remove_prefix(end + 2);
    }
  }

 private:
  void take(std::string_view event) {
    constexpr std::string_view kName = "event: ";
    constexpr std::string_view kData = "\ndata: ";
    const std::size_t data = event.find(kData);
    if (!event.starts_with(kName) || data == std::string_view::npos) {
      problem = "not an event: " + std::string(event);
      return;
    }
    Result<chat::Json> json = chat::parse_json(event.substr(data + kData.size()));
    if (!json.ok()) {
      problem = json.error().message + ": " + std::string(event);
      return;
    }
    const chat::Json* type = json->find("type");
    if (type == nullptr ||
        *type != chat::Json::string(event.substr(kName.size(), data - kName.size())))
      problem = "the event is not of its type: " + std::string(event);
    events.push_back(std::move(*json));
  }
};

}  // namespace koho::api
