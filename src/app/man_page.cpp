// SPDX-License-Identifier: Apache-2.0
// `koho help --man`: the page koho(1).
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/command_outline.h"
#include "base/version.h"
#include "tokenizer/utf8.h"

namespace koho::app {
namespace {

/// Text that troff takes as it is.
std::string plain(std::string_view text) {
  std::string out;
  bool at_begin = true;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const char c = text.front();
    if (at_begin && (c == '.' || c == '\'')) out += "\\&";
    at_begin = c == '\n';
    if (step.bytes > 1) {
      out += fmt::format("\\[u{:04X}]", static_cast<std::uint32_t>(utf8_code_point(text, step)));
    } else if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    text.remove_prefix(step.bytes);
  }
  return out;
}

void add_flag(const FlagOutline& flag, std::string& out) {
  out += ".TP\n";
  std::string names;
  for (const std::string& name : flag.names)
    names += fmt::format("{}\\fB{}\\fR", names.empty() ? "" : ", ", plain(name));
  if (!flag.value.empty())
    names += fmt::format("{}\\fI{}\\fR", names.empty() ? "" : " ", plain(flag.value));
  out += names + '\n' + plain(flag.help) + '\n';
  if (!flag.choices.empty()) out += fmt::format("({})\n", fmt::join(flag.choices, ", "));
}

void add_command(const CommandOutline& command, std::string& out) {
  out += fmt::format(".SS koho {}\n{}.\n", plain(command.name), plain(command.summary));
  for (const FlagOutline& argument : command.arguments) add_flag(argument, out);
  for (const FlagOutline& flag : command.flags) add_flag(flag, out);
  if (!command.footer.empty()) out += ".PP\n.nf\n" + plain(command.footer) + "\n.fi\n";
  for (const CommandOutline& one : command.below) add_command(one, out);
}

}  // namespace

std::string man_page(const CommandOutline& program) {
  std::string out = fmt::format(
      ".TH KOHO 1 \"\" \"koho {}\" \"User Commands\"\n.SH NAME\nkoho \\- {}\n.SH SYNOPSIS\n.B "
      "koho\n.I COMMAND\n[\\fIFLAGS\\fR]\n.SH COMMANDS\n",
      kVersion, plain(std::string_view(program.summary).substr(5)));  // less "koho "
  for (const CommandOutline& one : program.below)
    out += fmt::format(".TP\n.B {}\n{}\n", plain(one.name), plain(one.summary));
  out += ".SH FLAGS BY COMMAND\n";
  for (const CommandOutline& one : program.below) add_command(one, out);
  return out +
         ".SH EXIT STATUS\n0: good. 2: wrong usage. 3: nothing has this name. 4: a broken file. 5: "
         "unsupported by build or model. 6: too little memory. 8: interrupted. 10: the operating "
         "system. 11: the device.\n";
}

}  // namespace koho::app
