// SPDX-License-Identifier: Apache-2.0
// `koho chat`: opens the model and the terminal for a conversation.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <unistd.h>

#include "app/chat_session.h"
#include "app/command.h"
#include "app/model_directory.h"

namespace koho::app {
namespace {

struct ChatOptions {
  AnsweringFlags flags;
  std::string history;
  std::string word;
};

/// ~/.local/state/koho/chat_history, whose directory is made; empty if that cannot be.
std::string default_history() {
  namespace fs = std::filesystem;
  fs::path state;
  if (const char* home = std::getenv("XDG_STATE_HOME"))
    state = home;
  else if (const char* user = std::getenv("HOME"))
    state = fs::path(user) / ".local" / "state";
  if (state.empty()) return "";
  std::error_code error;
  fs::create_directories(state / "koho", error);
  return error ? "" : (state / "koho" / "chat_history").string();
}

}  // namespace

Result<int> chat_on_terminal(AnsweringFlags& flags) {
  KOHO_TRY(check_flags(flags));
  KOHO_TRY_ASSIGN(std::optional<Constraint> constraint, flags.constraint.read());
  KOHO_TRY_ASSIGN(const std::string directory, find_model(flags.model));
  if (!has_tokenizer(directory))
    return make_error(ErrorCode::not_found, "{} has no tokenizer.json, which a chat needs",
                      flags.model);
  KOHO_TRY_ASSIGN(chat::Conversation conversation, start_conversation(flags));
  KOHO_TRY_ASSIGN(LoadedModel model, load_model(directory));
  KOHO_TRY_ASSIGN(LoadedText text, load_text(directory, flags.chat_template));
  KOHO_TRY(flags.sampling.validate(static_cast<std::int32_t>(model.config.vocab_size)));
  KOHO_TRY_ASSIGN(const std::unique_ptr<Runtime> runtime,
                  open_runtime(flags, std::move(model), std::move(text)));
  const InterruptGuard guard;
  std::unique_ptr<LineEditor> editor = make_terminal_editor(flags.history);
  if (editor == nullptr) editor = make_plain_editor();
  if (isatty(STDIN_FILENO) == 1)
    std::fprintf(stderr,
                 "Chat with %s, context %d tokens. /help lists the commands, Ctrl-D ends.\n",
                 flags.model.c_str(), runtime->sizes().context_max);
  ChatSession session(*runtime, flags, std::move(constraint), std::move(conversation), *editor);
  return session.run();
}

Runner add_chat(CommandLine& command) {
  auto options = std::make_shared<ChatOptions>();
  command.add_option("MODEL", options->word, "Model directory, where -m does not name it");
  command
      .add_option("--history", options->flags.history,
                  "File of the typed lines; default: koho/chat_history in $XDG_STATE_HOME or "
                  "~/.local/state; none = keep none")
      ->type_name("FILE");
  add_answering_flags(command, options->flags);
  command.footer(
      "Ctrl-C stops an answer, and at the prompt the program; /help lists the commands. Standard "
      "input "
      "that is\nno terminal is read line by line, each a message.\n\nExamples:\n  koho chat "
      "models/tiny\n  koho chat -m models/tiny --system \"Answer briefly.\" --temperature 0");
  return [options]() -> Status {
    KOHO_TRY(take_model_word(options->flags.model, {&options->word}));
    std::string& history = options->flags.history;
    history = history == "none" ? "" : history.empty() ? default_history() : history;
    KOHO_TRY_ASSIGN(const int exit_code, chat_on_terminal(options->flags));
    if (exit_code != 0) std::exit(exit_code);  // all is written and let go
    return {};
  };
}

}  // namespace koho::app
