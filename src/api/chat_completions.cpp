// SPDX-License-Identifier: Apache-2.0
#include "api/chat_completions.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "api/json_text.h"
#include "api/openai_responder.h"
#include "api/shared_fields.h"
#include "base/json_writer.h"
#include "chat/message.h"

namespace koho::api {
namespace {

using chat::Json;
using Value = FieldValue;

Refusal read_thinking_flag(const Value& value, std::optional<bool>& target) {
  bool flag = false;
  if (Refusal refused = read_boolean(value, flag)) return refused;
  target = flag;
  return {};
}

/// Z.ai's {"type": "enabled" | "disabled", "clear_thinking": …}.
Refusal read_thinking(const Value& value, RequestBuilder& builder) {
  chat::Conversation& conversation = *builder.request.conversation;
  if (!value.json.is_object()) return must_be(value, "an object");
  if (const Json* type = value.json.given("type")) {
    if (*type != Json::string("enabled") && *type != Json::string("disabled"))
      return wrong_field("thinking.type", "thinking.type must be \"enabled\" or \"disabled\"");
    conversation.enable_thinking = type->text == "enabled";
  }
  if (Refusal refused =
          check_members(value.json, value.name, {"type", "clear_thinking"}, builder.model))
    return refused;
  const Json* clear = value.json.given("clear_thinking");
  if (clear == nullptr) return {};
  return read_thinking_flag({.name = "thinking.clear_thinking", .json = *clear},
                            conversation.clear_thinking);
}

Refusal read_template_flags(const Value& value, RequestBuilder& builder) {
  chat::Conversation& conversation = *builder.request.conversation;
  if (!value.json.is_object()) return must_be(value, "an object");
  for (std::size_t i = 0; i < value.json.keys.size(); ++i) {
    const std::string& key = value.json.keys[i];
    const bool enable = key == "enable_thinking" || key == "thinking";
    const std::string field = fmt::format("chat_template_kwargs.{:.100}", std::string_view(key));
    if (!enable && key != "clear_thinking")
      return wrong_field(
          "chat_template_kwargs",
          fmt::format(
              "{} is not supported; chat_template_kwargs may have enable_thinking, thinking and "
              "clear_thinking",
              field),
          "unsupported_parameter");
    if (value.json.items[i].is_null()) continue;
    if (Refusal refused =
            read_thinking_flag({.name = field, .json = value.json.items[i]},
                               enable ? conversation.enable_thinking : conversation.clear_thinking))
      return refused;
  }
  return {};
}

/// GLM either thinks or does not; the efforts other than none do not differ.
Refusal read_effort(const Value& value, RequestBuilder& builder) {
  if (!value.json.is_string()) return must_be(value, "a string");
  constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium",
                                           "high", "xhigh",   "max"};
  if (std::ranges::find(kEfforts, value.json.text) == std::end(kEfforts))
    return wrong_field(value.name, fmt::format("{} must be one of none, minimal, low, medium, "
                                               "high, xhigh, max, found \"{:.40}\"",
                                               value.name, std::string_view(value.json.text)));
  builder.request.conversation->enable_thinking = value.json.text != "none";
  return {};
}

Refusal read_tool_choice(const Value& value, RequestBuilder& builder) {
  ToolChoice& choice = builder.request.tool_choice;
  const auto refuse = [&] {
    return wrong_field(value.name,
                       "tool_choice must be \"none\", \"auto\", \"required\", "
                       "{\"type\": \"function\", \"function\": {\"name\": …}} or "
                       "{\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": …, "
                       "\"tools\": …}}");
  };
  if (value.json.is_string()) {
    const std::string& text = value.json.text;
    if (text == "none") {
      choice.kind = ToolChoice::Kind::none;
    } else if (text == "auto") {
      choice.kind = ToolChoice::Kind::automatic;
    } else if (text == "required") {
      choice.kind = ToolChoice::Kind::required;
    } else {
      return refuse();
    }
    return {};
  }
  if (const Json* type = value.json.find("type");
      type != nullptr && *type == Json::string("allowed_tools")) {
    const Status status = read_allowed_tools(value.json, choice);
    return status.ok() ? Refusal{} : to_api_error(status.error());
  }
  const Json* function = value.json.find("function");
  const Json* name = function != nullptr ? function->find("name") : value.json.find("name");
  if (name == nullptr || !name->is_string()) return refuse();
  choice.kind = ToolChoice::Kind::named;
  choice.name = name->text;
  return {};
}

Refusal read_nothing(const Value& /*value*/, RequestBuilder& /*builder*/) {
  return {};
}

constexpr RequestField kFields[] = {
    {"messages", "array of 1..10000 messages with role system, developer, user, assistant or tool",
     read_nothing},  // read with the conversation
    {"tools", "array of at most 512 function tools", read_nothing},
    {"tool_choice", "none, auto, required, a named function, or allowed_tools", read_tool_choice},
    {"parallel_tool_calls", "boolean: the model may make several tool calls",
     [](const Value& v, RequestBuilder& d) {
       return read_boolean(v, d.request.tool_choice.parallel);
     }},
    {"max_tokens", "integer from 1; default, -1 and null: what is left of the context",
     [](const Value& v, RequestBuilder& d) { return read_length(v, 1, d.request.tokens_max); }},
    {"max_completion_tokens", "integer, -1 or null: as max_tokens, which it overrides",
     [](const Value& v, RequestBuilder& d) { return read_length(v, 1, d.max_completion_tokens); }},
    {"logprobs", "boolean: return the log probability of each token",
     [](const Value& v, RequestBuilder& d) { return read_boolean(v, d.logprobs_wanted); }},
    {"top_logprobs", "integer in 0..20; needs logprobs",
     [](const Value& v, RequestBuilder& d) {
       std::int32_t top = 0;
       if (Refusal refused = read_integer(v, 0, kTopLogprobsMax, top)) return refused;
       d.top_logprobs = top;
       return Refusal{};
     }},
    {"thinking", "object with type (enabled or disabled) and clear_thinking", read_thinking},
    {"enable_thinking", "boolean: the model thinks before it answers",
     [](const Value& v, RequestBuilder& d) {
       return read_thinking_flag(v, d.request.conversation->enable_thinking);
     }},
    {"clear_thinking", "boolean: leave the reasoning of earlier turns out of the prompt",
     [](const Value& v, RequestBuilder& d) {
       return read_thinking_flag(v, d.request.conversation->clear_thinking);
     }},
    {"chat_template_kwargs", "object with enable_thinking, thinking (the same) and clear_thinking",
     read_template_flags},
    {"reasoning_effort",
     "none, minimal, low, medium, high, xhigh or max; none disables thinking, the others do not "
     "differ",
     read_effort},
    {"include_reasoning", "boolean: return reasoning_content",
     [](const Value& v, RequestBuilder& d) {
       return read_boolean(v, d.request.output.include_reasoning);
     }},
    {"separate_reasoning", "boolean; false: content has the reasoning, up to </think>",
     [](const Value& v, RequestBuilder& d) {
       return read_boolean(v, d.request.output.separate_reasoning);
     }},
    {"stream_reasoning",
     "boolean; false: a stream sends the reasoning in one chunk when it is complete",
     [](const Value& v, RequestBuilder& d) {
       return read_boolean(v, d.request.output.stream_reasoning);
     }},
    {"add_generation_prompt",
     "boolean, default true: the prompt ends with the beginning of an answer",
     [](const Value& v, RequestBuilder& d) {
       return read_boolean(v, d.request.conversation->add_generation_prompt);
     }},
    {"continue_final_message", "boolean: continue the last message, which must be the assistant's",
     [](const Value& v, RequestBuilder& d) {
       bool on = false;
       if (Refusal refused = read_boolean(v, on)) return refused;
       if (on) d.request.conversation->add_generation_prompt = false;
       return Refusal{};
     }},
};

class ChatResponder final : public OpenAiResponder {
 public:
  ChatResponder(const GenerationRequest& request, const Model& model)
      : OpenAiResponder(request, model), choices_(num_choices()) {
    if (options().token_ids) prompt_ids_ = request.requests.front().prompt;
  }

