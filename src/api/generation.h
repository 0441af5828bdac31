// SPDX-License-Identifier: Apache-2.0
// A parsed and checked request: what the engine gets, and how the answer is written. The body of
// every API becomes this; later only the responder knows which API it was.
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

/// A prompt other than a conversation.
struct PromptInput {
  bool is_text = true;
  std::string text{};
  std::vector<Token> ids{};
  bool allow_special = true;  // special tokens in the text become control tokens
};

/// Whether the model may, must or must not call tools.
struct ToolChoice {
  enum class Kind : std::uint8_t { automatic, none, required, named };
  Kind kind = Kind::automatic;
  std::string name;      // of the tool, if named
  bool parallel = true;  // several calls are allowed
  /// Names of the tools that may be called; nothing: all. The prompt has all tools in either case.
  std::optional<std::set<std::string, std::less<>>> allowed{};
};

/// Which parts of the answer the client gets.
struct OutputOptions {
  bool include_usage = false;  // stream: a last chunk with the usage
  bool usage_in_every_chunk = false;
  bool token_ids = false;
  bool tokens_as_ids = false;  // logprobs name tokens "token_id:7"
  bool echo = false;           // completions: the text starts with the prompt
  bool skip_special_tokens = true;
  bool include_reasoning = true;
  bool separate_reasoning = true;  // false: content has the reasoning, up to </think>
  bool stream_reasoning = true;    // false: a stream sends the reasoning in one chunk
  bool timings = false;
  bool encoded_reasoning = false;  // responses: reasoning as encrypted_content
  std::optional<int> logprobs;     // number of alternatives; nothing: no logprobs
};

/// Log probability of a prompt token after the tokens before it.
struct PromptLogprob {
  float logprob = 0.0F;
  std::vector<TokenLogprob> top{};
};

struct GenerationRequest {
  std::string model;
  bool stream = false;
  std::string request_id;  // of the body; "" = none
  std::string user;        // the client's `user` field; for the log

  // Either a conversation or prompts.
  std::optional<chat::Conversation> conversation;
  std::vector<PromptInput> prompts;

  /// Whose kept answers are replayed; 0: without keys.
  std::uint64_t key = 0;

  /// The part that all prompts share: sampling, stops, choices, priority, salt, deadline. encode()
  /// adds prompts, lengths, and a random seed if the request has none.
  Request base;
  std::optional<std::int64_t> tokens_max;   // max_tokens of the request
  std::int32_t tokens_max_default = 0;      // 0: what is left of the context
  std::optional<std::int32_t> truncate_to;  // keep only the prompt's last tokens

  ToolChoice tool_choice;
  std::optional<Constraint> constraint;  // structured output
  std::string constraint_field;          // its field, for error messages: "response_format"
  OutputOptions output;
  std::string call_id_prefix = "call_";  // of tool call ids; unique per request
  std::vector<std::string> unknown_fields;
  bool keeps_prompt_text = false;
  std::size_t ids_max = 0;  // of a prompt's ids that encode() keeps; 0: what the context holds
  std::string echo;         // responses: body fields that the answer repeats, as JSON

  /// Whether the prompts' own tokens get log probabilities: prompt_logprobs[prompt][i] is that of
  /// token i + 1, filled in before the answer begins.
  bool wants_prompt_logprobs() const { return output.echo && output.logprobs.has_value(); }
  std::vector<std::vector<PromptLogprob>> prompt_logprobs;

  /// Memory that the request keeps until its answer ends, beside its prompts.
  std::size_t kept_bytes() const;
  /// Frees what nobody needs once there is an answer that was made for the request.
  void free_answered();

  // Filled in by encode().
  std::vector<Request> requests;  // one per prompt
  std::optional<std::int64_t>
      prompt_tokens;        // of all prompts; nothing if the request was refused earlier
  std::string prompt_text;  // the rendered conversation, if keeps_prompt_text
  bool starts_in_reasoning = false;
  TurnPlace place;                                        // where a conversation's answer begins
  std::shared_ptr<const chat::ToolSchemas> tool_schemas;  // null: tool tags are text
};

/// Sets what an API key says of a request that has been read; empty without keys.
using KeyRules = std::function<void(GenerationRequest& request)>;

/// The token ids of a prompt, of a text with more than `ids_max` only the first ones; `total` is
/// the number of all. Requires: a tokenizer, if the prompt is text. Errors: as Tokenizer::encode.
Result<std::vector<Token>> tokenize(const PromptInput& prompt,
                                    const Tokenizer* tokenizer,
                                    std::size_t ids_max,
                                    std::size_t& total);

/// Renders and tokenises the prompts and checks the lengths. `asked_in` is the prompt's field
/// ("messages", "prompt"), for error messages. Cost: linear in the text; up to seconds for the
/// largest bodies.
Refusal encode(GenerationRequest& request, const Model& model, std::string_view asked_in);

/// Checks a conversation (there are messages, they have content, the tools are valid) and applies
/// the model's defaults for thinking. Every chat API calls it before encode().
Refusal settle_conversation(GenerationRequest& request, const Model& model);

/// Refuses `tools` that are not at most 512 functions with distinct names. `field` is their place
/// in the body.
Refusal check_tools(const std::vector<chat::Json>& tools, std::string_view field);

/// Reads a tool_choice of type allowed_tools, in the form of chat completions or of responses.
/// Errors: invalid_argument with the field's path.
Status read_allowed_tools(const chat::Json& choice, ToolChoice& out);

/// Refuses lists of tokens beside a constraint.
Refusal check_token_lists(const GenerationRequest& request);

/// Applies tool_choice to the tools: forced or restricted calls become a constraint, forbidden
/// calls a logit bias.
Refusal settle_tool_choice(GenerationRequest& request, const Model& model);

}  // namespace koho::api
