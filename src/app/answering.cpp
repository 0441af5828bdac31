// SPDX-License-Identifier: Apache-2.0
#include "app/answering.h"

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "api/model.h"
#include "app/load_bar.h"
#include "app/model_flags.h"
#include "base/arithmetic.h"
#include "base/mapped_file.h"
#include "chat/json.h"
#include "tokenizer/utf8.h"

namespace koho::app {
namespace {

constexpr int kLookMs = 50;  // interval of checks for Ctrl-C
constexpr std::uint64_t kToolsBytesMax = 8U << 20U;

// Set by Ctrl-C; global because signal handlers are.
std::atomic<bool> stop_asked{false};

extern "C" void on_interrupt(int /*signal*/) {
  stop_asked.store(true);
}

double rate(std::int64_t tokens, std::int64_t us) {
  return us > 0 ? static_cast<double>(tokens) * 1e6 / static_cast<double>(us) : 0.0;
}

}  // namespace

void add_answering_flags(CommandLine& command, AnsweringFlags& flags) {
  command
      .add_option("-m,--model", flags.model, "Model directory, or a name in Hugging Face's cache")
      ->type_name("DIR");
  command.add_option("--system", flags.system, "System message before the chat");
  command
      .add_option(
          "--tools", flags.tools,
          "File with a JSON array of tools that the model may call, as OpenAI has them; calls "
          "are shown, not made")
      ->type_name("FILE");
  command.add_flag("--no-thinking", flags.no_thinking, "Answer without reasoning first");
  command.add_flag("--show-reasoning", flags.show_reasoning,
                   "Print the reasoning, too; on a terminal that is so, dimmed");
  command.add_flag("--hide-reasoning", flags.hide_reasoning, "Print no reasoning on a terminal");
  command
      .add_option("--chat-template", flags.chat_template,
                  "Chat template: auto, glm-4.7, glm-4.6 or glm-4.5")
      ->capture_default_str();
  command
      .add_option("--context", flags.context,
                  "Largest number of tokens of prompt and answer together; 0 = what the model has, "
                  "within memory")
      ->check(at_least(0));
  command.add_option("--device", flags.device, "auto, cpu or cuda")->capture_default_str();
  add_rank_flags(command, flags.spread);
  command.add_flag(
      "--deterministic,!--no-deterministic", flags.deterministic,
      "The result does not depend on the number of tokens (CUDA; the default on Hopper)");
  command.add_option("--threads", flags.threads, kThreadsHelp)->check(at_least(-1));
  add_sampling_flags(command, flags.sampling);
  add_constraint_flags(command, flags.constraint);
}

Status check_utf8(const char* what, const std::string& text) {
  const std::size_t valid = utf8_valid_bytes(text);
  if (valid == text.size()) return {};
  return make_error(ErrorCode::invalid_argument, "{} is not UTF-8 at byte {}", what, valid);
}

Status check_flags(const AnsweringFlags& flags) {
  if (flags.model.empty())
    return make_error(ErrorCode::invalid_argument,
                      "the model is missing: give its directory first, or with -m");
  KOHO_TRY(check_utf8("--system", flags.system));
  for (const std::string& stop : flags.sampling.stop) {
    if (stop.empty()) return make_error(ErrorCode::invalid_argument, "--stop must not be empty");
    KOHO_TRY(check_utf8("--stop", stop));
  }
  return {};
}

chat::Message make_message(const std::string& role, const std::string& content) {
  chat::Message made;
  made.role = role;
  made.content = chat::Json::string(content);
  return made;
}

Result<chat::Conversation> start_conversation(const AnsweringFlags& flags) {
  chat::Conversation conversation;
  conversation.add_generation_prompt = true;
  if (flags.no_thinking) conversation.enable_thinking = false;
  if (!flags.system.empty()) conversation.messages.push_back(make_message("system", flags.system));
  if (flags.tools.empty()) return conversation;
  KOHO_TRY_ASSIGN(const std::string text, read_file(flags.tools, kToolsBytesMax));
  Result<chat::Json> tools = chat::parse_json(text);
  if (!tools.ok()) return std::move(tools).error().with_context(flags.tools);
  if (!tools->is_array())
    return make_error(ErrorCode::invalid_argument, "{} must have a JSON array of tools",
                      flags.tools);
  for (const chat::Json& tool : tools->items) {
    if (!tool.is_object())
      return make_error(ErrorCode::invalid_argument, "{}: a tool must be a JSON object",
                        flags.tools);
    conversation.tools.push_back(tool);
  }
  return conversation;
}

Result<std::unique_ptr<Runtime>> open_runtime(const AnsweringFlags& flags,
                                              LoadedModel model,
                                              std::optional<LoadedText> text,
                                              std::int64_t context) {
  RuntimeOptions runtime;
  KOHO_TRY_ASSIGN(runtime.device.kind, choose_device(flags.device));
  flags.spread.apply(runtime);
  runtime.device.threads = flags.threads;
  runtime.device.deterministic = flags.deterministic;
  runtime.sequences_max = 1;
  runtime.grammars.compile_us_max = kCompileUsMax;
  if (context == 0) context = flags.context;
  runtime.context_max = static_cast<std::int32_t>(context);
  if (context > 0) runtime.kv_pages = static_cast<std::int32_t>(2 * ceil_div(context, kPageTokens));
  KOHO_TRY(choose_ranks_and_log(model, runtime));
  LoadBar bar;
  runtime.device.progress = bar.progress();
  return Runtime::start(std::move(model), std::move(text), runtime);
}

InterruptGuard::InterruptGuard() {
  clear();
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;  // or a write to the terminal that it meets fails
  sigaction(SIGINT, &action, &previous_);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &previous_, nullptr);
}

