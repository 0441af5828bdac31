// SPDX-License-Identifier: Apache-2.0
// The program `koho`: the table of commands. Exit codes: 0, or that of the error (base/error.cpp):
// 2 for wrong usage, in all commands.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/arguments.h"
#include "app/build_info.h"
#include "app/command.h"
#include "app/command_outline.h"
#include "app/nearest_word.h"
#include "app/peer_flags.h"
#include "app/serve.h"
#include "app/serve_options.h"
#include "app/worker.h"
#include "base/error.h"
#include "base/text.h"

namespace koho::app {
namespace {

const std::vector<Command>& commands() {
  static const std::vector<Command> table{
      {"run", "Answer one prompt", add_run},
      {"chat", "Chat on the terminal", add_chat},
      {"serve", "Answer over HTTP", add_serve},
      {"batch", "Answer a file of requests", add_batch},
      {"logits", "Write the logits of a prompt to a NumPy file", add_logits},
      {"tokenize", "Turn text into token ids, or ids into text", add_tokenize},
      {"render", "Print the prompt text of chat requests", add_render},
      {"inspect", "Show a model and its memory plan", add_inspect},
      {"bench", "Measure speed", add_bench},
      {"check", "Validate a model directory", add_check},
      {"completion", "Print the completion script of a shell", add_completion},
  };
  return table;
}

/// Prints one line on standard error for wrong usage.
int refuse_usage(const std::string& message, const std::string& command) {
  std::fprintf(stderr, "koho: error: %s (see koho %s--help)\n", message.c_str(),
               command.empty() ? "" : (command + " ").c_str());
  return error_code_info(ErrorCode::invalid_argument).exit_code;
}

/// What vLLM, SGLang and llama.cpp call a command, and what koho does.
constexpr std::pair<std::string_view, std::string_view> kPeerCommands[] = {
    {"run-batch", "batch"},     {"complete", "run --plain"}, {"generate", "run"},
    {"launch-server", "serve"}, {"llama-server", "serve"},   {"llama-cli", "chat"},
    {"llama-bench", "bench"},   {"collect-env", "version"}};

/// Names the nearest command, or all. Requires: `name` is none.
Error unknown_command(std::string_view name) {
  std::vector<std::string> known;
  for (const Command& command : commands()) known.emplace_back(command.name);
  const std::string all = fmt::format("the commands are {}", fmt::join(known, ", "));
  if (name.empty()) return make_error(ErrorCode::invalid_argument, "no command given; {}", all);
  std::string near = nearest_word(name, known);
  for (const auto& [theirs, own] : kPeerCommands)
    if (hyphenated(fmt::format("--{}", name)).substr(2) == theirs) near = own;
  return make_error(ErrorCode::invalid_argument, "unknown command '{}'; {}{}", name,
                    near.empty() ? "" : fmt::format("did you mean {}? ", near), all);
}

bool is_command(std::string_view name) {
  for (const Command& command : commands())
    if (name == command.name) return true;
  return false;
}

/// "help X" and "--help X" as "X --help", "version" as "--version", "help --man" as "--man"; what
/// vLLM calls "bench throughput" is "bench".
void turn_words_into_flags(std::vector<std::string>& arguments) {
  if (arguments.empty()) return;
  if (arguments.size() > 1 && arguments[0] == "bench" && arguments[1] == "throughput")
    arguments.erase(arguments.begin() + 1);
  if (arguments.size() > 1 && (arguments[0] == "--help" || arguments[0] == "-h") &&
      is_command(arguments[1]))
    arguments[0] = "help";
  if (arguments[0] == "version") arguments[0] = "--version";
  if (arguments[0] != "help") return;
  arguments.erase(arguments.begin());
  if (arguments.empty() || arguments[0] != "--man") arguments.emplace_back("--help");
}

/// The given command with its sub-commands: "bench latency"; "" if there is none.
std::string chosen_command(const CLI::App& program) {
  std::string names;
  for (std::vector<CLI::App*> chosen = program.get_subcommands(); !chosen.empty();
       chosen = chosen.front()->get_subcommands())
    names += (names.empty() ? "" : " ") + chosen.front()->get_name();
  return names;
}

/// The command that the words name: "bench latency".
std::string command_among(const CLI::App& program, const std::vector<std::string>& words) {
  std::string names;
  const CLI::App* command = &program;
  for (const std::string& word : words) {
    const CLI::App* below = command_below(*command, word);
    if (below == nullptr) continue;
    command = below;
    names += (names.empty() ? "" : " ") + below->get_name();
  }
  return names;
}

constexpr const char* kAbout = "koho serves GLM-4.5, 4.6 and 4.7 (glm4_moe) from C++ and CUDA.";

/// The flag or argument as plain data.
FlagOutline outline_of(const CLI::Option& option) {
  FlagOutline flag{.names = {}, .value = {}, .choices = {}, .help = option.get_description()};
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  if (option.get_items_expected_max() == 0) return flag;
  // "TEXT:{bf16,fp8}", where there are choices
  const std::string type = option.get_type_name();
  const std::size_t open = type.find('{');
  flag.value = type.substr(0, std::min(type.find(':'), type.find(' ')));
  if (flag.names.empty()) flag.value = option.get_name();
  if (open == std::string::npos) return flag;
  const std::string inside = type.substr(open + 1, type.find('}', open) - open - 1);
  for (const std::string_view choice : split(inside, ',')) flag.choices.emplace_back(choice);
  return flag;
}

CommandOutline outline_of(const CLI::App& command, const std::string& path) {
  CommandOutline outline{.name = path,
                         .summary = command.get_description(),
                         .flags = {},
                         .arguments = {},
                         .footer = command.get_footer(),
                         .below = {}};
  for (const CLI::Option* option : command.get_options())
    (option->get_positional() && option->get_lnames().empty() ? outline.arguments : outline.flags)
        .push_back(outline_of(*option));
  for (const CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; }))
    outline.below.push_back(
        outline_of(*below, path.empty() ? below->get_name() : path + " " + below->get_name()));
  return outline;
}