  void begin(const AnswerStart& started, std::string& out) override {
    begin_head(started, "chatcmpl-", streams() ? "chat.completion.chunk" : "chat.completion");
    std::string prompt_ids;
    if (options().token_ids) {
      prompt_ids = R"(,"prompt_token_ids":)";
      append_ids(prompt_ids, prompt_ids_);
    }
    if (!streams()) {
      head() += prompt_ids;
      return;
    }
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      open_chunk(i, out);
      out += R"(,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null)";
      close_chunk(out, i == 0 ? prompt_ids : std::string_view());
    }
  }

  void piece(const Piece& piece, std::string& out) override {
    count(piece);
    if (streams()) {
      chunk(piece, out);
      return;
    }
    Choice& choice = choices_[static_cast<std::size_t>(piece.choice)];
    for (const chat::OutputEvent& event : piece.parsed) choice.answer.add(event);
    if (options().logprobs && piece.event->token >= 0)
      append_logprob(choice.logprobs, *piece.event);
    note(piece, choice.outcome);
  }

 private:
  struct Choice {
    chat::ParsedOutput answer;
    std::string pending_reasoning;  // not sent yet, with stream_reasoning false
    std::string logprobs;           // entries, as JSON
    Outcome outcome;
  };

  /// Text of one kind, under each of its names.
  static void append_text_field(std::string& out,
                                std::initializer_list<std::string_view> names,
                                std::string_view text) {
    for (const std::string_view name : names) {
      if (out.back() != '{') out += ',';
      out += '"';
      out += name;
      out += "\":";
      append_json_string(out, text);
    }
  }

