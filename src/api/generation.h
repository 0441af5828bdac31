// SPDX-License-Identifier: Apache-2.0
// One request of an API, read and checked: what the engine is asked, and how the answer is to be
// given. Every API's body becomes this; nothing later knows which API it was, but for the
// responder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "api/error.h"
#include "api/model.h"
#include "api/turn_memory.h"
#include "chat/message.h"
#include "chat/tool_schema.h"
#include "engine/output_stream.h"
#include "engine/request.h"
#include "grammar/constraint.h"

namespace koho::api {

/// A prompt that is no conversation.
struct PromptInput {
  bool is_text = true;
  std::string text{};
  std::vector<Token> ids{};
  bool allow_special = true;  // added tokens in the text are recognised
};

/// Whether the model may, must or must not call tools.
struct ToolChoice {
  enum class Kind : std::uint8_t { automatic, none, required, named };
  Kind kind = Kind::automatic;
  std::string name;      // of the tool, if named
  bool parallel = true;  // more than one call
  /// The names of those that may be called; nothing: all. The prompt has all tools either way.
  std::optional<std::set<std::string, std::less<>>> allowed{};
};

/// What the client wants to see of the answer.
struct OutputOptions {
  bool include_usage = false;  // in a stream: a last chunk with the usage
  bool usage_in_every_chunk = false;
  bool token_ids = false;
  bool tokens_as_ids = false;  // logprobs name tokens "token_id:7"
  bool echo = false;           // completions: the prompt before the answer
  bool skip_special_tokens = true;
  bool include_reasoning = true;
  bool separate_reasoning = true;  // else thoughts are content, up to </think>
  bool stream_reasoning = true;    // else a stream tells them in one piece, when they are over
  bool timings = false;
  bool encoded_reasoning = false;  // responses: thoughts in a form that clients send back unread
  std::optional<int> logprobs;     // alternatives beside the chosen token's
};

/// What the model thinks of a prompt's token, given those before it.
struct PromptLogprob {
  float logprob = 0.0F;
  std::vector<TokenLogprob> top{};
};

struct GenerationRequest {
  std::string model;
  bool stream = false;
  std::string request_id;  // the body's; "" = none
  std::string user;        // who asks, as the client says; for the log

  // What is asked: a conversation, or prompts.
  std::optional<chat::Conversation> conversation;
  std::vector<PromptInput> prompts;

  /// What all prompts share: sampling, stops, choices, priority, salt, deadline. encode() adds
  /// prompts, lengths and the seed for requests that name none.
  Request base;
  std::optional<std::int64_t> tokens_max;   // as given
  std::int32_t tokens_max_default = 0;      // 0: the rest of the context
  std::optional<std::int32_t> truncate_to;  // keep the prompt's last tokens only

  ToolChoice tool_choice;
  std::optional<Constraint> constraint;  // what the answer's text must be like
  std::string constraint_field;          // where it stood, for messages: "response_format"
  OutputOptions output;
  std::string call_id_prefix = "call_";  // of tool calls' ids; unique to the request
  std::vector<std::string> unknown_fields;
  std::string echo;  // responses: fields of the body that the answer repeats, as JSON

  /// Whether the prompts' own tokens are scored: then prompt_logprobs[prompt][i] is that of the
  /// token behind the first i + 1, filled in before the answer begins.
  bool wants_prompt_logprobs() const { return output.echo && output.logprobs.has_value(); }
  std::vector<std::vector<PromptLogprob>> prompt_logprobs;

  // Filled in by encode().
  std::vector<Request> requests;              // one a prompt
  std::optional<std::int64_t> prompt_tokens;  // of all prompts; nothing if a refusal came before
  std::string prompt_text;                    // a conversation's, rendered
  bool starts_in_reasoning = false;
  TurnPlace place;                                        // of a conversation's answer
  std::shared_ptr<const chat::ToolSchemas> tool_schemas;  // null: tool tags are text
};

/// A prompt's ids. Requires: a tokenizer, if it is text. Errors: as Tokenizer::encode.
Result<std::vector<Token>> tokenize(const PromptInput& prompt, const Tokenizer* tokenizer);

/// Renders and tokenises the prompts and settles the lengths. `asked_in` is the field that holds
/// them ("messages", "prompt"), for messages. Cost: linear in the text; up to seconds for the
/// largest bodies.
Refusal encode(GenerationRequest& request, const Model& model, std::string_view asked_in);

/// What a conversation lacks after reading: messages at all, contents where they are needed, tools
/// that can be called; applies the model's defaults for thinking. Called by every chat API before
/// encode().
Refusal settle_conversation(GenerationRequest& request, const Model& model);

/// Whether `tools` are declarations that GLM can call: an array of at most 512 functions with
/// distinct names. `field` is their place in the body.
Refusal check_tools(const std::vector<chat::Json>& tools, std::string_view field);

/// Reads a tool_choice of OpenAI's type allowed_tools, in the form of chat or of responses. Errors:
/// invalid_argument with the field's path.
Status read_allowed_tools(const chat::Json& choice, ToolChoice& out);

/// tool_choice against the tools; calls that must come, or only some of which may, become a
/// constraint; calls that must not come are kept out by a bias.
Refusal settle_tool_choice(GenerationRequest& request, const Model& model);

}  // namespace koho::api
