// SPDX-License-Identifier: Apache-2.0
#include "api/completions.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "api/json_text.h"
#include "api/openai_responder.h"
#include "api/shared_fields.h"
#include "base/json_writer.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/utf8.h"

namespace koho::api {
namespace {

using chat::Json;
using Value = FieldValue;

constexpr std::size_t kPromptsMax = 1024;
constexpr std::int32_t kTokensDefault = 16;  // OpenAI's

Refusal read_nothing(const Value& /*value*/, RequestBuilder& /*builder*/) {
  return {};
}

constexpr RequestField kFields[] = {
    {"prompt", "string, array of strings, array of token ids, or array of such arrays",
     read_nothing},
    {"max_tokens",
     "integer from 0, default 16; 0 computes the prompt and generates nothing; -1 and null: as "
     "many as fit",
     [](const Value& v, RequestBuilder& d) { return read_length(v, 0, d.request.tokens_max); }},
    {"max_completion_tokens", "integer, -1 or null: as max_tokens, which it overrides",
     [](const Value& v, RequestBuilder& d) { return read_length(v, 0, d.max_completion_tokens); }},
    {"logprobs", "integer in 0..20: return log probabilities with this many alternatives",
     [](const Value& v, RequestBuilder& d) {
       std::int32_t top = 0;
       if (Refusal refused = read_integer(v, 0, kTopLogprobsMax, top)) return refused;
       d.request.output.logprobs = top;
       return Refusal{};
     }},
    {"echo", "boolean: the text starts with the prompt",
     [](const Value& v, RequestBuilder& d) { return read_boolean(v, d.request.output.echo); }},
    {"best_of", "integer; must equal n",
     [](const Value& v, RequestBuilder& d) {
       std::int32_t best = 0;
       if (Refusal refused = read_integer(v, 1, 128, best)) return refused;
       if (best == d.request.base.choices) return Refusal{};
       return Refusal{wrong_field(
           "best_of", "best_of must equal n: all n completions are returned, none is chosen",
           best < d.request.base.choices ? "" : "unsupported_parameter")};
     }},
    {"allow_special",
     "boolean, default true: special tokens in a text prompt become control tokens",
     [](const Value& v, RequestBuilder& d) {
       bool allow = true;
       if (Refusal refused = read_boolean(v, allow)) return refused;
       for (PromptInput& prompt : d.request.prompts) prompt.allow_special = allow;
       return Refusal{};
     }},
};

std::size_t num_characters(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_character));
}

/// Where tokens begin in their text: OpenAI's text_offset, in characters. A token that goes on with
/// a character begins where that does; text that waits, as it may become a stop string, counts.
class TokenOffsets {
 public:
  TokenOffsets(const Model& model, bool skip_special, std::size_t first = 0) : next_(first) {
    if (model.tokenizer != nullptr) decoder_.emplace(*model.tokenizer, skip_special);
  }
  /// The offset of the next token, which is `token`.
  std::size_t take(Token token) {
    text_.clear();
    if (decoder_) decoder_->push(token, text_);
    return std::exchange(next_, next_ + num_characters(text_));
  }

 private:
  std::optional<Detokenizer> decoder_;
  std::size_t next_;
  std::string text_;  // scratch
};

class CompletionResponder final : public OpenAiResponder {
 public:
  CompletionResponder(const GenerationRequest& request, const Model& model)
      : OpenAiResponder(request, model),
        choices_per_prompt_(static_cast<std::size_t>(request.base.choices)),
        choices_(num_choices(), Choice(TokenOffsets(model, options().skip_special_tokens))) {
    if (options().token_ids || request.wants_prompt_logprobs())
      for (const Request& one : request.requests) prompt_ids_.push_back(one.prompt);
    if (request.wants_prompt_logprobs()) prompt_logprobs_ = request.prompt_logprobs;
    if (!options().echo) return;
    for (std::size_t i = 0; i < request.requests.size(); ++i) {
      const PromptInput& prompt = request.prompts[i];
      echoes_.push_back(prompt.is_text               ? prompt.text
                        : model.tokenizer == nullptr ? std::string()
                                                     : model.tokenizer->decode(prompt.ids));
    }
  }

  void begin(const AnswerStart& started, std::string& out) override {
    begin_head(started, "cmpl-", "text_completion");
    for (std::size_t i = 0; i < choices_.size() && options().echo; ++i) {
      if (options().logprobs && i % choices_per_prompt_ == 0) score(i / choices_per_prompt_);
      echo(i, out);
    }
    scored_ = {};
  }

  void piece(const Piece& piece, std::string& out) override {
    count(piece);
    Choice& choice = choices_[static_cast<std::size_t>(piece.choice)];
    if (streams()) {
      chunk(piece, choice, out);
      return;
    }
    if (options().logprobs && piece.event->token >= 0)
      choice.logprobs.add(*this, *piece.event, choice.offsets.take(piece.event->token));
    choice.text += piece.text;
    note(piece, choice.outcome);
  }

