// SPDX-License-Identifier: Apache-2.0
#include "api/native.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "api/completions.h"
#include "api/field_table.h"
#include "api/json_text.h"
#include "api/openai_responder.h"
#include "base/json_writer.h"

namespace koho::api {
namespace {

using chat::Json;

class NativeResponder final : public OpenAiResponder {
 public:
  NativeResponder(const GenerationRequest& request, const Model& model)
      : OpenAiResponder(request, model), choices_(num_choices()) {}

  void begin(const AnswerStart& started, std::string& /*out*/) override {
    head() = R"({"id":")" + started.id + '"';
  }

  void piece(const Piece& piece, std::string& out) override {
    Choice& choice = choices_[static_cast<std::size_t>(piece.choice)];
    const OutputEvent& event = *piece.event;
    if (event.token >= 0) {
      choice.ids.push_back(event.token);
      if (options().logprobs) append_logprob(choice.logprobs, event);
    }
    choice.text += piece.text;
    if (piece.finish != Finish::none) {
      choice.finish = piece.finish;
      append_stop_reason(choice.stop_reason, piece, model());
    }
    if (!streams()) return;
    out += "data: ";
    append_choice(static_cast<std::size_t>(piece.choice), out);
    out += "\n\n";
    choice.ids.clear();
    choice.text.clear();
    choice.logprobs.clear();
  }

 private:
  struct Choice {
    std::vector<Token> ids;
    std::string text;
    std::string logprobs;  // entries, as JSON
    Finish finish = Finish::none;
    std::string stop_reason;
  };

  /// {"logprob", "top": [[id, logprob], …]}, after a comma unless it is the first.
  static void append_logprob(std::string& out, const OutputEvent& event) {
    out += out.empty() ? R"({"logprob":)" : R"(,{"logprob":)";
    append_json_float(out, event.logprob);
    out += R"(,"top":[)";
    for (std::size_t i = 0; i < event.top.size(); ++i) {
      out += i == 0 ? "[" : ",[";
      append_json_integer(out, event.top[i].token);
      out += ',';
      append_json_float(out, event.top[i].logprob);
      out += ']';
    }
    out += "]}";
  }

  void append_choice(std::size_t index, std::string& out) const override {
    const Choice& choice = choices_[index];
    out += R"({"index":)";
    append_json_integer(out, static_cast<std::int64_t>(index));
    out += R"(,"ids":)";
    append_ids(out, choice.ids);
    out += R"(,"text":)";
    append_json_string(out, choice.text);
    if (options().logprobs) out += R"(,"logprobs":[)" + choice.logprobs + "]";
    out += R"(,"finish_reason":)";
    append_finish(out, choice.finish);
    if (!choice.stop_reason.empty()) out += R"(,"stop_reason":)" + choice.stop_reason;
    out += '}';
  }

  std::vector<Choice> choices_;
};

struct Alias {
  std::string_view given;
  std::string_view name;
};

constexpr Alias kAliases[] = {{"ids", "prompt"},
                              {"input_ids", "prompt"},
                              {"text", "prompt"},
                              {"max_new_tokens", "max_tokens"},
                              {"min_new_tokens", "min_tokens"}};

/// Translates a body with koho's or SGLang's field names to one of /v1/completions, and field names
/// in errors back to those of the client.
class Translation {
 public:
  Json& made() { return made_; }

  /// Adds the members of `object`, which is at `path`; members of sampling_params become members of
  /// the body.
  Refusal add(const Json& object, const std::string& path) {
    for (std::size_t i = 0; i < object.keys.size(); ++i) {
      const Json& value = object.items[i];
      const std::string& key = object.keys[i];
      const std::string place = path.empty() ? key : path + "." + key;
      if (path.empty() && key == "sampling_params") {
        if (value.is_null()) continue;
        if (!value.is_object()) return must_be({.name = place, .json = value}, "an object");
        if (Refusal refused = add(value, place)) return refused;
        continue;
      }
      const std::string_view name = name_of(key);
      const bool known = made_.find(name) != nullptr;
      if (value.is_null() && (known || !path.empty())) continue;
      // A duplicate of it is not refused: of the body itself parse_body() makes it null.
      if (known && !reads_of_generate(key)) continue;
      if (made_.given(name) != nullptr)
        return wrong_field(place, fmt::format("{}: {} has the same meaning and is given already",
                                              place, given(name)));
      made_.set(name, value);
      if (known) {  // as null
        *std::ranges::find(places_, given(name)) = place;
      } else {
        places_.push_back(place);
      }
    }
    return {};
  }

  /// The place of `name` in the body.
  std::string given(std::string_view name) const {
    for (std::size_t i = 0; i < places_.size(); ++i)
      if (made_.keys[i] == name) return places_[i];
    return std::string(name);
  }

  ApiError as_given(ApiError error) const {
    const std::string place = given(error.param);
    if (error.message.starts_with(error.param)) error.message.replace(0, error.param.size(), place);
    error.param = place;
    return error;
  }

 private:
  static std::string_view name_of(std::string_view key) {
    const auto found = std::ranges::find(kAliases, key, &Alias::given);
    return found != std::end(kAliases) ? found->name : key;
  }

  Json made_ = Json::object();
  std::vector<std::string> places_;  // of the members of made_
};

}  // namespace

std::vector<std::string_view> generate_field_names() {
  std::vector<std::string_view> names{"sampling_params"};
  for (const Alias& alias : kAliases) names.push_back(alias.given);
  return names;
}

bool reads_of_generate(std::string_view name) {
  return name == "sampling_params" ||
         std::ranges::find(kAliases, name, &Alias::given) != std::end(kAliases) ||
         reads_of_completions(name);
}

Refusal read_generate(const Json& body, const Model& model, GenerationRequest& request) {
  Translation translation;
  if (Refusal refused = translation.add(body, {})) return refused;
  if (Refusal refused = read_completion(translation.made(), model, request))
    return translation.as_given(*std::move(refused));
  if (Refusal refused = refuse_echo(request, translation.given("echo"))) return refused;
  for (std::string& name : request.unknown_fields) name = translation.given(name);
  request.constraint_field = translation.given(request.constraint_field);
  request.output.include_usage = request.output.timings = true;  // always part of the answer
  return {};
}

std::unique_ptr<Responder> respond_generate(const GenerationRequest& request, const Model& model) {
  return std::make_unique<NativeResponder>(request, model);
}

}  // namespace koho::api
