// SPDX-License-Identifier: Apache-2.0
// `koho completion SHELL`: completion scripts for bash, zsh and fish.
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/command.h"
#include "app/command_outline.h"
#include "base/text.h"

namespace koho::app {
namespace {

/// Calls `visit` for the program and every command below it.
void each(const CommandOutline& command, const std::function<void(const CommandOutline&)>& visit) {
  visit(command);
  for (const CommandOutline& one : command.below) each(one, visit);
}

std::string last_word(const CommandOutline& command) {
  return command.name.substr(command.name.rfind(' ') + 1);
}

std::string flag_words(const CommandOutline& command) {
  std::string words;
  for (const FlagOutline& flag : command.flags)
    for (const std::string& name : flag.names) words += (words.empty() ? "" : " ") + name;
  return words;
}

std::string command_words(const CommandOutline& command) {
  std::string words;
  for (const CommandOutline& one : command.below)
    words += (words.empty() ? "" : " ") + last_word(one);
  return words;
}

/// The first sentence's beginning: what fits beside a flag.
std::string brief(const std::string& help) {
  constexpr std::size_t kColumns = 70;
  std::string text = help.substr(0, help.find_first_of(";\n"));
  if (text.size() > kColumns) text = text.substr(0, text.rfind(' ', kColumns)) + " …";
  return text;
}

/// `text` with a backslash before each of `special`.
std::string escaped(const std::string& text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

/// `text` within single quotes of bash and zsh.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

constexpr const char* kBashEnd = R"(  esac
  case "$cur" in
    -*) COMPREPLY=($(compgen -W "$flags" -- "$cur")) ;;
    *) COMPREPLY=($(compgen -W "$commands" -- "$cur") $(compgen -f -- "$cur")) ;;
  esac
}
complete -o filenames -F _koho koho
)";

std::string bash_script(const CommandOutline& program) {
  std::string known;
  std::string lists;
  std::string choices;
  each(program, [&](const CommandOutline& command) {
    if (!command.name.empty())
      known += (known.empty() ? "" : "|") + fmt::format("'{}'", command.name);
    lists += fmt::format("    '{}') commands='{}' flags='{}' ;;\n", command.name,
                         command_words(command), flag_words(command));
    for (const FlagOutline& flag : command.flags) {
      if (flag.choices.empty()) continue;
      std::string cases;
      for (const std::string& name : flag.names)
        cases += (cases.empty() ? "" : "|") + fmt::format("'{}:{}'", command.name, name);
      choices += fmt::format("    {}) COMPREPLY=($(compgen -W '{}' -- \"$cur\")); return ;;\n",
                             cases, fmt::join(flag.choices, " "));
    }
  });
  return fmt::format(
             "# bash completion of koho: eval \"$(koho completion bash)\"\n"
             "_koho() {{\n"
             "  local cur=\"${{COMP_WORDS[COMP_CWORD]}}\" prev=\"${{COMP_WORDS[COMP_CWORD-1]}}\"\n"
             "  local path='' commands='' flags='' word i\n"
             "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
             "    word=\"${{path:+$path }}${{COMP_WORDS[i]}}\"\n"
             "    case \"$word\" in {}) path=\"$word\" ;; esac\n"
             "  done\n"
             "  case \"$path\" in\n{}  esac\n"
             "  case \"$path:$prev\" in\n{}",
             known, lists, choices) +
         kBashEnd;
}

/// One flag as _arguments has it.
std::string zsh_flag(const FlagOutline& flag, const std::string& name) {
  std::string text = name + "[" + escaped(brief(flag.help), "[]\\:") + "]";
  if (!flag.value.empty())
    text += ":" + escaped(flag.value, ":") + ":" +
            (flag.choices.empty() ? std::string("_files")
                                  : fmt::format("({})", fmt::join(flag.choices, " ")));
  return "        " + quoted("*" + text) + " \\\n";
}

