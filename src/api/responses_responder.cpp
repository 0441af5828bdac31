// SPDX-License-Identifier: Apache-2.0
// Writes an answer as items of the Responses API: reasoning, message, function calls. A stream
// numbers its events and ends with the complete response, which equals the body of a request
// without streaming.
#include <iterator>

#include <fmt/format.h>

#include "api/event_writer.h"
#include "api/responses.h"
#include "api/responses_conversation.h"

namespace koho::api {
namespace {

using chat::OutputEvent;

enum class ItemKind : std::uint8_t { none, reasoning, message, function_call };

/// The current item.
struct Item {
  ItemKind kind = ItemKind::none;
  std::string id;
  std::string call_id;  // of a function call
  std::string name;     // of a function call
  std::string text;     // or arguments
};

std::string_view id_prefix(ItemKind kind) {
  switch (kind) {
    case ItemKind::reasoning:
      return "rs";
    case ItemKind::function_call:
      return "fc";
    case ItemKind::message:
    case ItemKind::none:
      break;
  }
  return "msg";
}

class ResponsesResponder final : public Responder {
 public:
  explicit ResponsesResponder(const GenerationRequest& request)
      : stream_(request.stream),
        sealed_reasoning_(request.output.encoded_reasoning),
        model_(request.model),
        echo_(request.echo) {}

  void begin(const AnswerStart& started, std::string& out) override {
    id_ = started.id;
    created_ = started.created;
    for (const std::string_view type : {"response.created", "response.in_progress"}) {
      if (!open(type, out)) return;
      out += R"(,"response":)";
      append_response("in_progress", nullptr, nullptr, out);
      close(out);
    }
  }

  void piece(const Piece& piece, std::string& out) override {
    for (const OutputEvent& event : piece.parsed) take(event, out);
    if (piece.finish != Finish::none) finish_ = piece.finish;
  }

  void end(const AnswerTotals& ended, std::string& out) override {
    const bool cut = finish_ == Finish::length;
    leave(cut ? "incomplete" : "completed", out);
    // Clients treat a response without items as an error.
    if (num_items_ == 0) {
      enter(ItemKind::message, nullptr, out);
      leave(cut ? "incomplete" : "completed", out);
    }
    const std::string_view status = cut ? "incomplete" : "completed";
    if (open(cut ? "response.incomplete" : "response.completed", out)) {
      out += R"(,"response":)";
      append_response(status, &ended.usage, nullptr, out);
      close(out);
    } else {
      append_response(status, &ended.usage, nullptr, out);
    }
  }

  void fail(const ApiError& error, std::string& out) override {
    if (!open("response.failed", out)) return;
    out += R"(,"response":)";
    append_response("failed", nullptr, &error, out);
    close(out);
  }

  void ping(std::string& out) override {
    if (stream_) out += ": ping\n\n";
  }

 private:
  // ---- events; these do nothing unless the request streams

  /// Begins an event; false: the request does not stream.
  bool open(std::string_view type, std::string& out) {
    if (!stream_) return false;
    begin_event(out, type);
    fmt::format_to(std::back_inserter(out), R"({{"type":"{}","sequence_number":{})", type,
                   sequence_number_++);
    return true;
  }
  static void close(std::string& out) {
    out += '}';
    end_event(out);
  }
  bool open_in_item(std::string_view type, std::string& out) {
    if (!open(type, out)) return false;
    fmt::format_to(std::back_inserter(out), R"(,"item_id":"{}","output_index":{})", item_.id,
                   num_items_ - 1);
    return true;
  }
  void item_event(std::string_view type, std::string_view status, std::string& out) {
    if (!open(type, out)) return;
    fmt::format_to(std::back_inserter(out), R"(,"output_index":{},"item":)", num_items_ - 1);
    append_item(status, out);
    close(out);
  }
  void part_event(std::string_view type, std::string& out) {
    if (!open_in_item(type, out)) return;
    out += R"(,"content_index":0,"part":)";
    append_part(out);
    close(out);
  }
  /// `key` is the member with the text: "delta", or the name of the complete text.
  void text_event(std::string_view type,
                  std::string_view key,
                  std::string_view text,
                  std::string& out) {
    if (!open_in_item(type, out)) return;
    if (item_.kind != ItemKind::function_call) out += R"(,"content_index":0)";
    if (item_.kind == ItemKind::message) out += R"(,"logprobs":[])";
    out += ',';
    append_field(out, key, text);
    close(out);
  }

  // ---- items

  void take(const OutputEvent& event, std::string& out) {
    switch (event.kind) {
      case OutputEvent::Kind::reasoning:
        text(ItemKind::reasoning, event.text, out);
        break;
      case OutputEvent::Kind::content:
        text(ItemKind::message, event.text, out);
        break;
      case OutputEvent::Kind::call_begin:
        leave("completed", out);
        enter(ItemKind::function_call, &event, out);
        break;
      case OutputEvent::Kind::call_arguments:
        grow(event.text, out);
        break;
      case OutputEvent::Kind::call_end:
        leave("completed", out);
        break;
    }
  }

  void text(ItemKind kind, std::string_view text, std::string& out) {
    if (text.empty()) return;
    if (item_.kind != kind) {
      leave("completed", out);
      enter(kind, nullptr, out);
    }
    grow(text, out);
  }

