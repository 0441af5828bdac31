// SPDX-License-Identifier: Apache-2.0
// The table of `koho serve` options as text: help, documentation and config file.
#include <sstream>

#include <fmt/format.h>

#include "app/serve_options.h"

namespace koho::app {

std::string serve_help() {
  std::string out =
      "Serve a model over HTTP with the APIs of OpenAI and Anthropic and koho's own.\n"
      "Usage: koho serve [--model] DIR [FLAGS]\n"
      "Each flag --some-name is also an environment variable (KOHO_SOME_NAME) and a line of the "
      "config file\n(some-name: value). A flag overrides the file, the file overrides the "
      "environment.\n"
      "koho runs on the CPU or on NVIDIA GPUs of one host, a rank on each.\n";
  const ServeOptions defaults;
  std::string_view group;
  for (const ServeOption& option : serve_option_table()) {
    if (option.group != group) out += fmt::format("\n{}:\n", option.group);
    group = option.group;
    std::string flags(option.flags);
    if (!option.value.empty()) flags += ' ' + std::string(option.value);
    std::string help(option.help);
    if (option.shown != nullptr)
      if (const std::string shown = option.shown(defaults); !shown.empty())
        help += fmt::format(" [{}]", shown);
    out += flags.size() < 38 ? fmt::format("  {:<38}{}\n", flags, help)
                             : fmt::format("  {}\n  {:<38}{}\n", flags, "", help);
  }
  out +=
      "\nOther engines' flags: koho help flags.\n"
      "Exit codes: 0 stopped by SIGTERM or SIGINT; those of all commands: 2 wrong usage, 3 nothing "
      "there, 4 a broken\nfile, 5 unsupported, 6 too little memory, 7 another process uses the "
      "directory, 10 the operating system,\n11 the device, also while serving.\n"
      "\nExamples:\n"
      "  koho serve models/tiny --port 8000\n"
      "  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"messages\":[{\"role\":\"user\",\"content\":\"What is 2 + "
      "3?\"}]}'\n";
  return out;
}

std::string print_serve_config(const ServeOptions& options) {
  std::string out;
  for (const ServeOption& option : serve_option_table()) {
    if (option.shown == nullptr) continue;
    std::string value = option.shown(options);
    if (value.empty()) continue;
    const std::string_view name = option.name().substr(2);
    if (option.takes != ServeOption::Takes::list) {
      out += fmt::format("{}: {}\n", name, value);
      continue;
    }
    out += fmt::format("{}:\n", name);
    std::istringstream items(value);
    while (std::getline(items, value, ',')) out += fmt::format("  - {}\n", value);
  }
  return out;
}

}  // namespace koho::app
