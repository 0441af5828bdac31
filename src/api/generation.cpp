// SPDX-License-Identifier: Apache-2.0
// Checks and completes a parsed request of any API: tools, lengths, rendering, tokenisation.
#include "api/generation.h"

#include <algorithm>
#include <random>
#include <set>
#include <unordered_set>

#include <fmt/core.h>

#include "api/fields.h"
#include "chat/prompt_tokens.h"
#include "chat/template.h"

namespace koho::api {
namespace {

constexpr std::size_t kMessagesMax = 10'000;
constexpr std::size_t kToolsMax = 512;
constexpr std::size_t kToolNameBytesMax = 64;

Refusal no_text_side() {
  return ApiError{.status = 400,
                  .code = "unsupported_parameter",
                  .param = {},
                  .message = "the model has no tokenizer.json: give token ids instead of text"};
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

Refusal check_tool(const chat::Json& tool, const std::string& field, std::string_view& name) {
  if (!tool.is_object()) return wrong_field(field, field + " must be an object");
  const chat::Json* function = tool.find("function");
  if (const chat::Json* type = tool.find("type");
      type != nullptr && *type != chat::Json::string("function"))
    return wrong_field(field + ".type", field + ".type must be \"function\"");
  if (function != nullptr && !function->is_object())
    return wrong_field(field + ".function", field + ".function must be an object");
  const chat::Json& body = function != nullptr ? *function : tool;
  const std::string inner = function != nullptr ? field + ".function" : field;
  const chat::Json* named = body.find("name");
  if (named == nullptr || !named->is_string() || named->text.empty() ||
      named->text.size() > kToolNameBytesMax ||
      !std::ranges::all_of(named->text, is_name_character))
    return wrong_field(inner + ".name",
                       fmt::format("{}.name must be 1..{} characters of a-z, A-Z, 0-9, _, - and .",
                                   inner, kToolNameBytesMax));
  for (const char* key : {"parameters", "input_schema"})
    if (const chat::Json* parameters = body.given(key);
        parameters != nullptr && !parameters->is_object())
      return wrong_field(fmt::format("{}.{}", inner, key),
                         fmt::format("{}.{} must be a JSON schema: an object", inner, key));
  if (const chat::Json* strict = body.given("strict");
      strict != nullptr && strict->kind != chat::Json::Kind::boolean)
    return wrong_field(inner + ".strict", inner + ".strict must be a boolean");
  name = named->text;
  return {};
}

ToolGrammar grammar_of(const chat::Json& tool) {
  const chat::Json* function = tool.find("function");
  const chat::Json& body = function != nullptr ? *function : tool;
  ToolGrammar grammar;
  grammar.name = body.find("name")->text;
  for (const char* key : {"parameters", "input_schema"})
    if (const chat::Json* schema = body.find(key); schema != nullptr && schema->is_object())
      grammar.parameters = chat::dump_json(*schema);
  const chat::Json* strict = body.find("strict");
  grammar.strict = strict != nullptr && strict->boolean;
  return grammar;
}

Refusal check_messages(const chat::Conversation& conversation) {
  if (conversation.messages.empty())
    return wrong_field("messages", "messages must have at least one entry");
  if (conversation.messages.size() > kMessagesMax)
    return wrong_field("messages", fmt::format("messages may have at most {} entries, found {}",
                                               kMessagesMax, conversation.messages.size()));
  for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
    const chat::Message& message = conversation.messages[i];
    if (message.content && !message.content->is_null()) continue;
    // An assistant message may consist of reasoning and tool calls alone.
    if (message.role == "assistant" && (message.content || !message.tool_calls.empty() ||
                                        message.reasoning || message.reasoning_content))
      continue;
    const std::string field = fmt::format("messages[{}].content", i);
    return wrong_field(field,
                       field + " must be a string or an array of content parts, found nothing");
  }
  return {};
}

/// The ids of a rendered conversation; earlier answers become the token ids that were sampled.
Result<std::vector<Token>> encode_turns(GenerationRequest& request,
                                        const chat::Prompt& prompt,
                                        const Model& model,
                                        std::size_t ids_max,
                                        std::size_t& total) {
  if (model.turns) {
    const TurnScope scope{.salt = request.base.salt, .key = request.key};
    KOHO_TRY_ASSIGN(EncodedTurns encoded,
                    model.turns->encode(*request.conversation, prompt, model.style, scope,
                                        *model.tokenizer, ids_max));
    request.place = std::move(encoded.place);
    request.place.client = request.base.client;
    total = encoded.total;
    return std::move(encoded.ids);
  }
  return chat::encode(prompt.segments, *model.tokenizer, ids_max, total);
}

Refusal settle_lengths(GenerationRequest& request,
                       const Model& model,
                       std::string_view asked_in,
                       std::int64_t prompt,
                       Request& one) {
  const std::int64_t context = model.context_max();
  const auto too_long = [&](std::int64_t answer) {
    return ApiError{.status = 400,
                    .code = "context_length_exceeded",
                    .param = std::string(asked_in),
                    .message = fmt::format(
                        "This model's maximum context length is {} tokens; the prompt has {} "
                        "tokens and the completion asks for {}: {} in total",
                        context, prompt, answer, prompt + answer)};
  };
  if (prompt == 0)
    return wrong_field(asked_in, fmt::format("{} must not be empty", asked_in), "invalid_prompt");
  const std::int64_t room = context - prompt;
  if (request.tokens_max) {
    if (*request.tokens_max > room) return too_long(*request.tokens_max);
    one.max_tokens = static_cast<std::int32_t>(*request.tokens_max);
  } else {
    if (room < 1) return too_long(1);
    one.max_tokens = static_cast<std::int32_t>(
        request.tokens_max_default > 0 ? std::min<std::int64_t>(request.tokens_max_default, room)
                                       : room);
  }
  if (one.min_tokens > one.max_tokens)
    return wrong_field("min_tokens", fmt::format("min_tokens ({}) must not exceed max_tokens ({})",
                                                 one.min_tokens, one.max_tokens));
  return {};
}

/// Tokens of the request's lists.
std::size_t listed_tokens(const Request& request) {
  std::size_t listed = request.allowed_tokens.size();
  for (const std::vector<Token>& word : request.banned_sequences) listed += word.size();
  return listed;
}

/// Every prompt has its own copy of the lists of tokens.
Refusal check_copies(const GenerationRequest& request) {
  constexpr std::size_t kListedMax = std::size_t{4} << 20U;
  const Request& base = request.base;
  const std::size_t listed = listed_tokens(base);
  if (request.prompts.size() < 2 || listed * request.prompts.size() <= kListedMax) return {};
  const char* field = base.allowed_tokens.empty() ? "bad_words" : "allowed_token_ids";
  return wrong_field(field, fmt::format("{}: {} tokens for each of {} prompts are too many, {} in "
                                        "all are the most: send fewer prompts at once",
                                        field, listed, request.prompts.size(), kListedMax));
}

/// Every choice repeats its prompt where the client asks for it.
Refusal check_repeats(const GenerationRequest& request, const Model& model) {
  constexpr std::size_t kRepeatedBytesMax = std::size_t{64} << 20U;
  constexpr std::size_t kIdBytes = 8;        // an id as text
  constexpr std::size_t kLogprobBytes = 32;  // a token and its log probability
  const OutputOptions& output = request.output;
  const auto choices = static_cast<std::size_t>(request.base.choices);
  if (choices < 2 || !(output.echo || output.token_ids)) return {};
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < request.requests.size(); ++i) {
    const std::size_t ids = request.requests[i].prompt.size();
    if (output.token_ids) bytes += kIdBytes * ids;
    if (output.echo) {
      std::size_t text = request.prompts[i].text.size();
      if (model.tokenizer != nullptr)
        for (const Token id : request.prompts[i].ids)
          text += model.tokenizer->token_bytes(id).size();
      bytes += std::max(text, kIdBytes * ids);
    }
    if (request.wants_prompt_logprobs())
      bytes += kLogprobBytes * ids * static_cast<std::size_t>(*output.logprobs + 1);
  }
  if (bytes <= kRepeatedBytesMax / choices) return {};
  return wrong_field(
      output.echo ? "echo" : "return_token_ids",
      fmt::format("{} choices would repeat some {} bytes of prompts, {} are the most: ask for "
                  "fewer choices, or without {}",
                  choices, bytes * choices, kRepeatedBytesMax,
                  output.echo ? "echo" : "return_token_ids"));
}

std::uint64_t random_seed() {
  thread_local std::mt19937_64 generator{[] {
    std::random_device device;
    return (std::uint64_t{device()} << 32U) | device();
  }()};
  return generator();
}

/// Prevents tool calls where the prompt has tools that must not be called: a logit bias on
/// <tool_call>, which works together with structured output and with lists of allowed tokens.
Refusal ban_calls(GenerationRequest& request, const Model& model) {
  constexpr float kBan = -100.0F;
  const Token call = model.tag_ids[static_cast<std::size_t>(chat::Tag::call_open)];
  if (call < 0) return {};
  auto& biases = request.base.sampling.logit_bias;
  std::erase_if(biases, [call](const auto& bias) { return bias.first == call; });
  if (biases.size() == static_cast<std::size_t>(kLogitBiasMax))
    return wrong_field("logit_bias",
                       fmt::format("logit_bias may have at most {} entries when tool_choice is "
                                   "none (which adds one)",
                                   kLogitBiasMax - 1));
  biases.emplace_back(call, kBan);
  return {};
}

}  // namespace