  void grow(std::string_view text, std::string& out) {
    if (text.empty()) return;
    item_.text += text;
    text_event(item_.kind == ItemKind::reasoning ? "response.reasoning_text.delta"
               : item_.kind == ItemKind::message ? "response.output_text.delta"
                                                 : "response.function_call_arguments.delta",
               "delta", text, out);
  }

  void enter(ItemKind kind, const OutputEvent* call, std::string& out) {
    item_ = Item{};
    item_.kind = kind;
    item_.id = fmt::format("{}_{}{:02}", id_prefix(kind), id_, num_items_);
    if (call != nullptr) {
      item_.call_id = fmt::format("call_{}{:02}", id_, call->call_index);
      item_.name = call->text;
    }
    ++num_items_;
    item_event("response.output_item.added", "in_progress", out);
    if (kind != ItemKind::function_call) part_event("response.content_part.added", out);
  }

  /// Ends the current item, if there is one.
  void leave(std::string_view status, std::string& out) {
    if (item_.kind == ItemKind::none) return;
    if (item_.kind == ItemKind::function_call) {
      text_event("response.function_call_arguments.done", "arguments", item_.text, out);
    } else {
      const bool reasoning = item_.kind == ItemKind::reasoning;
      text_event(reasoning ? "response.reasoning_text.done" : "response.output_text.done", "text",
                 item_.text, out);
      part_event("response.content_part.done", out);
    }
    item_event("response.output_item.done", status, out);
    if (!output_.empty()) output_ += ',';
    append_item(status, output_);
    item_.kind = ItemKind::none;
  }

  /// The content of the item so far.
  void append_part(std::string& out) const {
    if (item_.kind == ItemKind::reasoning) {
      out += R"({"type":"reasoning_text",)";
      append_field(out, "text", item_.text);
      out += '}';
      return;
    }
    out += R"({"type":"output_text",)";
    append_field(out, "text", item_.text);
    out += R"(,"annotations":[],"logprobs":[]})";
  }

  void append_item(std::string_view status, std::string& out) const {
    fmt::format_to(std::back_inserter(out), R"({{"id":"{}","type":)", item_.id);
    const bool begun = status != "in_progress";
    switch (item_.kind) {
      case ItemKind::reasoning:
        out += R"("reasoning","summary":[],"content":[)";
        if (begun) append_part(out);
        out += ']';
        if (sealed_reasoning_) {
          out += ',';
          append_field(out, "encrypted_content", encode_reasoning(item_.text));
        }
        break;
      case ItemKind::function_call:
        out += R"("function_call",)";
        append_field(out, "call_id", item_.call_id);
        out += ',';
        append_field(out, "name", item_.name);
        out += ',';
        append_field(out, "arguments", item_.text);
        break;
      case ItemKind::message:
      case ItemKind::none:
        out += R"("message","role":"assistant","content":[)";
        if (begun) append_part(out);
        out += ']';
        break;
    }
    fmt::format_to(std::back_inserter(out), R"(,"status":"{}"}})", status);
  }

  // ---- the response

  void append_response(std::string_view status,
                       const Usage* usage,
                       const ApiError* error,
                       std::string& out) const {
    fmt::format_to(std::back_inserter(out),
                   R"({{"id":"resp_{}","object":"response","created_at":{},"status":"{}",)"
                   R"("background":false,"error":)",
                   id_, created_, status);
    if (error == nullptr) {
      out += "null";
    } else {
      out += '{';
      append_field(out, "code", error->code.empty() ? "server_error" : error->code);
      out += ',';
      append_field(out, "message", error->message);
      out += '}';
    }
    out += R"(,"incomplete_details":)";
    out += status == "incomplete" ? R"({"reason":"max_output_tokens"})" : "null";
    out += ',';
    append_field(out, "model", model_);
    out += R"(,"output":[)";
    out += output_;
    out += ']';
    out += echo_;
    out += R"(,"usage":)";
    append_usage(usage, out);
    out += '}';
  }

  static void append_usage(const Usage* usage, std::string& out) {
    if (usage == nullptr) {
      out += "null";
      return;
    }
    fmt::format_to(std::back_inserter(out),
                   R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{}}},)"
                   R"("output_tokens":{},"output_tokens_details":{{"reasoning_tokens":{}}},)"
                   R"("total_tokens":{}}})",
                   usage->prompt_tokens, usage->cached_tokens, usage->completion_tokens,
                   usage->reasoning_tokens, usage->prompt_tokens + usage->completion_tokens);
  }

  bool stream_;
  bool sealed_reasoning_;
  std::string model_;
  std::string echo_;  // the request's fields that a response repeats
  std::string id_;
  std::int64_t created_ = 0;
  std::int64_t sequence_number_ = 0;
  Item item_;
  std::size_t num_items_ = 0;
  std::string output_;  // items that ended, as JSON
  Finish finish_ = Finish::none;
};

}  // namespace

std::unique_ptr<Responder> respond_response(const GenerationRequest& request,
                                            const Model& /*model*/) {
  return std::make_unique<ResponsesResponder>(request);
}

}  // namespace koho::api
