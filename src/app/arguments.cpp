// SPDX-License-Identifier: Apache-2.0
#include "app/arguments.h"

#include <cctype>
#include <optional>
#include <string_view>

#include <CLI/CLI.hpp>

#include "app/nearest_word.h"
#include "app/peer_flags.h"
#include "app/terminal.h"

namespace koho::app {
namespace {

/// A word that CLI11 reads as a flag: not "-", and no negative number.
bool is_flag(std::string_view word) {
  return word.size() > 1 && word.front() == '-' &&
         std::isdigit(static_cast<unsigned char>(word[1])) == 0 && word[1] != '.';
}

/// The flags of a command, as they are given.
std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> names{"--help"};
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// Walks the words of a command line and copies or replaces each.
class Translation {
 public:
  Translation(const CLI::App& program,
              const std::vector<std::string>& from,
              std::vector<std::string>& notes)
      : command_(&program), from_(from), notes_(notes) {}

  Result<std::vector<std::string>> run() {
    for (; at_ < from_.size(); ++at_) {
      const std::string& word = from_[at_];
      if (word == "--") break;
      if (is_flag(word)) {
        KOHO_TRY(take_flag(word));
        continue;
      }
      if (const CLI::App* below = command_below(*command_, word)) command_ = below;
      to_.push_back(word);
    }
    to_.insert(to_.end(), from_.begin() + static_cast<std::ptrdiff_t>(at_), from_.end());
    return std::move(to_);
  }

 private:
  Status take_flag(const std::string& word) {
    const std::string whole = hyphenated(word);
    const std::size_t equals = whole.find('=');
    const std::string flag = whole.substr(0, equals);
    std::optional<std::string> value;
    if (equals != std::string::npos) value = whole.substr(equals + 1);
    if (const CLI::Option* option = command_->get_option_no_throw(flag)) {
      to_.push_back(whole);
      copy_value(*option, value.has_value());
      return {};
    }
    if (!value && at_ + 1 < from_.size()) value = from_[at_ + 1];
    const std::optional<PeerFlag> row = find_peer_flag(flag, value, [this](std::string_view own) {
      return command_->get_option_no_throw(std::string(own)) != nullptr;
    });
    if (row && row->verdict == PeerFlag::Verdict::renamed) {
      const std::string own(row->says);
      to_.push_back(equals == std::string::npos ? own : own + whole.substr(equals));
      copy_value(*command_->get_option(own), equals != std::string::npos);
      return {};
    }
    if (!row) return unknown(flag);
    const bool has_value = value && takes_next(*row, *value);
    const std::string given = has_value ? *value : "";
    if (row->verdict == PeerFlag::Verdict::refused) return refusal_of(*row, flag, given);
    notes_.push_back(note_of(*row, flag, given));
    if (has_value && equals == std::string::npos) ++at_;
    return {};
  }

  /// The value of an option is no flag, whatever it looks like.
  void copy_value(const CLI::Option& option, bool has_value) {
    if (has_value || option.get_items_expected_min() == 0 || at_ + 1 == from_.size()) return;
    to_.push_back(from_[++at_]);
  }

  Error unknown(const std::string& flag) const {
    const std::string near = nearest_word(flag, flags_of(*command_));
    return make_error(ErrorCode::invalid_argument, "unknown flag {}{}", flag,
                      near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }

  const CLI::App* command_;
  const std::vector<std::string>& from_;
  std::vector<std::string>& notes_;
  std::vector<std::string> to_;
  std::size_t at_ = 0;
};

}  // namespace

const CLI::App* command_below(const CLI::App& command, const std::string& name) {
  const auto found =
      command.get_subcommands([&name](const CLI::App* below) { return below->get_name() == name; });
  return found.empty() ? nullptr : found.front();
}

Status take_color_flag(std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--";) {
    const std::string& word = arguments[i];
    std::string when;
    std::ptrdiff_t words = 1;
    if (word == "--no-color") {
      when = "never";
    } else if (word.starts_with("--color=")) {
      when = word.substr(8);
    } else if (word == "--color") {
      if (i + 1 == arguments.size())
        return make_error(ErrorCode::invalid_argument, "--color needs auto, always or never");
      when = arguments[i + 1];
      words = 2;
    } else {
      ++i;
      continue;
    }
    if (!set_color(when))
      return make_error(ErrorCode::invalid_argument,
                        "--color: expected auto, always or never, found '{}'", when);
    const auto at = arguments.begin() + static_cast<std::ptrdiff_t>(i);
    arguments.erase(at, at + words);
  }
  return {};
}

Result<std::vector<std::string>> translate_arguments(const CLI::App& program,
                                                     const std::vector<std::string>& arguments,
                                                     std::vector<std::string>& notes) {
  return Translation(program, arguments, notes).run();
}

}  // namespace koho::app