bool InterruptGuard::interrupted() {
  return stop_asked.load();
}

void InterruptGuard::clear() {
  stop_asked.store(false);
}

double Answer::prefill_tokens_per_s() const {
  return rate(prefill_tokens(), timings.prefill_us);
}

double Answer::decode_tokens_per_s() const {
  return rate(static_cast<std::int64_t>(ids.size()) - 1, timings.decode_us);
}

Result<Answer> answer(Runtime& runtime,
                      std::span<const std::int32_t> prompt,
                      const SamplingFlags& flags,
                      const std::optional<Constraint>& constraint,
                      const std::function<void(const OutputEvent&)>& show) {
  Request request = runtime.default_request();
  request.prompt.assign(prompt.begin(), prompt.end());
  flags.apply(request);
  request.starts_in_reasoning = !request.prompt.empty() && request.reasoning_begin >= 0 &&
                                request.prompt.back() == request.reasoning_begin;
  if (constraint) {
    if (runtime.text() == nullptr)
      return make_error(ErrorCode::not_found, "structured output needs the model's tokenizer.json");
    KOHO_TRY_ASSIGN(request.grammar, runtime.grammars().compile(*constraint));
  }
  const auto room = runtime.sizes().context_max - static_cast<std::int64_t>(prompt.size());
  if (room < 1)
    return make_error(
        ErrorCode::invalid_argument,
        "the prompt has {} tokens; the context has room for {} tokens of prompt and answer",
        prompt.size(), runtime.sizes().context_max);
  const bool context_ends_it = flags.tokens_max < 0 || flags.tokens_max > room;
  request.max_tokens = static_cast<std::int32_t>(context_ends_it ? room : flags.tokens_max);
  KOHO_TRY_ASSIGN(const std::shared_ptr<OutputStream> stream,
                  runtime.engine().submit(std::move(request)));
  Answer answer;
  OutputEvent event;
  while (true) {
    const OutputStream::Read read = stream->wait(event, std::int64_t{kLookMs} * 1000);
    if (read == OutputStream::Read::done) break;
    if (InterruptGuard::interrupted()) runtime.engine().cancel(stream);
    if (read == OutputStream::Read::nothing) continue;
    if (event.token >= 0) answer.ids.push_back(event.token);
    show(event);
    answer.text += event.text;
    if (event.finish == FinishReason::stop) answer.finish_reason = "stop";
    if (event.finish == FinishReason::length) answer.finish_reason = "length";
  }
  const Summary& summary = stream->summary();
  if (summary.ending == Ending::failed) return summary.error;
  if (summary.ending == Ending::cancelled) answer.finish_reason = "abort";
  answer.context_is_full = answer.finish_reason == "length" && context_ends_it;
  answer.usage = summary.usage;
  answer.timings = summary.timings;
  return answer;
}

std::string rates_text(const Answer& answer) {
  // The prefill samples the first token, so a single token has no decode rate.
  const std::string rate =
      answer.ids.size() > 1 ? fmt::format(" at {:.1f} tok/s", answer.decode_tokens_per_s()) : "";
  return fmt::format("[{} prompt tokens ({} cached) at {:.0f} tok/s, {} generated{}]",
                     answer.usage.prompt_tokens, answer.usage.cached_tokens,
                     answer.prefill_tokens_per_s(), answer.ids.size(), rate);
}

std::string cut_text(const Answer& answer, const SamplingFlags& flags, const Runtime& runtime) {
  if (answer.finish_reason != "length") return "";
  if (answer.context_is_full)
    return fmt::format("cut: the context of {} tokens is full (--context)",
                       runtime.sizes().context_max);
  return fmt::format("cut after {} tokens (--max-tokens; -1 = until the model is done)",
                     flags.tokens_max);
}

Status finish_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return make_error(ErrorCode::io_error, "standard output could not be written");
}

}  // namespace koho::app
