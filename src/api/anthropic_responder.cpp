// SPDX-License-Identifier: Apache-2.0
// Writes an answer as Anthropic's content blocks: thinking, text, tool_use. Each block is closed
// before the next one begins.
#include <iterator>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "api/anthropic.h"
#include "api/event_writer.h"
#include "base/json_writer.h"

namespace koho::api {
namespace {

using chat::OutputEvent;

enum class Block : std::uint8_t { none, thinking, text, tool_use };

std::string_view stop_reason(Finish finish, bool stop_string) {
  switch (finish) {
    case Finish::length:
      return "max_tokens";
    case Finish::tool_calls:
      return "tool_use";
    case Finish::stop:
    case Finish::none:
      break;
  }
  return stop_string ? "stop_sequence" : "end_turn";
}

void append_usage(std::string& out, const Usage& usage) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"input_tokens":{},"cache_creation_input_tokens":0,)"
                 R"("cache_read_input_tokens":{},"output_tokens":{}}})",
                 usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens,
                 usage.completion_tokens);
}

/// `"stop_reason":...,"stop_sequence":...`
void append_stop(std::string& out, Finish finish, const std::string& stop_string) {
  append_field(out, "stop_reason", stop_reason(finish, !stop_string.empty()));
  out += R"(,"stop_sequence":)";
  if (stop_string.empty()) {
    out += "null";
  } else {
    append_json_string(out, stop_string);
  }
}

/// `{"id":...,"type":"message","role":"assistant","model":...`
void append_message_head(std::string& out, std::string_view id, std::string_view model) {
  out += R"({"id":"msg_)";
  out += id;
  out += R"(","type":"message","role":"assistant",)";
  append_field(out, "model", model);
}

/// The common part of streams and bodies: the current block, and how the answer ended.
class MessagesResponder : public Responder {
 public:
  explicit MessagesResponder(const GenerationRequest& request)
      : model_(request.model), shows_thinking_(request.output.include_reasoning) {}

  void begin(const AnswerStart& started, std::string& out) override {
    id_ = started.id;
    begin_message(started, out);
  }

  void piece(const Piece& piece, std::string& out) override {
    for (const OutputEvent& event : piece.parsed) take(event, out);
    if (piece.finish == Finish::none) return;
    finish_ = piece.finish;
    stop_string_ = piece.stop_string;
  }

  void end(const AnswerTotals& ended, std::string& out) override {
    // Clients treat a message without blocks as an error.
    if (num_blocks_ == 0) enter(Block::text, nullptr, out);
    leave(out);
    end_message(ended, out);
  }

 protected:
  virtual void begin_message(const AnswerStart& started, std::string& out) = 0;
  /// `call` is given for tool_use.
  virtual void open_block(Block block, const OutputEvent* call, std::string& out) = 0;
  virtual void add_text(Block block, std::string_view text, std::string& out) = 0;
  virtual void close_block(Block block, std::string& out) = 0;
  virtual void end_message(const AnswerTotals& ended, std::string& out) = 0;

  /// Opaque to clients; they send it back with the thinking it belongs to.
  std::string signature() const { return "koho-" + id_; }
  std::string call_id(const OutputEvent& call) const {
    return fmt::format("toolu_{}{:02}", id_, call.call_index);
  }
  std::size_t block_index() const { return num_blocks_ - 1; }

  std::string model_;
  std::string id_;
  Finish finish_ = Finish::none;
  std::string stop_string_;

 private:
  void take(const OutputEvent& event, std::string& out) {
    switch (event.kind) {
      case OutputEvent::Kind::reasoning:
        text(Block::thinking, event.text, out);
        break;
      case OutputEvent::Kind::content:
        text(Block::text, event.text, out);
        break;
      case OutputEvent::Kind::call_begin:
        enter(Block::tool_use, &event, out);
        break;
      case OutputEvent::Kind::call_arguments:
        add_text(Block::tool_use, event.text, out);
        break;
      case OutputEvent::Kind::call_end:
        leave(out);
        break;
    }
  }
  void text(Block block, std::string_view text, std::string& out) {
    if (text.empty()) return;
    if (block_ != block) enter(block, nullptr, out);
    if (block != Block::thinking || shows_thinking_) add_text(block, text, out);
  }
  void enter(Block block, const OutputEvent* call, std::string& out) {
    leave(out);
    block_ = block;
    ++num_blocks_;
    open_block(block, call, out);
  }
  void leave(std::string& out) {
    if (block_ == Block::none) return;
    close_block(block_, out);
    block_ = Block::none;
  }

  bool shows_thinking_;
  Block block_ = Block::none;
  std::size_t num_blocks_ = 0;
};

class MessagesStream final : public MessagesResponder {
 public:
  using MessagesResponder::MessagesResponder;