Status read_allowed_tools(const chat::Json& choice, ToolChoice& out) {
  const chat::Json* inner = choice.given("allowed_tools");
  const std::string path = inner != nullptr ? "tool_choice.allowed_tools" : "tool_choice";
  const chat::Json& list = inner != nullptr ? *inner : choice;
  if (!list.is_object()) return wrong_kind(path, "an object", inner);
  KOHO_TRY_ASSIGN(const chat::Json* mode, required_string(list, "mode", path));
  if (mode->text != "auto" && mode->text != "required")
    return make_field_error(ErrorCode::invalid_argument, path + ".mode",
                            "{}: must be auto or required, found \"{:.40}\"",
                            std::string_view(mode->text));
  out.kind = mode->text == "auto" ? ToolChoice::Kind::automatic : ToolChoice::Kind::required;
  const chat::Json* tools = list.given("tools");
  if (tools == nullptr || !tools->is_array() || tools->items.empty())
    return wrong_kind(path + ".tools", "an array of tools", tools);
  if (tools->items.size() > kToolsMax)
    return make_field_error(ErrorCode::invalid_argument, path + ".tools",
                            "{}: may have at most {} entries, found {}", kToolsMax,
                            tools->items.size());
  out.allowed.emplace();
  for (std::size_t i = 0; i < tools->items.size(); ++i) {
    const chat::Json& tool = tools->items[i];
    const std::string place = fmt::format("{}.tools[{}]", path, i);
    if (!tool.is_object()) return wrong_kind(place, "an object", &tool);
    KOHO_TRY_ASSIGN(const std::optional<std::string> type, optional_string(tool, "type", place));
    if (type && *type != "function") continue;  // tools that only OpenAI's servers run
    const chat::Json* function = tool.given("function");
    KOHO_TRY_ASSIGN(const chat::Json* name,
                    function != nullptr && function->is_object()
                        ? required_string(*function, "name", place + ".function")
                        : required_string(tool, "name", place));
    out.allowed->insert(name->text);
  }
  return {};
}