  /// The delta's fields; false if there are none.
  bool append_delta(const Piece& piece, std::string& out) {
    const std::size_t before = out.size();
    const auto text_of = [&](chat::OutputEvent::Kind kind, auto&& write) {
      const chat::OutputEvent* first = nullptr;
      std::string joined;
      for (const chat::OutputEvent& event : piece.parsed) {
        if (event.kind != kind) continue;
        if (first == nullptr) {
          first = &event;
        } else {
          if (joined.empty()) joined = first->text;
          joined += event.text;
        }
      }
      if (first != nullptr) write(joined.empty() ? std::string_view(first->text) : joined);
    };
    const auto emit_reasoning = [&](std::string_view text) {
      append_text_field(out, {"reasoning_content", "reasoning"}, text);
    };
    if (options().include_reasoning && options().stream_reasoning) {
      text_of(chat::OutputEvent::Kind::reasoning, emit_reasoning);
    } else if (options().include_reasoning) {
      std::string& pending = choices_[static_cast<std::size_t>(piece.choice)].pending_reasoning;
      text_of(chat::OutputEvent::Kind::reasoning, [&](std::string_view text) { pending += text; });
      const bool over = piece.finish != Finish::none ||
                        std::ranges::any_of(piece.parsed, [](const chat::OutputEvent& event) {
                          return event.kind != chat::OutputEvent::Kind::reasoning;
                        });
      if (over && !pending.empty()) emit_reasoning(std::exchange(pending, {}));
    }
    text_of(chat::OutputEvent::Kind::content,
            [&](std::string_view text) { append_text_field(out, {"content"}, text); });
    append_call_deltas(piece, out);
    return out.size() > before;
  }

  static void append_call_deltas(const Piece& piece, std::string& out) {
    bool open = false;
    for (const chat::OutputEvent& event : piece.parsed) {
      const bool begins = event.kind == chat::OutputEvent::Kind::call_begin;
      const bool grows =
          event.kind == chat::OutputEvent::Kind::call_arguments && !event.text.empty();
      if (!begins && !grows) continue;
      if (!open && out.back() != '{') out += ',';
      out += open ? "," : R"("tool_calls":[)";
      open = true;
      out += R"({"index":)";
      append_json_integer(out, static_cast<std::int64_t>(event.call_index));
      if (begins) {
        out += R"(,"id":)";
        append_json_string(out, event.call_id);
        out += R"(,"type":"function","function":{"name":)";
        append_json_string(out, event.text);
        out += R"(,"arguments":""}})";
      } else {
        out += R"(,"function":{"arguments":)";
        append_json_string(out, event.text);
        out += "}}";
      }
    }
    if (open) out += ']';
  }

