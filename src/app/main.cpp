// SPDX-License-Identifier: Apache-2.0
// The program `koho`: one table of commands. Exit codes: 0, or the error code's (base/error.cpp); 2
// for wrong usage.
#include <cstdio>
#include <exception>
#include <vector>

#include "app/command.h"
#include "base/error.h"

namespace koho::app {
namespace {

const std::vector<Command>& commands() {
  static const std::vector<Command> table{
      {"run", "Answer a prompt, or chat on the terminal", add_run},
      {"logits", "Write the logits of a prompt to a NumPy file", add_logits},
      {"tokenize", "Turn text into token ids, or ids into text", add_tokenize},
      {"render", "Print the prompt text of chat requests", add_render},
      {"inspect", "Show a model and its memory plan", add_inspect},
      {"check", "Validate a model directory", add_check},
  };
  return table;
}

int run(int argc, char** argv) {
  CLI::App program("koho serves GLM-4.5, 4.6 and 4.7 (glm4_moe) from C++ and CUDA.", "koho");
  program.require_subcommand(1);
  program.set_version_flag("--version", "koho 0.1.0");
  program.get_formatter()->column_width(34);
  Runner runner;
  for (const Command& command : commands()) {
    CLI::App* sub = program.add_subcommand(command.name, command.summary);
    const Runner run_command = command.add(*sub);
    sub->callback([&runner, run_command] { runner = run_command; });
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = program.exit(error);
    return code == 0 ? 0 : error_code_info(ErrorCode::invalid_argument).exit_code;
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