Result<std::vector<Token>> tokenize(const PromptInput& prompt,
                                    const Tokenizer* tokenizer,
                                    std::size_t ids_max,
                                    std::size_t& total) {
  if (!prompt.is_text) {
    total = prompt.ids.size();
    return prompt.ids;
  }
  const TextSegment whole{.text = prompt.text, .allow_special = prompt.allow_special};
  return tokenizer->encode(std::span(&whole, 1), ids_max, total);
}

Refusal check_tools(const std::vector<chat::Json>& tools, std::string_view field) {
  if (tools.size() > kToolsMax)
    return wrong_field(field, fmt::format("{} may have at most {} entries, found {}", field,
                                          kToolsMax, tools.size()));
  std::unordered_set<std::string_view> names;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    std::string_view name;
    const std::string place = fmt::format("{}[{}]", field, i);
    if (Refusal refused = check_tool(tools[i], place, name)) return refused;
    if (!names.insert(name).second)
      return wrong_field(place + ".function.name",
                         fmt::format("{}: the tool name \"{}\" is used twice", place, name));
  }
  return {};
}

Refusal check_token_lists(const GenerationRequest& request) {
  const Request& base = request.base;
  if (!request.constraint || (base.allowed_tokens.empty() && base.banned_sequences.empty()))
    return {};
  return wrong_field(base.allowed_tokens.empty() ? "bad_words" : "allowed_token_ids",
                     "allowed_token_ids and bad_words cannot be combined with structured outputs, "
                     "nor with tool calls that are forced, strict or not parallel");
}