  void chunk(const Piece& piece, std::string& out) {
    const std::size_t begin = out.size();
    open_chunk(static_cast<std::size_t>(piece.choice), out);
    out += R"(,"delta":{)";
    if (!is_worth_a_chunk(piece, append_delta(piece, out))) {
      out.resize(begin);
      return;
    }
    out += R"(},"logprobs":)";
    if (options().logprobs && piece.event->token >= 0) {
      out += R"({"content":[)";
      append_logprob(out, *piece.event);
      out += "]}";
    } else {
      out += "null";
    }
    append_finish_fields(piece, out);
    close_chunk(out);
  }

  /// One entry of logprobs.content, after a comma unless it is the first.
  void append_logprob(std::string& out, const OutputEvent& event) const {
    if (!out.empty() && out.back() == '}') out += ',';
    append_chat_logprob(out, model(), options(), {event.token, event.logprob});
    out += R"(,"top_logprobs":[)";
    for (std::size_t i = 0; i < event.top.size(); ++i) {
      if (i > 0) out += ',';
      append_chat_logprob(out, model(), options(), event.top[i]);
      out += '}';
    }
    out += "]}";
  }

  void append_choice(std::size_t index, std::string& out) const override {
    const Choice& choice = choices_[index];
    const chat::ParsedOutput& answer = choice.answer;
    out += R"({"index":)";
    append_json_integer(out, static_cast<std::int64_t>(index));
    out += R"(,"message":{"role":"assistant","content":)";
    if (answer.content.empty() && !answer.calls.empty()) {
      out += "null";
    } else {
      append_json_string(out, answer.content);
    }
    if (!answer.reasoning.empty() && options().include_reasoning)
      append_text_field(out, {"reasoning_content", "reasoning"}, answer.reasoning);
    if (!answer.calls.empty()) {
      out += R"(,"tool_calls":[)";
      for (std::size_t i = 0; i < answer.calls.size(); ++i) {
        const chat::ParsedOutput::Call& call = answer.calls[i];
        out += i == 0 ? R"({"id":)" : R"(,{"id":)";
        append_json_string(out, call.id);
        out += R"(,"type":"function","function":{"name":)";
        append_json_string(out, call.name);
        out += R"(,"arguments":)";
        append_json_string(out, call.arguments);
        out += "}}";
      }
      out += ']';
    }
    out += R"(},"logprobs":)";
    out += options().logprobs ? R"({"content":[)" + choice.logprobs + "]}" : "null";
    append_outcome(choice.outcome, out);
    out += '}';
  }

  std::vector<Token> prompt_ids_;
  std::vector<Choice> choices_;
};

}  // namespace

std::span<const RequestField> chat_completion_fields() {
  return kFields;
}

bool reads_of_chat(std::string_view name) {
  return reads_field(name, kFields);
}

Refusal read_chat_completion(const Json& body, const Model& model, GenerationRequest& request) {
  if (Refusal refused = read_model(body, model, request)) return refused;
  request.base = model.defaults;
  request.tokens_max_default = model.tokens_max_default;
  // The templates treat any false value as no tools; in a request only null means none.
  if (const Json* tools = body.given("tools"); tools != nullptr && !tools->is_array())
    return to_api_error(chat::wrong_kind("tools", "an array", tools));
  Result<chat::Conversation> read = chat::read_turns(body);
  if (!read.ok()) return to_api_error(read.error());
  request.conversation = std::move(*read);
  request.conversation->add_generation_prompt = true;  // the flags are read by the table
  RequestBuilder builder{.model = model, .request = request};
  if (Refusal refused = read_body(body, kFields, builder)) return refused;
  if (builder.top_logprobs.value_or(0) > 0 && !builder.logprobs_wanted)
    return wrong_field("top_logprobs", "top_logprobs needs \"logprobs\": true");
  if (builder.logprobs_wanted) request.output.logprobs = builder.top_logprobs.value_or(0);
  if (Refusal refused = settle(builder)) return refused;
  return settle_conversation(request, model);
}

std::unique_ptr<Responder> respond_chat_completion(const GenerationRequest& request,
                                                   const Model& model) {
  return std::make_unique<ChatResponder>(request, model);
}

}  // namespace koho::api
