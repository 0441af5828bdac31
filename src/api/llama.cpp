// SPDX-License-Identifier: Apache-2.0
#include "api/llama.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "api/completions.h"
#include "api/field_table.h"
#include "api/json_text.h"
#include "base/json_writer.h"
#include "base/text.h"

namespace koho::api {
namespace {

using chat::Json;

constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"n_predict", "max_tokens"},
    {"repeat_penalty", "repetition_penalty"},
    {"n_probs", "logprobs"},
    {"return_tokens", "return_token_ids"},
};

std::string_view name_of(std::string_view given) {
  for (const auto& [theirs, ours] : kNames)
    if (theirs == given) return ours;
  return given;
}

/// llama.cpp has one prompt and one answer a request.
class LlamaResponder final : public Responder {
 public:
  LlamaResponder(const GenerationRequest& request, const Model& model)
      : model_(model), streams_(request.stream), options_(request.output) {}

  void begin(const AnswerStart& started, std::string& /*out*/) override {
    prompt_tokens_ = started.prompt_tokens;
  }

  void piece(const Piece& piece, std::string& out) override {
    if (piece.event->token >= 0) {
      ++tokens_;
      if (options_.token_ids) ids_.push_back(piece.event->token);
      if (options_.logprobs) append_probabilities(*piece.event);
    }
    if (piece.finish != Finish::none) {
      stop_type_ = piece.finish == Finish::length ? "limit"
                   : !piece.stop_string.empty()   ? "word"
                                                  : "eos";
      stop_word_ = piece.stop_string;
    }
    if (!streams_) {
      content_ += piece.text;
      return;
    }
    if (piece.text.empty() && ids_.empty() && probabilities_.empty()) return;
    out += R"(data: {"index":0,"content":)";
    append_json_string(out, piece.text);
    append_tokens(out);
    fmt::format_to(std::back_inserter(out),
                   R"(,"stop":false,"id_slot":0,"tokens_predicted":{},"tokens_evaluated":{}}})"
                   "\n\n",
                   tokens_, prompt_tokens_);
  }

  void end(const AnswerTotals& ended, std::string& out) override {
    out += streams_ ? R"(data: {"index":0,"content":)" : R"({"index":0,"content":)";
    append_json_string(out, content_);
    append_tokens(out);
    out += R"(,"stop":true,"id_slot":0,"truncated":false,"model":)";
    append_json_string(out, model_.names.front());
    out += R"(,"stopping_word":)";
    append_json_string(out, stop_word_);
    const auto ms = [](std::int64_t us) { return static_cast<double>(us) / 1e3; };
    const auto rate = [](std::int64_t tokens, double milliseconds) {
      return milliseconds > 0.0 ? static_cast<double>(tokens) * 1e3 / milliseconds : 0.0;
    };
    const std::int64_t computed = ended.usage.prompt_tokens - ended.usage.cached_tokens;
    const double prompt_ms = ms(ended.timings.prefill_us);
    const double predicted_ms = ms(ended.timings.decode_us);
    fmt::format_to(
        std::back_inserter(out),
        R"(,"stop_type":"{}","tokens_predicted":{},"tokens_evaluated":{},"tokens_cached":{},)"
        R"("timings":{{"prompt_n":{},"prompt_ms":{:.3f},"prompt_per_second":{:.3f},"predicted_n":{},)"
        R"("predicted_ms":{:.3f},"predicted_per_second":{:.3f},"cache_n":{}}}}})",
        stop_type_, ended.usage.completion_tokens, ended.usage.prompt_tokens,
        ended.usage.prompt_tokens + ended.usage.completion_tokens, computed, prompt_ms,
        rate(computed, prompt_ms), ended.usage.completion_tokens, predicted_ms,
        rate(ended.usage.completion_tokens, predicted_ms), ended.usage.cached_tokens);
    if (streams_) out += "\n\n";
  }

  void fail(const ApiError& error, std::string& out) override {
    if (!streams_) return;
    out += R"(data: {"error":{"code":)";
    append_json_integer(out, error.status);
    out += R"(,"message":)";
    append_json_string(out, error.message);
    out += R"(,"type":"server_error"}})"
           "\n\n";
  }

  void ping(std::string& out) override {
    if (streams_) out += ":\n\n";
  }

 private:
  /// {"id", "token", "logprob", "bytes", "top_logprobs": [the same, …]}
  void append_probabilities(const OutputEvent& event) {
    const auto append = [this](const TokenLogprob& one) {
      probabilities_ += R"({"id":)";
      append_json_integer(probabilities_, one.token);
      probabilities_ += ',';
      std::string rest;
      append_chat_logprob(rest, model_, options_, one);
      probabilities_.append(rest, 1);
    };
    if (!probabilities_.empty()) probabilities_ += ',';
    append({event.token, event.logprob});
    probabilities_ += R"(,"top_logprobs":[)";
    for (std::size_t i = 0; i < event.top.size(); ++i) {
      if (i > 0) probabilities_ += ',';
      append(event.top[i]);
      probabilities_ += '}';
    }
    probabilities_ += "]}";
  }

