// SPDX-License-Identifier: Apache-2.0
// The program `koho`: the table of commands. Exit codes: 0, that of the error (base/error.cpp), or
// 2 for wrong usage.
#include <cstdio>
#include <exception>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "app/build_info.h"
#include "app/command.h"
#include "app/serve.h"
#include "app/worker.h"
#include "base/error.h"

namespace koho::app {
namespace {

const std::vector<Command>& commands() {
  static const std::vector<Command> table{
      {"run", "Answer a prompt, or chat on the terminal", add_run},
      {"serve", "Answer over HTTP", add_serve},
      {"batch", "Answer a file of requests", add_batch},
      {"logits", "Write the logits of a prompt to a NumPy file", add_logits},
      {"tokenize", "Turn text into token ids, or ids into text", add_tokenize},
      {"render", "Print the prompt text of chat requests", add_render},
      {"inspect", "Show a model and its memory plan", add_inspect},
      {"bench", "Measure speed", add_bench},
      {"check", "Validate a model directory", add_check},
  };
  return table;
}

/// Prints one line on standard error for wrong usage.
int refuse_usage(const std::string& message, const std::string& command) {
  std::fprintf(stderr, "koho: error: %s (see koho %s--help)\n", message.c_str(),
               command.empty() ? "" : (command + " ").c_str());
  return error_code_info(ErrorCode::invalid_argument).exit_code;
}

/// Names the known commands, which CLI11's own message does not.
Status check_command_name(std::string_view name) {
  std::string known;
  for (const Command& command : commands()) {
    if (name == command.name) return {};
    known += (known.empty() ? "" : ", ") + std::string(command.name);
  }
  return make_error(ErrorCode::invalid_argument, "{}; the commands are {}",
                    name.empty() ? "no command given" : fmt::format("unknown command '{}'", name),
                    known);
}

/// The given command with its sub-commands: "bench latency"; "" if there is none.
std::string chosen_command(const CLI::App& program) {
  std::string names;
  for (std::vector<CLI::App*> chosen = program.get_subcommands(); !chosen.empty();
       chosen = chosen.front()->get_subcommands())
    names += (names.empty() ? "" : " ") + chosen.front()->get_name();
  return names;
}

int run(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "worker") return run_worker({argv + 2, argv + argc});
  if (first.empty() || first.front() != '-')
    if (const Status known = check_command_name(first); !known.ok())
      return refuse_usage(known.error().message, "");
  if (first == "serve") return run_serve({argv + 2, argv + argc});
  CLI::App program("koho serves GLM-4.5, 4.6 and 4.7 (glm4_moe) from C++ and CUDA.", "koho");
  program.require_subcommand(1);
  program.set_version_flag("--version", version_text());
  program.get_formatter()->column_width(34);
  CommandLine line(program);
  Runner runner;
  for (const Command& command : commands()) {
    CommandLine* sub = line.add_subcommand(command.name, command.summary);
    const Runner run_command = command.add(*sub);
    sub->callback([&runner, run_command] { runner = run_command; });
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help, --version
    return refuse_usage(error.what(), chosen_command(program));
  }
  const Status status = runner();
  if (status.ok()) return 0;
  std::fprintf(stderr, "koho: error: %s\n", status.error().message.c_str());
  return error_code_info(status.error().code).exit_code;
}

}  // namespace

}  // namespace koho::app

int main(int argc, char** argv) {
  try {
    return koho::app::run(argc, argv);
  } catch (const std::exception& error) {  // std::bad_alloc, std::system_error
    std::fprintf(stderr, "koho: error: %s\n", error.what());
    return koho::error_code_info(koho::ErrorCode::internal).exit_code;
  }
}
