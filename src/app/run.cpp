// SPDX-License-Identifier: Apache-2.0
// `koho run`: answers one prompt, or chats on the terminal.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <unistd.h>

#include "app/answer_display.h"
#include "app/command.h"
#include "app/constraint_flags.h"
#include "app/line_reader.h"
#include "app/rank_flags.h"
#include "app/sampling_flags.h"
#include "app/token_id_file.h"
#include "base/arithmetic.h"
#include "base/json_writer.h"
#include "chat/json.h"
#include "chat/message.h"
#include "runtime/runtime.h"
#include "tokenizer/utf8.h"

namespace koho::app {
namespace {

struct RunOptions {
  std::string model;
  std::string prompt;
  std::string chat;
  std::string prompt_ids;
  std::string system;
  std::string chat_template = "auto";
  std::string device = "auto";
  RankFlags spread;
  bool deterministic = false;
  bool no_thinking = false;
  bool allow_special = false;
  bool json = false;
  std::int32_t context = 0;
  std::int64_t threads = 0;
  SamplingFlags sampling;
  ConstraintFlags constraint;
};

constexpr int kExitInterrupted = 130;                          // as shells report it: 128 + SIGINT
constexpr int kLookMs = 50;                                    // interval of checks for Ctrl-C
constexpr std::size_t kLineBytesMax = std::size_t{16} << 20U;  // typed or pasted

// Set by Ctrl-C; global because signal handlers are.
std::atomic<bool> interrupted{false};

extern "C" void on_interrupt(int /*signal*/) {
  interrupted.store(true);
}

/// While this object exists, Ctrl-C stops the running answer instead of the program.
class InterruptGuard {
 public:
  InterruptGuard() {
    interrupted.store(false);
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    action.sa_flags = SA_RESTART;  // or a write to the terminal that it meets fails
    sigaction(SIGINT, &action, &previous_);
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  ~InterruptGuard() { sigaction(SIGINT, &previous_, nullptr); }

 private:
  struct sigaction previous_ {};
};

Status check_utf8(const char* what, const std::string& text) {
  const std::size_t valid = utf8_valid_bytes(text);
  if (valid == text.size()) return {};
  return make_error(ErrorCode::invalid_argument, "{} is not UTF-8 at byte {}", what, valid);
}

chat::Message message(const std::string& role, const std::string& content) {
  chat::Message made;
  made.role = role;
  made.content = chat::Json::string(content);
  return made;
}

/// A complete answer.
struct Answer {
  std::vector<std::int32_t> ids;  // a stop token included
  std::string text;               // without stop token, stop string and special tokens
  std::string finish_reason;      // "stop", "length" or "abort"
  Usage usage;
  Timings timings;

  std::int64_t prefill_tokens() const { return usage.prompt_tokens - usage.cached_tokens; }
  double prefill_tokens_per_s() const { return rate(prefill_tokens(), timings.prefill_us); }
  double decode_tokens_per_s() const {
    return rate(static_cast<std::int64_t>(ids.size()) - 1, timings.decode_us);
  }

