// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_dataset.h"

#include <algorithm>
#include <random>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/mapped_file.h"
#include "chat/json.h"

namespace koho::bench {
namespace {

using chat::Json;

constexpr std::size_t kFileBytesMax = std::size_t{4} << 30U;
// vLLM's bounds of a ShareGPT conversation.
constexpr std::int64_t kShareGptTokensMin = 4;
constexpr std::int64_t kShareGptPromptMax = 1024;
constexpr std::int64_t kShareGptTotalMax = 2048;

constexpr const char* kWords[] = {"time", "year",  "people", "way",   "day",    "man",   "thing",
                                  "home", "world", "school", "state", "family", "group", "country",
                                  "hand", "part",  "place",  "case",  "week",   "work",  "water"};

class PromptMaker {
 public:
  PromptMaker(const DatasetOptions& options, const Tokenizer* tokenizer)
      : options_(options), tokenizer_(tokenizer), draw_(options.seed) {}

  Result<std::vector<Prompt>> make() {
    if (options_.name == "random") return random();
    if (options_.name == "sessions" && options_.path.empty()) return random_sessions();
    if (options_.path.empty())
      return make_error(ErrorCode::invalid_argument, "--dataset-name {} needs --dataset-path FILE",
                        options_.name);
    KOHO_TRY_ASSIGN(text_, read_file_or_pipe(options_.path, kFileBytesMax));
    if (options_.name == "custom") return custom();
    KOHO_TRY_ASSIGN(conversations_, chat::parse_json(text_));
    if (!conversations_.is_array())
      return make_error(ErrorCode::corrupt_data,
                        "{}: expected ShareGPT's JSON, an array of conversations", options_.path);
    text_ = {};
    return options_.name == "sharegpt" ? sharegpt() : sessions();
  }

 private:
  static Prompt single(std::string text, std::int64_t tokens, std::int64_t output) {
    return {.turns = std::make_shared<const std::vector<std::string>>(1, std::move(text)),
            .tokens = tokens,
            .output_tokens = output};
  }

  std::int64_t random_length(std::int64_t middle) {
    const double ratio = options_.random_range_ratio;
    const auto low = static_cast<std::int64_t>(static_cast<double>(middle) * (1.0 - ratio));
    const auto high = static_cast<std::int64_t>(static_cast<double>(middle) * (1.0 + ratio));
    return std::uniform_int_distribution<std::int64_t>(std::max<std::int64_t>(low, 1),
                                                       std::max<std::int64_t>(high, 1))(draw_);
  }

  /// A token that is text: neither a control token nor a part of a character.
  std::int32_t random_token() {
    std::uniform_int_distribution<std::int32_t> any(0, tokenizer_->vocab_size() - 1);
    while (true) {
      const std::int32_t token = any(draw_);
      const Result<std::vector<std::int32_t>> again =
          tokenizer_->encode(tokenizer_->decode(std::span(&token, 1)));
      if (again.ok() && *again == std::vector<std::int32_t>{token}) return token;
    }
  }

  std::int64_t count(std::string_view text) const {
    if (tokenizer_ == nullptr) return static_cast<std::int64_t>(text.size() / 4);  // a guess
    const Result<std::vector<std::int32_t>> ids = tokenizer_->encode(text);
    return ids.ok() ? std::ssize(*ids) : 0;
  }

  /// A text of `tokens` tokens behind `prefix`. Decoding and encoding again can give another
  /// number: it is cut or filled up until that comes out.
  Prompt random_prompt(const std::vector<std::int32_t>& prefix,
                       std::int64_t tokens,
                       std::int64_t output) {
    if (tokenizer_ == nullptr) {
      std::string text;
      for (std::int64_t i = 0; i < tokens; ++i)
        text += fmt::format("{}{}", i > 0 ? " " : "", kWords[draw_() % std::size(kWords)]);
      return single(std::move(text), 0, output);
    }
    const std::size_t wanted = prefix.size() + static_cast<std::size_t>(tokens);
    std::vector<std::int32_t> ids;
    std::string text;
    constexpr int kTries = 50;
    constexpr int kTriesOfAStart = 10;
    for (int i = 0; i < kTries && ids.size() != wanted; ++i) {
      if (i % kTriesOfAStart == 0) ids = prefix;
      ids.resize(std::min(ids.size(), wanted));
      while (ids.size() < wanted) ids.push_back(random_token());
      text = tokenizer_->decode(ids);
      Result<std::vector<std::int32_t>> again = tokenizer_->encode(text);
      if (!again.ok()) break;
      ids = std::move(*again);
    }
    return single(std::move(text), std::ssize(ids), output);
  }

  Result<std::vector<Prompt>> random() {
    std::vector<std::int32_t> prefix;
    while (tokenizer_ != nullptr && std::ssize(prefix) < options_.random_prefix)
      prefix.push_back(random_token());
    std::vector<Prompt> prompts;
    for (std::int64_t i = 0; i < options_.prompts; ++i) {
      const std::int64_t input = random_length(options_.random_input);
      prompts.push_back(random_prompt(prefix, input, random_length(options_.random_output)));
    }
    return prompts;
  }

  /// Makes one prompt a turn.
  void add_session(std::vector<std::string> turns,
                   const std::vector<std::int64_t>& outputs,
                   std::vector<Prompt>& prompts) {
    const auto shared = std::make_shared<const std::vector<std::string>>(std::move(turns));
    for (std::size_t turn = 0; turn < shared->size(); ++turn)
      prompts.push_back({.turns = shared,
                         .turn = turn,
                         .tokens = 0,
                         .output_tokens = outputs[turn],
                         .follows = turn == 0 ? -1 : std::ssize(prompts) - 1});
  }