std::string zsh_script(const CommandOutline& program) {
  std::string known;
  std::string cases;
  each(program, [&](const CommandOutline& command) {
    if (!command.name.empty()) known += (known.empty() ? "" : "|") + quoted(command.name);
    cases += fmt::format("    {})\n", quoted(command.name));
    if (!command.below.empty()) {
      cases += "      commands=(\n";
      for (const CommandOutline& one : command.below)
        cases +=
            "        " + quoted(last_word(one) + ":" + escaped(brief(one.summary), ":\\")) + "\n";
      cases += "      )\n";
    }
    cases += "      options=( \\\n";
    for (const FlagOutline& flag : command.flags)
      for (const std::string& name : flag.names) cases += zsh_flag(flag, name);
    cases += "      ) ;;\n";
  });
  return fmt::format(
      "#compdef koho\n"
      "# zsh completion of koho: koho completion zsh > a directory of $fpath/_koho\n"
      "_koho() {{\n"
      "  local path_= word i\n"
      "  local -a commands options\n"
      "  for ((i = 2; i < CURRENT; i++)); do\n"
      "    word=\"${{path_:+$path_ }}${{words[i]}}\"\n"
      "    case \"$word\" in {}) path_=\"$word\" ;; esac\n"
      "  done\n"
      "  case \"$path_\" in\n{}  esac\n"
      "  if (( ${{#commands}} )) && [[ \"${{words[CURRENT]}}\" != -* ]]; then\n"
      "    _describe -t commands command commands\n"
      "  fi\n"
      "  _arguments \"${{options[@]}}\" '*:file:_files'\n"
      "}}\n"
      "if [[ \"$funcstack[1]\" == _koho ]]; then _koho \"$@\"; else compdef _koho koho; fi\n",
      known, cases);
}

/// When fish offers what belongs to the command.
std::string fish_condition(const CommandOutline& program, const CommandOutline& command) {
  if (command.name.empty()) return "__fish_use_subcommand";
  std::string condition;
  for (const std::string_view word : split(command.name, ' '))
    condition +=
        fmt::format("{}__fish_seen_subcommand_from {}", condition.empty() ? "" : "; and ", word);
  if (!command.below.empty())
    condition += fmt::format("; and not __fish_seen_subcommand_from {}", command_words(command));
  // A command of the same name below another one.
  if (command.name.find(' ') == std::string::npos)
    for (const CommandOutline& other : program.below)
      for (const CommandOutline& one : other.below)
        if (last_word(one) == command.name)
          condition += fmt::format("; and not __fish_seen_subcommand_from {}", other.name);
  return condition;
}

std::string fish_script(const CommandOutline& program) {
  std::string out = "# fish completion of koho: koho completion fish | source\n";
  each(program, [&](const CommandOutline& command) {
    const std::string when = fish_condition(program, command);
    for (const CommandOutline& one : command.below)
      out += fmt::format("complete -c koho -n '{}' -a {} -d '{}'\n", when, last_word(one),
                         escaped(brief(one.summary), "'\\"));
    for (const FlagOutline& flag : command.flags) {
      out += fmt::format("complete -c koho -n '{}'", when);
      for (const std::string& name : flag.names)
        out += name.starts_with("--") ? fmt::format(" -l {}", name.substr(2))
                                      : fmt::format(" -s {}", name.substr(1));
      if (!flag.choices.empty()) out += fmt::format(" -x -a '{}'", fmt::join(flag.choices, " "));
      if (flag.choices.empty() && !flag.value.empty()) out += " -r";
      out += fmt::format(" -d '{}'\n", escaped(brief(flag.help), "'\\"));
    }
  });
  return out;
}

constexpr const char* kExamples =
    R"text(bash   eval "$(koho completion bash)"            in ~/.bashrc
zsh    koho completion zsh > "${fpath[1]}/_koho"   once
fish   koho completion fish > ~/.config/fish/completions/koho.fish)text";

}  // namespace

std::string completion_script(const std::string& shell, const CommandOutline& program) {
  if (shell == "zsh") return zsh_script(program);
  return shell == "fish" ? fish_script(program) : bash_script(program);
}

Runner add_completion(CommandLine& command) {
  const auto shell = std::make_shared<std::string>();
  command.add_option("SHELL", *shell, "bash, zsh or fish")
      ->check(one_of({"bash", "zsh", "fish"}))
      ->required();
  command.footer(kExamples);
  return [shell]() -> Status {
    std::fputs(completion_script(*shell, program_outline()).c_str(), stdout);
    return {};
  };
}

}  // namespace koho::app