/// The flags of `koho serve`, whose table is its own.
std::vector<FlagOutline> serve_outline() {
  std::vector<FlagOutline> flags{
      {.names = {"-h", "--help"}, .value = {}, .choices = {}, .help = "Print this help and exit"}};
  for (const ServeOption& option : serve_option_table()) {
    FlagOutline flag{.names = {},
                     .value = std::string(option.value),
                     .choices = {},
                     .help = std::string(option.help)};
    for (const std::string_view name : split(option.flags, ',')) flag.names.emplace_back(name);
    flags.push_back(std::move(flag));
  }
  return flags;
}

/// Declares all commands and parses `arguments`; `runner` is what the chosen one does. Returns the
/// exit code if there is nothing to run.
std::optional<int> parse(std::vector<std::string> arguments, Runner& runner) {
  CLI::App program(kAbout, "koho");
  program.require_subcommand(1);
  program.set_version_flag("-v,-V,--version", version_text());
  program.get_formatter()->column_width(34);
  program.footer(
      "koho help COMMAND tells a command's flags, koho help flags those of other engines. All "
      "commands "
      "take\n--color auto|always|never.\n\nExamples:\n  koho chat models/tiny\n  koho run "
      "models/tiny \"What is the capital of France?\"\n  koho serve models/tiny");
  CommandLine line(program);
  for (const Command& command : commands()) {
    CommandLine* sub = line.add_subcommand(command.name, command.summary);
    const Runner run_command = command.add(*sub);
    sub->callback([&runner, run_command] { runner = run_command; });
  }
  std::vector<std::string> notes;
  Result<std::vector<std::string>> translated = translate_arguments(program, arguments, notes);
  if (!translated.ok())
    return refuse_usage(translated.error().message, command_among(program, arguments));
  for (const std::string& note : notes) std::fprintf(stderr, "koho: %s\n", note.c_str());
  std::reverse(translated->begin(), translated->end());  // as CLI11 wants them
  try {
    program.parse(*std::move(translated));
  } catch (const CLI::ExtrasError&) {
    const std::string command = chosen_command(program);
    return refuse_usage(
        fmt::format("'{}' is one word too many{}", fmt::join(program.remaining(true), " "),
                    command == "run" ? ": put a prompt in quotes" : ""),
        command);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help, --version
    return refuse_usage(error.what(), chosen_command(program));
  }
  return std::nullopt;
}

int run(std::vector<std::string> arguments) {
  if (!arguments.empty() && arguments[0] == "worker")
    return run_worker({arguments.begin() + 1, arguments.end()});
  if (const Status good = take_color_flag(arguments); !good.ok())
    return refuse_usage(good.error().message, "");
  turn_words_into_flags(arguments);
  const std::string first = arguments.empty() ? "" : arguments[0];
  if (first == "--man") {
    std::fputs(man_page(program_outline()).c_str(), stdout);
    return 0;
  }
  if (first == "flags" && arguments.size() > 1) {
    std::fputs(peer_flags_text().c_str(), stdout);
    return 0;
  }
  if ((first.empty() || first.front() != '-') && !is_command(first))
    return refuse_usage(unknown_command(first).message, "");
  if (first == "serve") return run_serve({arguments.begin() + 1, arguments.end()});
  Runner runner;
  if (const std::optional<int> code = parse(std::move(arguments), runner)) return *code;
  const Status status = runner();
  if (status.ok()) return 0;
  std::fprintf(stderr, "koho: error: %s\n", status.error().message.c_str());
  return error_code_info(status.error().code).exit_code;
}

/// In the place of one that is closed no other file is opened: who reads or writes it is refused.
void hold_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) < 0)
      static_cast<void>(::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY));
}

/// Writes what was printed; an answer that nobody got is an error.
int end_with(int code) {
  const bool lost = !std::cout.flush() || std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (code != 0 || !lost) return code;
  std::fputs("koho: error: standard output could not be written\n", stderr);
  return error_code_info(ErrorCode::io_error).exit_code;
}

}  // namespace

CommandOutline program_outline() {
  CLI::App program(kAbout, "koho");
  CommandLine line(program);
  for (const Command& command : commands())
    command.add(*line.add_subcommand(command.name, command.summary));
  CommandOutline outline = outline_of(program, "");
  for (CommandOutline& one : outline.below)
    if (one.name == "serve") one.flags = serve_outline();
  return outline;
}

}  // namespace koho::app

int main(int argc, char** argv) {
  try {
    koho::app::hold_standard_streams();
    std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error, as a full disk is
    return koho::app::end_with(koho::app::run({argv + 1, argv + argc}));
  } catch (const std::exception& error) {  // std::bad_alloc, std::system_error
    std::fprintf(stderr, "koho: error: %s\n", error.what());
    return koho::error_code_info(koho::ErrorCode::internal).exit_code;
  }
}