 private:
  /// OpenAI's four parallel arrays, each as JSON without its brackets.
  struct Logprobs {
    std::string tokens;
    std::string logprobs;
    std::string top;
    std::string offsets;

    void add(const CompletionResponder& responder,
             const OutputEvent& event,
             std::size_t offset,
             bool unknown = false) {
      if (!tokens.empty())
        for (std::string* list : {&tokens, &logprobs, &top, &offsets}) *list += ',';
      append_json_string(tokens, responder.name(event.token));
      append_json_float(logprobs, event.logprob);
      append_json_integer(offsets, static_cast<std::int64_t>(offset));
      if (unknown) {
        top += "null";
        return;
      }
      // Tokens that are not whole characters can have the same name; the most likely one keeps it.
      std::vector<std::string> names;
      top += '{';
      for (const TokenLogprob& one : event.top) {
        std::string name = responder.name(one.token);
        if (std::ranges::find(names, name) != names.end()) continue;
        if (!names.empty()) top += ',';
        append_json_string(top, name);
        top += ':';
        append_json_float(top, one.logprob);
        names.push_back(std::move(name));
      }
      // The sampled token is always among them, whatever its rank.
      if (const std::string name = responder.name(event.token);
          std::ranges::find(names, name) == names.end()) {
        if (!names.empty()) top += ',';
        append_json_string(top, name);
        top += ':';
        append_json_float(top, event.logprob);
      }
      top += '}';
    }
    void append_to(std::string& out) const {
      out += R"({"tokens":[)" + tokens + R"(],"token_logprobs":[)" + logprobs +
             R"(],"top_logprobs":[)" + top + R"(],"text_offset":[)" + offsets + "]}";
    }
  };
  struct Choice {
    explicit Choice(TokenOffsets begin) : offsets(std::move(begin)) {}

    std::string text;
    TokenOffsets offsets;
    bool prompt_told = false;
    Logprobs logprobs;
    Outcome outcome;
  };

  /// Starts the choice's text with the prompt.
  void echo(std::size_t index, std::string& out) {
    const std::size_t prompt = index / choices_per_prompt_;
    const std::string& text = echoes_[prompt];
    Choice& choice = choices_[index];
    choice.offsets = TokenOffsets(model(), options().skip_special_tokens, num_characters(text));
    if (!streams()) {
      choice.text = text;
      choice.logprobs = scored_;
      return;
    }
    open_chunk(index, out);
    out += R"(,"text":)";
    append_json_string(out, text);
    out += R"(,"logprobs":)";
    if (options().logprobs) {
      scored_.append_to(out);
    } else {
      out += "null";
    }
    out += R"(,"finish_reason":null)";
    append_prompt_ids(index, out);
    close_chunk(out);
  }

  /// The log probabilities of the prompt's tokens, which its choices share; the first has none.
  void score(std::size_t prompt) {
    scored_ = {};
    TokenOffsets offsets(model(), false);
    const std::vector<Token>& ids = prompt_ids_[prompt];
    for (std::size_t i = 0; i < ids.size(); ++i) {
      OutputEvent event;
      event.token = ids[i];
      event.logprob = std::numeric_limits<float>::quiet_NaN();  // null
      if (i > 0) {
        event.logprob = prompt_logprobs_[prompt][i - 1].logprob;
        event.top = prompt_logprobs_[prompt][i - 1].top;
      }
      scored_.add(*this, event, offsets.take(ids[i]), i == 0);
    }
  }

  std::string name(Token token) const { return token_name(model(), options(), token); }

  /// The prompt's ids, which a stream sends once, with the choice's first chunk.
  void append_prompt_ids(std::size_t index, std::string& out) {
    if (!options().token_ids || std::exchange(choices_[index].prompt_told, true)) return;
    out += R"(,"prompt_token_ids":)";
    append_ids(out, prompt_ids_[index / choices_per_prompt_]);
  }

  void chunk(const Piece& piece, Choice& choice, std::string& out) {
    if (!is_worth_a_chunk(piece, !piece.text.empty())) return;
    open_chunk(static_cast<std::size_t>(piece.choice), out);
    out += R"(,"text":)";
    append_json_string(out, piece.text);
    out += R"(,"logprobs":)";
    if (options().logprobs && piece.event->token >= 0) {
      Logprobs logprobs;
      logprobs.add(*this, *piece.event, choice.offsets.take(piece.event->token));
      logprobs.append_to(out);
    } else {
      out += "null";
    }
    append_finish_fields(piece, out);
    append_prompt_ids(static_cast<std::size_t>(piece.choice), out);
    close_chunk(out);
  }