  void fail(const ApiError& error, std::string& out) override {
    begin_event(out, "error");
    append_error(out, ErrorStyle::anthropic, error);
    end_event(out);
  }
  /// A ping event, not a comment: Anthropic's clients time out without events.
  void ping(std::string& out) override {
    begin_event(out, "ping");
    out += R"({"type":"ping"})";
    end_event(out);
  }

 protected:
  void begin_message(const AnswerStart& started, std::string& out) override {
    begin_event(out, "message_start");
    out += R"({"type":"message_start","message":)";
    append_message_head(out, id_, model_);
    out += R"(,"content":[],"stop_reason":null,"stop_sequence":null,"usage":)";
    // The number of cached tokens is not known yet; message_delta has it.
    append_usage(out, {.prompt_tokens = started.prompt_tokens});
    out += "}}";
    end_event(out);
    ping(out);
  }

  void open_block(Block block, const OutputEvent* call, std::string& out) override {
    begin_event(out, "content_block_start");
    fmt::format_to(std::back_inserter(out),
                   R"({{"type":"content_block_start","index":{},"content_block":)", block_index());
    if (block == Block::thinking) {
      out += R"({"type":"thinking","thinking":"","signature":""})";
    } else if (block == Block::text) {
      out += R"({"type":"text","text":""})";
    } else {
      out += R"({"type":"tool_use",)";
      append_field(out, "id", call_id(*call));
      out += ',';
      append_field(out, "name", call->text);
      out += R"(,"input":{}})";
    }
    out += '}';
    end_event(out);
  }

  void add_text(Block block, std::string_view text, std::string& out) override {
    switch (block) {
      case Block::thinking:
        delta("thinking_delta", "thinking", text, out);
        break;
      case Block::tool_use:
        delta("input_json_delta", "partial_json", text, out);
        break;
      case Block::text:
      case Block::none:
        delta("text_delta", "text", text, out);
        break;
    }
  }

  void close_block(Block block, std::string& out) override {
    if (block == Block::thinking) delta("signature_delta", "signature", signature(), out);
    begin_event(out, "content_block_stop");
    fmt::format_to(std::back_inserter(out), R"({{"type":"content_block_stop","index":{}}})",
                   block_index());
    end_event(out);
  }

  void end_message(const AnswerTotals& ended, std::string& out) override {
    begin_event(out, "message_delta");
    out += R"({"type":"message_delta","delta":{)";
    append_stop(out, finish_, stop_string_);
    out += R"(},"usage":)";
    append_usage(out, ended.usage);
    out += '}';
    end_event(out);
    begin_event(out, "message_stop");
    out += R"({"type":"message_stop"})";
    end_event(out);
  }

 private:
  void delta(std::string_view type, std::string_view key, std::string_view text, std::string& out) {
    begin_event(out, "content_block_delta");
    fmt::format_to(std::back_inserter(out),
                   R"({{"type":"content_block_delta","index":{},"delta":{{"type":"{}",)",
                   block_index(), type);
    append_field(out, key, text);
    out += "}}";
    end_event(out);
  }
};

class MessagesBody final : public MessagesResponder {
 public:
  using MessagesResponder::MessagesResponder;

  void fail(const ApiError& /*error*/, std::string& /*out*/) override {}
  void ping(std::string& /*out*/) override {}

 protected:
  void begin_message(const AnswerStart& /*started*/, std::string& /*out*/) override {}

  void open_block(Block block, const OutputEvent* call, std::string& /*out*/) override {
    if (!content_.empty()) content_ += ',';
    text_.clear();
    if (block == Block::thinking) {
      content_ += R"({"type":"thinking",)";
    } else if (block == Block::text) {
      content_ += R"({"type":"text",)";
    } else {
      content_ += R"({"type":"tool_use",)";
      append_field(content_, "id", call_id(*call));
      content_ += ',';
      append_field(content_, "name", call->text);
      content_ += R"(,"input":)";
    }
  }

  void add_text(Block /*block*/, std::string_view text, std::string& /*out*/) override {
    text_ += text;
  }

  void close_block(Block block, std::string& /*out*/) override {
    if (block == Block::thinking) {
      append_field(content_, "thinking", text_);
      content_ += ',';
      append_field(content_, "signature", signature());
    } else if (block == Block::text) {
      append_field(content_, "text", text_);
    } else {
      content_ += complete_arguments(text_);
    }
    content_ += '}';
  }

  void end_message(const AnswerTotals& ended, std::string& out) override {
    append_message_head(out, id_, model_);
    out += R"(,"content":[)";
    out += content_;
    out += "],";
    append_stop(out, finish_, stop_string_);
    out += R"(,"usage":)";
    append_usage(out, ended.usage);
    out += '}';
  }

 private:
  std::string content_;  // blocks, as JSON
  std::string text_;     // of the open one
};

}  // namespace

std::unique_ptr<Responder> respond_messages(const GenerationRequest& request,
                                            const Model& /*model*/) {
  if (request.stream) return std::make_unique<MessagesStream>(request);
  return std::make_unique<MessagesBody>(request);
}

}  // namespace koho::api