  static double rate(std::int64_t tokens, std::int64_t us) {
    return us > 0 ? static_cast<double>(tokens) * 1e6 / static_cast<double>(us) : 0.0;
  }
};

Result<Answer> answer(Runtime& runtime,
                      std::span<const std::int32_t> prompt,
                      const SamplingFlags& flags,
                      const std::optional<Constraint>& constraint,
                      const std::function<void(std::string_view)>& show) {
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
  request.max_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(request.max_tokens, room));
  KOHO_TRY_ASSIGN(const std::shared_ptr<OutputStream> stream,
                  runtime.engine().submit(std::move(request)));
  Answer answer;
  OutputEvent event;
  while (true) {
    const OutputStream::Read read = stream->wait(event, std::int64_t{kLookMs} * 1000);
    if (read == OutputStream::Read::done) break;
    if (interrupted.load()) runtime.engine().cancel(stream);
    if (read == OutputStream::Read::nothing) continue;
    if (event.token >= 0) answer.ids.push_back(event.token);
    if (!event.text.empty()) show(event.text);
    answer.text += event.text;
    if (event.finish == FinishReason::stop) answer.finish_reason = "stop";
    if (event.finish == FinishReason::length) answer.finish_reason = "length";
  }
  const Summary& summary = stream->summary();
  if (summary.ending == Ending::failed) return summary.error;
  if (summary.ending == Ending::cancelled) answer.finish_reason = "abort";
  answer.usage = summary.usage;
  answer.timings = summary.timings;
  return answer;
}

/// Runtime options for one sequence at a time.
Result<std::unique_ptr<Runtime>> open(const RunOptions& options,
                                      LoadedModel model,
                                      std::optional<LoadedText> text,
                                      std::int64_t context) {
  RuntimeOptions runtime;
  KOHO_TRY_ASSIGN(runtime.device.kind, choose_device(options.device));
  options.spread.apply(runtime);
  runtime.device.threads = options.threads;
  runtime.device.deterministic = options.deterministic;
  runtime.sequences_max = 1;
  runtime.grammars.compile_us_max = kCompileUsMax;
  runtime.context_max = static_cast<std::int32_t>(context);
  // The previous answer's pages stay in the prefix cache while the next one runs.
  runtime.kv_pages = static_cast<std::int32_t>(2 * ceil_div(context, kPageTokens));
  return Runtime::start(std::move(model), std::move(text), runtime);
}

chat::Conversation start_conversation(const RunOptions& options) {
  chat::Conversation conversation;
  conversation.add_generation_prompt = true;
  if (options.no_thinking) conversation.enable_thinking = false;
  if (!options.system.empty()) conversation.messages.push_back(message("system", options.system));
  return conversation;
}

Result<std::vector<std::int32_t>> prompt_ids(const RunOptions& options,
                                             const std::optional<LoadedText>& text) {
  if (!options.prompt_ids.empty()) return read_token_id_file(options.prompt_ids);
  if (!text)
    return make_error(ErrorCode::not_found,
                      "{} has no tokenizer.json; give token ids with --prompt-ids", options.model);
  if (!options.chat.empty()) {
    chat::Conversation conversation = start_conversation(options);
    conversation.messages.push_back(message("user", options.chat));
    return text->encode(conversation);
  }
  const Tokenizer& tokenizer = text->tokenizer;
  return options.allow_special ? tokenizer.encode_with_special(options.prompt)
                               : tokenizer.encode(options.prompt);
}

std::string json_ids(std::span<const std::int32_t> ids) {
  std::string text = "[";
  for (const std::int32_t id : ids) text += (text.size() > 1 ? "," : "") + std::to_string(id);
  return text + "]";
}

std::string json_line(std::span<const std::int32_t> prompt, const Answer& answer, double load_s) {
  std::string text;
  append_json_string(text, answer.text);
  const auto ms = [](std::int64_t us) { return static_cast<double>(us) / 1e3; };
  return fmt::format(
      R"({{"prompt_ids":{},"ids":{},"text":{},"finish_reason":"{}","timings":{{"load_ms":{:.3f},"prefill_ms":{:.3f},)"
      R"("prefill_tokens":{},"cached_tokens":{},"prefill_tokens_per_s":{:.2f},"decode_ms":{:.3f},"decode_tokens":{},)"
      R"("decode_tokens_per_s":{:.2f}}}}})",
      json_ids(prompt), json_ids(answer.ids), text, answer.finish_reason, load_s * 1e3,
      ms(answer.timings.prefill_us), answer.prefill_tokens(), answer.usage.cached_tokens,
      answer.prefill_tokens_per_s(), ms(answer.timings.decode_us),
      std::max<std::int64_t>(static_cast<std::int64_t>(answer.ids.size()) - 1, 0),
      answer.decode_tokens_per_s());
}

void print_rates(const Answer& answer, double load_s) {
  // The prefill samples the first token, so a single token has no decode rate.
  const std::string rate =
      answer.ids.size() > 1 ? fmt::format(" at {:.1f} tok/s", answer.decode_tokens_per_s()) : "";
  std::fprintf(stderr,
               "[%lld prompt tokens (%lld cached) at %.0f tok/s, %zu generated%s, "
               "loaded in %.0f ms]\n",
               static_cast<long long>(answer.usage.prompt_tokens),
               static_cast<long long>(answer.usage.cached_tokens), answer.prefill_tokens_per_s(),
               answer.ids.size(), rate.c_str(), load_s * 1e3);
}

void print_piece(std::string_view piece, bool terminal) {
  const std::string shown = terminal ? terminal_text(piece) : std::string(piece);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

/// Flushes standard output; a full disk is noticed only here.
Status finish_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return make_error(ErrorCode::io_error, "standard output could not be written");
}

/// Returns the exit code.
Result<int> answer_once(const RunOptions& options,
                        LoadedModel model,
                        std::optional<LoadedText> text) {
  KOHO_TRY_ASSIGN(const std::optional<Constraint> constraint, options.constraint.read());
  KOHO_TRY_ASSIGN(const std::vector<std::int32_t> prompt, prompt_ids(options, text));
  const std::int64_t wanted =
      static_cast<std::int64_t>(prompt.size()) + options.sampling.tokens_max;
  const std::int64_t context = options.context > 0
                                   ? options.context
                                   : std::min(wanted, model.config.max_position_embeddings);
  KOHO_TRY_ASSIGN(const std::unique_ptr<Runtime> runtime,
                  open(options, std::move(model), std::move(text), context));
  const InterruptGuard guard;
  std::optional<AnswerDisplay> chat;
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  if (!options.chat.empty() && !options.json && terminal)
    chat.emplace(start_conversation(options), runtime->text()->style, true);
  const auto show = [&](std::string_view piece) {
    if (chat)
      chat->show(piece);
    else if (!options.json)
      print_piece(piece, terminal);
  };
  KOHO_TRY_ASSIGN(const Answer said, answer(*runtime, prompt, options.sampling, constraint, show));
  if (options.json) {
    std::printf("%s\n", json_line(prompt, said, runtime->load_s()).c_str());
  } else {
    if (chat) chat->finish();
    std::printf("\n");
    std::fflush(stdout);
    print_rates(said, runtime->load_s());
  }
  KOHO_TRY(finish_output());
  return said.finish_reason == "abort" ? kExitInterrupted : 0;
}

/// The next typed line; nothing at the end of the input. Ctrl-C discards the line.
Result<std::optional<std::string>> ask(LineReader& keyboard) {
  while (true) {
    interrupted.store(false);
    std::fprintf(stderr, "> ");
    while (!interrupted.load()) {
      std::string_view line;
      KOHO_TRY_ASSIGN(const LineReader::State state, keyboard.next(line, kLookMs));
      if (state == LineReader::State::line) return std::optional<std::string>(line);
      if (state == LineReader::State::too_long)
        std::fprintf(stderr, "koho: error: the line is longer than %zu bytes, the limit\n> ",
                     kLineBytesMax);
      if (state == LineReader::State::end) {
        std::fprintf(stderr, "\n");
        return std::optional<std::string>();
      }
    }
    std::fprintf(stderr, "\n");
  }
}

Status converse(const RunOptions& options, LoadedModel model, std::optional<LoadedText> text) {
  constexpr std::int64_t kContextDefault = 8192;
  KOHO_TRY_ASSIGN(const std::optional<Constraint> constraint, options.constraint.read());
  const std::int64_t context =
      options.context > 0 ? options.context
                          : std::min(kContextDefault, model.config.max_position_embeddings);
  KOHO_TRY_ASSIGN(const std::unique_ptr<Runtime> runtime,
                  open(options, std::move(model), std::move(text), context));
  std::fprintf(stderr, "Chat with %s. Ctrl-C stops an answer, Ctrl-D ends.\n",
               options.model.c_str());
  chat::Conversation conversation = start_conversation(options);
  LineReader keyboard(STDIN_FILENO, "standard input", kLineBytesMax);
  const InterruptGuard guard;
  while (true) {
    KOHO_TRY_ASSIGN(const std::optional<std::string> typed, ask(keyboard));
    if (!typed) return {};
    const std::string& line = *typed;
    if (line.empty()) continue;
    if (const Status good = check_utf8("the line", line); !good.ok()) {
      std::fprintf(stderr, "koho: error: %s\n", good.error().message.c_str());
      continue;
    }
    conversation.messages.push_back(message("user", line));
    KOHO_TRY_ASSIGN(const std::vector<std::int32_t> prompt, runtime->text()->encode(conversation));
    AnswerDisplay display(conversation, runtime->text()->style, isatty(STDOUT_FILENO) == 1);
    const Result<Answer> said = answer(*runtime, prompt, options.sampling, constraint,
                                       [&display](std::string_view piece) { display.show(piece); });
    if (!said.ok()) {
      std::fprintf(stderr, "koho: error: %s\n", said.error().message.c_str());
      conversation.messages.pop_back();
      continue;
    }
    display.finish();
    std::printf("\n");
    KOHO_TRY(finish_output());
    print_rates(*said, runtime->load_s());
    conversation.messages.push_back(display.message());
  }
}

/// Returns the exit code.
Result<int> run(const RunOptions& options) {
  const int given =
      int{!options.prompt.empty()} + int{!options.chat.empty()} + int{!options.prompt_ids.empty()};
  if (given > 1)
    return make_error(ErrorCode::invalid_argument,
                      "give only one of PROMPT, --chat and --prompt-ids, found {}", given);
  if (given == 0 && isatty(STDIN_FILENO) == 0)
    return make_error(ErrorCode::invalid_argument,
                      "no prompt: give PROMPT, --chat TEXT or --prompt-ids FILE");
  if (given == 0 && options.json)
    return make_error(ErrorCode::invalid_argument,
                      "--json needs PROMPT, --chat TEXT or --prompt-ids FILE: a chat on the "
                      "terminal has no single answer");
  KOHO_TRY(check_utf8("PROMPT", options.prompt));
  KOHO_TRY(check_utf8("--chat", options.chat));
  KOHO_TRY(check_utf8("--system", options.system));
  for (const std::string& stop : options.sampling.stop) {
    if (stop.empty()) return make_error(ErrorCode::invalid_argument, "--stop must not be empty");
    KOHO_TRY(check_utf8("--stop", stop));
  }
  KOHO_TRY_ASSIGN(LoadedModel model, load_model(options.model));
  std::optional<LoadedText> text;
  if (has_tokenizer(options.model)) {
    const bool plain = !options.prompt.empty() || !options.prompt_ids.empty();
    KOHO_TRY_ASSIGN(text, load_text(options.model, options.chat_template,
                                    plain ? TextUse::plain : TextUse::chat));
  }
  if (given > 0) return answer_once(options, std::move(model), std::move(text));
  if (text) {
    KOHO_TRY(converse(options, std::move(model), std::move(text)));
    return 0;
  }
  return make_error(ErrorCode::not_found, "{} has no tokenizer.json, which a chat needs",
                    options.model);
}

}  // namespace

Runner add_run(CommandLine& command) {
  auto options = std::make_shared<RunOptions>();
  command.add_option("--model", options->model, "Model directory")->required();
  command.add_option("prompt", options->prompt, "Plain text to continue");
  command.add_option("--chat", options->chat,
                     "A user message, rendered with the model's chat template");
  command.add_option("--prompt-ids", options->prompt_ids, "File with a JSON array of token ids");
  command.add_option("--system", options->system, "System message before the chat");
  command.add_flag("--no-thinking", options->no_thinking, "Answer without reasoning first");
  command.add_flag("--allow-special", options->allow_special,
                   "Recognise control tokens (<|user|>, ...) in PROMPT");
  command
      .add_option("--chat-template", options->chat_template,
                  "Chat template: auto, glm-4.7, glm-4.6 or glm-4.5")
      ->capture_default_str();
  command
      .add_option("--context", options->context,
                  "Largest number of tokens of prompt and answer together; 0 = as needed")
      ->check(at_least(0));
  command.add_option("--device", options->device, "auto, cpu or cuda")->capture_default_str();
  add_rank_flags(command, options->spread);
  command.add_flag(
      "--deterministic", options->deterministic,
      "Batch-invariant kernels: the result does not depend on the number of tokens (CUDA)");
  command.add_option("--threads", options->threads, "CPU threads; 0 = all cores")
      ->check(at_least(0));
  command.add_flag(
      "--json", options->json,
      "Print one line of JSON at the end instead of text; finish_reason is stop, length, or "
      "abort after Ctrl-C");
  add_sampling_flags(command, options->sampling, 512);
  add_constraint_flags(command, options->constraint);
  command.footer(
      "Ctrl-C stops the answer; the exit code is then 130. A chat on the terminal goes on.\n\n"
      "Examples:\n"
      "  koho run --model models/tiny --chat \"What is the capital of France?\"\n"
      "  koho run --model models/tiny \"Once upon a time\" --temperature 0.7 --seed 1 --max-tokens "
      "64\n"
      "  koho run --model models/tiny --chat \"Name a city.\" --json-schema city.json\n"
      "  koho run --model models/tiny --prompt-ids ids.json --temperature 0 --json\n"
      "  koho run --model models/tiny            (a chat on the terminal)");
  return [options]() -> Status {
    KOHO_TRY_ASSIGN(const int exit_code, run(*options));
    if (exit_code != 0) std::exit(exit_code);  // all is written and let go
    return {};
  };
}

}  // namespace koho::app
