// SPDX-License-Identifier: Apache-2.0
// `koho run`: answers one prompt.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "app/answering.h"
#include "app/chat_session.h"
#include "app/command.h"
#include "app/model_directory.h"
#include "app/parser_options.h"
#include "app/terminal.h"
#include "app/token_id_file.h"
#include "base/json_writer.h"

namespace koho::app {
namespace {

struct RunOptions {
  AnsweringFlags flags;
  std::string words[2];  // MODEL and PROMPT as they are given
  std::string prompt;
  std::string chat;
  std::string prompt_ids;
  bool plain = false;
  bool allow_special = false;
  bool json = false;

  /// Whether the prompt is a user's message and not text to go on with.
  bool is_chat() const { return !plain && !allow_special && prompt_ids.empty(); }
};

constexpr std::size_t kPromptBytesMax = std::size_t{64} << 20U;

/// Standard input up to its end, without the last newline. Errors: io_error; invalid_argument.
Result<std::string> read_standard_input() {
  std::string text;
  char piece[1U << 16U];
  while (const std::size_t got = std::fread(piece, 1, sizeof piece, stdin)) {
    text.append(piece, got);
    if (text.size() > kPromptBytesMax)
      return make_error(ErrorCode::invalid_argument, "standard input has more than {} bytes",
                        kPromptBytesMax);
  }
  if (std::ferror(stdin) != 0)
    return make_error(ErrorCode::io_error, "standard input could not be read");
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

/// The prompt's text, from the words, --chat or standard input. Errors: invalid_argument.
Status read_prompt(RunOptions& options) {
  const int given =
      int{!options.prompt.empty()} + int{!options.chat.empty()} + int{!options.prompt_ids.empty()};
  if (given > 1)
    return make_error(ErrorCode::invalid_argument,
                      "give only one of PROMPT, --chat and --prompt-ids, found {}", given);
  if (!options.chat.empty() && !options.is_chat())
    return make_error(ErrorCode::invalid_argument,
                      "--chat is a user's message; --plain and --allow-special are for PROMPT");
  if (!options.prompt_ids.empty()) return {};
  if (options.prompt.empty()) options.prompt = options.chat;
  if (options.prompt == "-" || given == 0) {
    KOHO_TRY_ASSIGN(options.prompt, read_standard_input());
  }
  if (options.prompt.empty())
    return make_error(ErrorCode::invalid_argument,
                      "no prompt: give PROMPT, --prompt-ids FILE, or text on standard input (koho "
                      "chat holds a conversation)");
  return check_utf8(options.chat.empty() ? "PROMPT" : "--chat", options.prompt);
}

Result<std::vector<std::int32_t>> prompt_ids(const RunOptions& options,
                                             const std::optional<LoadedText>& text,
                                             chat::Conversation& conversation) {
  if (!options.prompt_ids.empty()) return read_token_id_file(options.prompt_ids);
  if (!text)
    return make_error(ErrorCode::not_found,
                      "{} has no tokenizer.json; give token ids with --prompt-ids",
                      options.flags.model);
  if (options.is_chat()) {
    conversation.messages.push_back(make_message("user", options.prompt));
    return text->encode(conversation);
  }
  const Tokenizer& tokenizer = text->tokenizer;
  return options.allow_special ? tokenizer.encode_with_special(options.prompt)
                               : tokenizer.encode(options.prompt);
}

std::string json_line(std::span<const std::int32_t> prompt,
                      const Answer& answer,
                      const chat::ParsedOutput* parsed,
                      double load_s) {
  std::string text;
  append_json_string(text, parsed != nullptr ? parsed->content : answer.text);
  std::string apart;
  if (parsed != nullptr) {
    apart = R"(,"reasoning":)";
    append_json_string(apart, parsed->reasoning);
    apart += R"(,"tool_calls":)" + calls_json(parsed->calls);
  }
  const auto ms = [](std::int64_t us) { return static_cast<double>(us) / 1e3; };
  return fmt::format(
      R"({{"prompt_ids":[{}],"ids":[{}],"text":{}{},"finish_reason":"{}","timings":{{"load_ms":{:.3f},"prefill_ms":{:.3f},)"
      R"("prefill_tokens":{},"cached_tokens":{},"prefill_tokens_per_s":{:.2f},"decode_ms":{:.3f},"decode_tokens":{},)"
      R"("decode_tokens_per_s":{:.2f}}}}})",
      fmt::join(prompt, ","), fmt::join(answer.ids, ","), text, apart, answer.finish_reason,
      load_s * 1e3, ms(answer.timings.prefill_us), answer.prefill_tokens(),
      answer.usage.cached_tokens, answer.prefill_tokens_per_s(), ms(answer.timings.decode_us),
      std::max<std::int64_t>(static_cast<std::int64_t>(answer.ids.size()) - 1, 0),
      answer.decode_tokens_per_s());
}

void print_piece(std::string_view piece, bool terminal) {
  const std::string shown = terminal ? terminal_text(piece) : std::string(piece);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

/// What a reader of the answer should know beside it, on standard error.
void print_notes(const Answer& said,
                 const chat::ParsedOutput* parsed,
                 const RunOptions& options,
                 const Runtime& runtime) {
  std::string rates = rates_text(said);
  rates.insert(rates.size() - 1, fmt::format(", loaded in {:.0f} ms", runtime.load_s() * 1e3));
  std::fprintf(stderr, "%s\n", rates.c_str());
  const std::string cut = cut_text(said, options.flags.sampling, runtime);
  if (!cut.empty()) std::fprintf(stderr, "koho: %s\n", cut.c_str());
  const bool hidden = !options.flags.reasoning_is_shown().value_or(isatty(STDOUT_FILENO) == 1);
  if (parsed != nullptr && hidden && !parsed->reasoning.empty() && parsed->content.empty() &&
      parsed->calls.empty())
    std::fprintf(stderr, "koho: the answer was all reasoning (--show-reasoning prints it)\n");
}

/// Returns the exit code.
Result<int> run(RunOptions& options) {
  KOHO_TRY(take_model_word(options.flags.model, {&options.words[0], &options.words[1]}));
  options.prompt = options.words[1];
  KOHO_TRY(check_flags(options.flags));
  Result<std::string> found = find_model(options.flags.model);
  if (!found.ok() && options.flags.model.find(' ') != std::string::npos)
    return make_error(found.error().code, "{}; the model comes first: koho run MODEL PROMPT",
                      found.error().message);
  KOHO_TRY_ASSIGN(const std::string directory, std::move(found));
  const bool no_prompt =
      options.prompt.empty() && options.chat.empty() && options.prompt_ids.empty();
  if (no_prompt && isatty(STDIN_FILENO) == 1) {
    if (options.json || !options.is_chat())
      return make_error(
          ErrorCode::invalid_argument,
          "--json, --plain and --allow-special need PROMPT or --prompt-ids FILE: a chat "
          "on the terminal has no single answer");
    return chat_on_terminal(options.flags);
  }
  KOHO_TRY(read_prompt(options));
  KOHO_TRY_ASSIGN(const std::optional<Constraint> constraint, options.flags.constraint.read());
  KOHO_TRY_ASSIGN(LoadedModel model, load_model(directory));
  std::optional<LoadedText> text;
  if (has_tokenizer(directory)) {
    KOHO_TRY_ASSIGN(text, load_text(directory, options.flags.chat_template,
                                    options.is_chat() ? TextUse::chat : TextUse::plain));
  }
  KOHO_TRY_ASSIGN(chat::Conversation conversation, start_conversation(options.flags));
  KOHO_TRY_ASSIGN(const std::vector<std::int32_t> prompt, prompt_ids(options, text, conversation));
  std::int64_t context = options.flags.context;
  if (context == 0 && options.flags.sampling.tokens_max > 0)
    context = std::min(static_cast<std::int64_t>(prompt.size()) + options.flags.sampling.tokens_max,
                       model.config.max_position_embeddings);
  KOHO_TRY_ASSIGN(const std::unique_ptr<Runtime> runtime,
                  open_runtime(options.flags, std::move(model), std::move(text), context));
  const InterruptGuard guard;
  AnswerDisplay::Options shown = display_options(options.flags.reasoning_is_shown());
  shown.silent = options.json;
  shown.by_spelling = !options.flags.sampling.stop.empty();
  std::optional<AnswerDisplay> display;
  if (options.is_chat()) {
    chat::OutputParserOptions parser = parser_options(*runtime, conversation);
    parser.exact_content = constraint.has_value();
    display.emplace(std::move(parser), shown);
  }
  const auto show = [&](const OutputEvent& event) {
    if (display)
      display->show(event);
    else if (!options.json)
      print_piece(event.text, shown.terminal);
  };
  KOHO_TRY_ASSIGN(const Answer said,
                  answer(*runtime, prompt, options.flags.sampling, constraint, show));
  if (display) display->finish();
  const chat::ParsedOutput* parsed = display ? &display->parsed() : nullptr;
  if (options.json) {
    std::printf("%s\n", json_line(prompt, said, parsed, runtime->load_s()).c_str());
  } else {
    std::printf("\n");
    std::fflush(stdout);
    print_notes(said, parsed, options, *runtime);
  }
  KOHO_TRY(finish_output());
  return said.finish_reason == "abort" ? kExitInterrupted : 0;
}

}  // namespace

Runner add_run(CommandLine& command) {
  auto options = std::make_shared<RunOptions>();
  command.add_option("MODEL", options->words[0], "Model directory, where -m does not name it");
  command.add_option("PROMPT", options->words[1],
                     "A user's message; - or nothing: standard input up to its end");
  command.add_option("--chat", options->chat, "The same as PROMPT");
  command.add_flag("--plain", options->plain,
                   "PROMPT is text to go on with, without the chat template");
  command.add_flag("--allow-special", options->allow_special,
                   "--plain, and control tokens (<|user|>, ...) in PROMPT are recognised");
  command.add_option("--prompt-ids", options->prompt_ids, "File with a JSON array of token ids");
  command.add_flag(
      "--json", options->json,
      "Print one line of JSON at the end instead of text, with reasoning and tool_calls apart; "
      "finish_reason is stop, length, or abort after Ctrl-C");
  add_answering_flags(command, options->flags);
  command.footer(
      "The answer goes to standard output, without its reasoning where that is no terminal; all "
      "else "
      "to\nstandard error. Ctrl-C stops the answer; the exit code is then 130.\n\n"
      "Examples:\n"
      "  koho run models/tiny \"What is the capital of France?\"\n"
      "  koho run models/tiny - < question.txt > answer.txt\n"
      "  koho run models/tiny \"Name a city.\" --json-schema city.json\n"
      "  koho run models/tiny --plain \"Once upon a time\" --temperature 0.7 --seed 1 --max-tokens "
      "64\n"
      "  koho run models/tiny --prompt-ids ids.json --temperature 0 --json");
  return [options]() -> Status {
    KOHO_TRY_ASSIGN(const int exit_code, run(*options));
    if (exit_code != 0) std::exit(exit_code);  // all is written and let go
    return {};
  };
}

}  // namespace koho::app