  Result<std::vector<Prompt>> random_sessions() {
    std::vector<Prompt> prompts;
    while (std::ssize(prompts) < options_.prompts) {
      std::vector<std::string> turns;
      std::vector<std::int64_t> outputs;
      for (std::int64_t i = 0; i < options_.turns; ++i) {
        const std::int64_t input = random_length(options_.random_input);
        outputs.push_back(random_length(options_.random_output));
        turns.push_back(random_prompt({}, input, 1).turns->front());
      }
      add_session(std::move(turns), outputs, prompts);
    }
    return prompts;
  }

  /// {"prompt": …, "output_tokens": …} a line; prompts are sent as they stand.
  Result<std::vector<Prompt>> custom() {
    std::vector<Prompt> prompts;
    std::int64_t number = 0;
    for (std::size_t begin = 0; begin < text_.size();) {
      const std::size_t end = std::min(text_.find('\n', begin), text_.size());
      const std::string_view line = std::string_view(text_).substr(begin, end - begin);
      begin = end + 1;
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const Result<Json> json = chat::parse_json(line);
      const Json* prompt = json.ok() ? json->given("prompt") : nullptr;
      if (prompt == nullptr || !prompt->is_string())
        return make_error(ErrorCode::corrupt_data, "{}, line {}: expected {{\"prompt\": \"…\"}}",
                          options_.path, number);
      std::int64_t output = options_.custom_output;
      if (output < 0) {
        const Json* given = json->given("output_tokens");
        output = given != nullptr ? given->as_integer().value_or(0) : 0;
        if (output < 1)
          return make_error(ErrorCode::corrupt_data,
                            "{}, line {}: expected \"output_tokens\", 1 or more, or "
                            "--custom-output-len N for all",
                            options_.path, number);
      }
      prompts.push_back(single(prompt->text, count(prompt->text), output));
    }
    return as_many_as_wanted(std::move(prompts));
  }

  /// The texts of a conversation, the user's first.
  static std::vector<std::string> texts_of(const Json& conversation) {
    std::vector<std::string> texts;
    const Json* turns = conversation.given("conversations");
    if (turns == nullptr || !turns->is_array()) return texts;
    for (const Json& turn : turns->items) {
      const Json* value = turn.given("value");
      texts.push_back(value != nullptr ? value->text : std::string());
    }
    return texts;
  }

  Result<std::vector<Prompt>> sharegpt() {
    std::vector<Prompt> prompts;
    for (const Json& conversation : conversations_.items) {
      std::vector<std::string> texts = texts_of(conversation);
      if (texts.size() < 2) continue;
      const std::int64_t tokens = count(texts[0]);
      const std::int64_t output =
          options_.sharegpt_output ? *options_.sharegpt_output : count(texts[1]);
      if (tokens < kShareGptTokensMin || tokens > kShareGptPromptMax ||
          tokens + output > kShareGptTotalMax ||
          (!options_.sharegpt_output && output < kShareGptTokensMin))
        continue;
      prompts.push_back(single(std::move(texts[0]), tokenizer_ == nullptr ? 0 : tokens, output));
    }
    return as_many_as_wanted(std::move(prompts));
  }

  Result<std::vector<Prompt>> sessions() {
    if (options_.shuffle) std::ranges::shuffle(conversations_.items, draw_);
    std::vector<Prompt> prompts;
    for (const Json& conversation : conversations_.items) {
      const std::vector<std::string> texts = texts_of(conversation);
      std::vector<std::string> turns;
      std::vector<std::int64_t> outputs;
      for (std::size_t i = 0; i + 1 < texts.size() && std::ssize(turns) < options_.turns; i += 2) {
        turns.push_back(texts[i]);
        outputs.push_back(std::max<std::int64_t>(
            options_.sharegpt_output ? *options_.sharegpt_output : count(texts[i + 1]), 1));
      }
      if (!turns.empty()) add_session(std::move(turns), outputs, prompts);
      if (std::ssize(prompts) >= options_.prompts) break;
    }
    if (prompts.empty()) return nothing_usable();
    return prompts;
  }

  Error nothing_usable() const {
    return make_error(ErrorCode::invalid_argument,
                      "{}: nothing in it is usable as --dataset-name {}", options_.path,
                      options_.name);
  }

  Result<std::vector<Prompt>> as_many_as_wanted(std::vector<Prompt> prompts) {
    if (prompts.empty()) return nothing_usable();
    if (options_.shuffle) std::ranges::shuffle(prompts, draw_);
    const auto wanted = static_cast<std::size_t>(options_.prompts);
    const std::size_t distinct = prompts.size();
    while (options_.oversample && prompts.size() < wanted)
      prompts.push_back(prompts[prompts.size() % distinct]);
    prompts.resize(std::min(prompts.size(), wanted));
    return prompts;
  }

  const DatasetOptions& options_;
  const Tokenizer* tokenizer_;
  std::mt19937_64 draw_;
  std::string text_;
  Json conversations_;
};

}  // namespace

Result<std::vector<Prompt>> make_prompts(const DatasetOptions& options,
                                         const Tokenizer* tokenizer) {
  return PromptMaker(options, tokenizer).make();
}

}  // namespace koho::bench