  /// The tokens since the last call, as far as the client wants them.
  void append_tokens(std::string& out) {
    if (options_.token_ids) {
      out += R"(,"tokens":)";
      append_ids(out, std::exchange(ids_, {}));
    }
    if (options_.logprobs)
      out += R"(,"completion_probabilities":[)" + std::exchange(probabilities_, {}) + ']';
  }

  const Model& model_;
  bool streams_;
  OutputOptions options_;
  std::vector<Token> ids_;
  std::string probabilities_;  // entries, as JSON
  std::int64_t prompt_tokens_ = 0;
  std::int64_t tokens_ = 0;
  std::string content_;
  std::string_view stop_type_ = "none";
  std::string stop_word_;
};

/// Adds to `bias`, logit_bias as other endpoints have it, what llama.cpp says of a token or of each
/// token of a text.
Refusal add_bias(const Json& token, const Json& value, const Model& model, Json& bias) {
  Json number = value;
  if (value.kind == Json::Kind::boolean && !value.boolean) {  // never
    number.kind = Json::Kind::number;
    number.text = "-100";
  }
  if (!token.is_string()) {
    bias.set(token.is_integer() ? token.text : chat::dump_json(token), std::move(number));
    return {};
  }
  if (model.tokenizer == nullptr)
    return wrong_field("logit_bias", "logit_bias: texts need a model with a tokenizer.json");
  const Result<std::vector<Token>> ids = model.tokenizer->encode(token.text);
  if (!ids.ok()) return wrong_field("logit_bias", ids.error().message);
  for (const Token id : *ids) {
    if (bias.keys.size() > static_cast<std::size_t>(kLogitBiasMax)) break;  // refused anyway
    bias.set(fmt::to_string(id), number);
  }
  return {};
}

/// [[id or text, number or false], …] or {"id or text": number or false, …}.
Refusal read_bias(const Json& given, const Model& model, Json& bias) {
  bias = Json::object();
  for (std::size_t i = 0; i < given.items.size(); ++i) {
    if (bias.keys.size() > static_cast<std::size_t>(kLogitBiasMax)) break;
    const Json& item = given.items[i];
    if (given.is_array() && (!item.is_array() || item.items.size() != 2))
      return wrong_field("logit_bias",
                         fmt::format("logit_bias[{}] must be a token id or a text, and a number or "
                                     "false, found {}",
                                     i, chat::kind_name(item.kind)));
    Json token = given.is_array() ? item.items[0] : Json::string(given.keys[i]);
    if (!given.is_array() && parse_integer<std::int64_t>(token.text))
      token.kind = Json::Kind::number;
    if (Refusal refused = add_bias(token, given.is_array() ? item.items[1] : item, model, bias))
      return refused;
  }
  return {};
}

}  // namespace

bool reads_of_llama_completion(std::string_view name) {
  return name == "json_schema" || name == "grammar" || reads_of_completions(name_of(name));
}

Refusal read_llama_completion(const Json& body, const Model& model, GenerationRequest& request) {
  Json made = Json::object();
  Json constraint = Json::object();
  for (std::size_t i = 0; i < body.keys.size(); ++i) {
    const std::string& key = body.keys[i];
    const bool schema = key == "json_schema";
    if (key == "n_probs" && body.items[i].as_integer() == 0)
      continue;  // none, not the token's own only
    if (schema || key == "grammar") {
      const bool none = body.items[i].is_null() || body.items[i] == Json::string("");
      if (!none) constraint.set(schema ? "json" : "grammar", body.items[i]);
    } else if (key == "logit_bias" && (body.items[i].is_array() || body.items[i].is_object())) {
      Json bias;
      if (Refusal refused = read_bias(body.items[i], model, bias)) return refused;
      made.set(key, std::move(bias));
    } else if (!body.items[i].is_null() || made.find(name_of(key)) == nullptr) {
      made.set(name_of(key), body.items[i]);
    }
  }
  if (!constraint.keys.empty()) made.set("structured_outputs", std::move(constraint));
  // llama.cpp answers until the model stops.
  if (made.find("max_tokens") == nullptr) made.set("max_tokens", {});
  Refusal refused = read_completion(made, model, request);
  for (const auto& [ours, theirs] : {std::pair{"structured_outputs.json", "json_schema"},
                                     std::pair{"structured_outputs.grammar", "grammar"}}) {
    if (request.constraint_field == ours) request.constraint_field = theirs;
    if (refused && refused->param == ours) refused->param = theirs;
  }
  if (refused)
    for (const auto& [theirs, ours] : kNames)
      if (refused->param == ours && body.find(theirs) != nullptr) refused->param = theirs;
  if (!refused) refused = refuse_echo(request, "echo");
  if (!refused && (request.prompts.size() > 1 || request.base.choices > 1))
    return wrong_field("prompt", "/completion takes one prompt and gives one answer");
  return refused;
}

std::unique_ptr<Responder> respond_llama_completion(const GenerationRequest& request,
                                                    const Model& model) {
  return std::make_unique<LlamaResponder>(request, model);
}

}  // namespace koho::api