  void append_choice(std::size_t index, std::string& out) const override {
    const Choice& choice = choices_[index];
    out += R"({"index":)";
    append_json_integer(out, static_cast<std::int64_t>(index));
    out += R"(,"text":)";
    append_json_string(out, choice.text);
    out += R"(,"logprobs":)";
    if (options().logprobs) {
      choice.logprobs.append_to(out);
    } else {
      out += "null";
    }
    append_outcome(choice.outcome, out);
    if (options().token_ids) {
      out += R"(,"prompt_token_ids":)";
      append_ids(out, prompt_ids_[index / choices_per_prompt_]);
    }
    out += '}';
  }

  std::size_t choices_per_prompt_;
  std::vector<std::vector<Token>> prompt_ids_;
  std::vector<std::vector<PromptLogprob>> prompt_logprobs_;
  std::vector<std::string> echoes_;  // one per prompt
  Logprobs scored_;                  // of the prompt that is echoed
  std::vector<Choice> choices_;
};

}  // namespace

std::span<const RequestField> completion_fields() {
  return kFields;
}

bool reads_of_completions(std::string_view name) {
  return reads_field(name, kFields);
}

Refusal read_prompts(const Json& prompt,
                     std::string_view field,
                     const Model& model,
                     std::vector<PromptInput>& prompts) {
  const auto refuse = [&](std::string_view what) {
    return wrong_field(field,
                       fmt::format("{} must be a string, an array of strings, an array of "
                                   "token ids or an array of such arrays; {}",
                                   field, what),
                       "invalid_prompt");
  };
  const auto add_ids = [&](const Json& ids) -> Refusal {
    PromptInput input{.is_text = false};
    if (Refusal refused = read_token_ids(
            {.name = field, .json = ids}, model.limits.vocabulary,
            static_cast<std::size_t>(model.limits.scheduler.context_max) + 1, input.ids)) {
      refused->code = "invalid_prompt";
      return refused;
    }
    if (input.ids.empty()) return refuse("found an empty array of token ids");
    prompts.push_back(std::move(input));
    return {};
  };
  const auto add_text = [&](const Json& text) -> Refusal {
    if (text.text.empty()) return refuse("found an empty string");
    prompts.push_back({.is_text = true, .text = text.text});
    return {};
  };
  if (prompt.is_string()) return add_text(prompt);
  if (prompt.kind == Json::Kind::token_ids) return add_ids(prompt);
  if (!prompt.is_array()) return refuse(fmt::format("found {}", chat::kind_name(prompt.kind)));
  if (prompt.items.empty()) return refuse("found an empty array");
  const auto kind_of = [](const Json& item) {
    return item.kind == Json::Kind::token_ids ? Json::Kind::array : item.kind;
  };
  const Json::Kind kind = kind_of(prompt.items.front());
  if (kind == Json::Kind::number) return add_ids(prompt);
  if (prompt.items.size() > kPromptsMax)
    return refuse(fmt::format("at most {} prompts, found {}", kPromptsMax, prompt.items.size()));
  for (const Json& item : prompt.items) {
    if (kind_of(item) != kind) return refuse("found elements of different types");
    if (kind != Json::Kind::string && kind != Json::Kind::array)
      return refuse(fmt::format("found {}", chat::kind_name(item.kind)));
    if (Refusal refused = item.is_string() ? add_text(item) : add_ids(item)) return refused;
  }
  return {};
}

Refusal read_completion(const Json& body, const Model& model, GenerationRequest& request) {
  if (Refusal refused = read_model(body, model, request)) return refused;
  request.base = model.defaults;
  // null and -1: as many as fit.
  const bool asked =
      body.find("max_tokens") != nullptr || body.find("max_completion_tokens") != nullptr;
  const std::int32_t otherwise =
      model.tokens_max_default > 0 ? model.tokens_max_default : kTokensDefault;
  request.tokens_max_default = asked ? 0 : otherwise;
  const Json* prompt = body.find("prompt");
  if (prompt == nullptr)
    return wrong_field(
        "prompt",
        "prompt must be a string, an array of strings or an array of token ids, found nothing",
        "invalid_prompt");
  if (Refusal refused = read_prompts(*prompt, "prompt", model, request.prompts)) return refused;
  RequestBuilder builder{.model = model, .request = request};
  if (Refusal refused = read_body(body, kFields, builder)) return refused;
  return settle(builder);
}

Refusal refuse_echo(const GenerationRequest& request, std::string_view field) {
  if (!request.output.echo) return {};
  return wrong_field(field, "echo is a field of /v1/completions", "unsupported_parameter");
}

std::unique_ptr<Responder> respond_completion(const GenerationRequest& request,
                                              const Model& model) {
  return std::make_unique<CompletionResponder>(request, model);
}

}  // namespace koho::api