Refusal settle_tool_choice(GenerationRequest& request, const Model& model) {
  const ToolChoice& choice = request.tool_choice;
  const std::vector<chat::Json>& tools = request.conversation->tools;
  const bool none_allowed =
      choice.kind == ToolChoice::Kind::automatic && choice.allowed && choice.allowed->empty();
  if (choice.kind == ToolChoice::Kind::none || none_allowed) {
    request.tool_choice.kind = ToolChoice::Kind::none;
    return tools.empty() ? Refusal{} : ban_calls(request, model);
  }
  const bool forced = choice.kind != ToolChoice::Kind::automatic;
  if (tools.empty()) {
    if (forced || choice.allowed) return wrong_field("tool_choice", "tool_choice needs `tools`");
    return {};
  }
  std::vector<ToolGrammar> grammars;
  bool any_strict = false;
  const auto unknown = [](std::string_view name) {
    return wrong_field("tool_choice", fmt::format("tool_choice names the tool \"{:.100}\", which "
                                                  "is not in `tools`",
                                                  name));
  };
  std::set<std::string, std::less<>> missing;
  if (choice.allowed) missing = *choice.allowed;
  for (const chat::Json& tool : tools) {
    ToolGrammar grammar = grammar_of(tool);
    if (choice.kind == ToolChoice::Kind::named && grammar.name != choice.name) continue;
    if (choice.allowed && missing.erase(grammar.name) == 0) continue;
    any_strict = any_strict || grammar.strict;
    grammars.push_back(std::move(grammar));
  }
  if (!missing.empty()) return unknown(*missing.begin());
  if (grammars.empty() && choice.allowed)
    return wrong_field("tool_choice", "tool_choice.allowed_tools names none of `tools`");
  if (grammars.empty()) return unknown(choice.name);
  const bool all = grammars.size() == tools.size();
  if (!forced && all && !any_strict && choice.parallel && !request.constraint) return {};
  using Calls = Constraint::Calls;
  const Calls by_itself = request.constraint ? Calls::instead_of_text : Calls::when_called;
  const Calls must =
      choice.kind == ToolChoice::Kind::named ? Calls::exactly_one : Calls::at_least_one;
  Constraint constraint = Constraint::tool_calls(std::move(grammars), forced ? must : by_itself);
  constraint.one_call = !choice.parallel;
  constraint.newline_after_tags = model.style != chat::TemplateStyle::glm_4_7;
  if (!forced && request.constraint) {
    // The answer follows response_format or consists of tool calls.
    request.constraint =
        Constraint::union_of({*std::move(request.constraint), std::move(constraint)});
    return {};
  }
  request.constraint = std::move(constraint);
  request.constraint_field = forced ? "tool_choice" : "tools";
  return {};
}

Refusal settle_conversation(GenerationRequest& request, const Model& model) {
  chat::Conversation& conversation = *request.conversation;
  if (Refusal refused = check_messages(conversation)) return refused;
  if (Refusal refused = check_tools(conversation.tools, "tools")) return refused;
  if (Refusal refused = settle_tool_choice(request, model)) return refused;
  if (Refusal refused = check_token_lists(request)) return refused;
  // The grammar begins after the reasoning, so a call within the reasoning would escape it.
  const bool calls =
      !conversation.tools.empty() && request.tool_choice.kind != ToolChoice::Kind::none;
  if (calls && request.constraint)
    request.base.reasoning_banned = model.tag_ids[static_cast<std::size_t>(chat::Tag::call_open)];
  if (const Status status = chat::normalize(conversation); !status.ok())
    return to_api_error(status.error());
  if (!conversation.enable_thinking) conversation.enable_thinking = model.enable_thinking;
  if (!conversation.clear_thinking) {
    const bool keep =
        model.preserve_thinking == PreserveThinking::always ||
        (model.preserve_thinking == PreserveThinking::automatic && !conversation.tools.empty());
    if (keep) conversation.clear_thinking = false;
  }
  return {};
}

