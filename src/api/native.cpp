// SPDX-License-Identifier: Apache-2.0
#include "api/native.h"

#include <vector>

#include "api/completions.h"
#include "api/json_text.h"
#include "api/openai_responder.h"

namespace koho::api {
namespace {

using chat::Json;

class NativeResponder final : public OpenAiResponder {
 public:
  NativeResponder(const GenerationRequest& request, const Model& model)
      : OpenAiResponder(request, model), choices_(num_choices()) {}

  void begin(const Started& started, std::string& /*out*/) override {
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
    append_float(out, event.logprob);
    out += R"(,"top":[)";
    for (std::size_t i = 0; i < event.top.size(); ++i) {
      out += i == 0 ? "[" : ",[";
      append_integer(out, event.top[i].token);
      out += ',';
      append_float(out, event.top[i].logprob);
      out += ']';
    }
    out += "]}";
  }

  void append_choice(std::size_t index, std::string& out) const override {
    const Choice& choice = choices_[index];
    out += R"({"index":)";
    append_integer(out, static_cast<std::int64_t>(index));
    out += R"(,"ids":)";
    append_ids(out, choice.ids);
    out += R"(,"text":)";
    chat::append_json_string(out, choice.text);
    if (options().logprobs) out += R"(,"logprobs":[)" + choice.logprobs + "]";
    out += R"(,"finish_reason":)";
    append_finish(out, choice.finish);
    if (!choice.stop_reason.empty()) out += R"(,"stop_reason":)" + choice.stop_reason;
    out += '}';
  }

  std::vector<Choice> choices_;
};

}  // namespace

Refusal read_generate(const Json& body, const Model& model, GenerationRequest& request) {
  Json made = Json::object();
  for (std::size_t i = 0; i < body.keys.size(); ++i) {
    const std::string& key = body.keys[i];
    const std::string_view name = key == "ids" || key == "input_ids" ? std::string_view("prompt")
                                  : key == "max_new_tokens" ? std::string_view("max_tokens")
                                                            : std::string_view(key);
    if (made.find(name) != nullptr)
      return wrong_field(key, key + ": the same is given under another name");
    made.set(name, body.items[i]);
  }
  if (made.find("model") == nullptr) made.set("model", Json::string(model.names.front()));
  if (Refusal refused = read_completion(made, model, request)) return refused;
  request.output.include_usage = request.output.timings = true;  // always told
  return {};
}

std::unique_ptr<Responder> respond_generate(const GenerationRequest& request, const Model& model) {
  return std::make_unique<NativeResponder>(request, model);
}

}  // namespace koho::api