std::size_t GenerationRequest::kept_bytes() const {
  std::size_t bytes =
      echo.size() + user.size() + listed_tokens(base) * sizeof(Token) * (1 + requests.size());
  for (std::size_t i = 0; output.echo && i < prompts.size(); ++i) bytes += prompts[i].text.size();
  for (const std::vector<PromptLogprob>& scored : prompt_logprobs)
    for (const PromptLogprob& one : scored)
      bytes += sizeof one + one.top.size() * sizeof(TokenLogprob);
  return bytes;
}

void GenerationRequest::free_answered() {
  // Prompts are the largest part of a request.
  requests = {};
  prompts = {};
  conversation.reset();
  constraint.reset();
  echo = {};
  unknown_fields = {};
  prompt_logprobs = {};
}

Refusal encode(GenerationRequest& request, const Model& model, std::string_view asked_in) {
  // A prompt beyond the context is refused: of its ids only the number is needed.
  const std::size_t context_ids = static_cast<std::size_t>(model.context_max()) + 1;
  const std::size_t ids_max = request.truncate_to   ? ~std::size_t{0}
                              : request.ids_max > 0 ? request.ids_max
                                                    : context_ids;
  std::size_t of_conversation = 0;
  if (request.conversation) {
    if (model.tokenizer == nullptr) return no_text_side();
    Result<chat::Prompt> prompt = chat::render(*request.conversation, model.style);
    if (!prompt.ok()) return to_api_error(prompt.error());
    request.starts_in_reasoning = prompt->ends_in_thinking();
    if (request.keeps_prompt_text) request.prompt_text = prompt->text();
    Result<std::vector<Token>> ids =
        encode_turns(request, *prompt, model, ids_max, of_conversation);
    if (!ids.ok()) return to_api_error(ids.error());
    request.prompts.assign(1, {.is_text = false, .text = {}, .ids = std::move(*ids)});
    if (!request.conversation->tools.empty() && request.tool_choice.kind != ToolChoice::Kind::none)
      request.tool_schemas = std::make_shared<const chat::ToolSchemas>(request.conversation->tools);
  }
  if (Refusal refused = check_copies(request)) return refused;
  request.base.seed = random_seed();
  request.requests.clear();
  std::int64_t tokens = 0;
  for (PromptInput& prompt : request.prompts) {
    if (prompt.is_text && model.tokenizer == nullptr) return no_text_side();
    Request one = request.base;
    std::size_t total = 0;
    Result<std::vector<Token>> ids = tokenize(prompt, model.tokenizer, ids_max, total);
    if (!ids.ok()) return to_api_error(ids.error());
    if (request.conversation) total = of_conversation;
    one.prompt = std::move(*ids);
    if (request.truncate_to && one.prompt.size() > static_cast<std::size_t>(*request.truncate_to)) {
      one.prompt.erase(one.prompt.begin(), one.prompt.end() - *request.truncate_to);
      total = one.prompt.size();
      prompt = {.is_text = false, .text = {}, .ids = one.prompt};  // what an echo shows
    }
    tokens += static_cast<std::int64_t>(total);
    if (&prompt == &request.prompts.back()) request.prompt_tokens = tokens;
    one.starts_in_reasoning =
        !one.prompt.empty() && one.reasoning_begin >= 0 && one.prompt.back() == one.reasoning_begin;
    if (Refusal refused =
            settle_lengths(request, model, asked_in, static_cast<std::int64_t>(total), one))
      return refused;
    request.requests.push_back(std::move(one));
  }
  return check_repeats(request, model);
}

}  // namespace koho::api
