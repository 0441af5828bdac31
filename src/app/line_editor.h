// SPDX-License-Identifier: Apache-2.0
// Reads what a user types at a prompt: on a terminal with editing, history and pasted blocks of
// lines (libedit), elsewhere line by line.
#pragma once

#include <memory>
#include <string>

#include "base/error.h"

namespace koho::app {

class LineEditor {
 public:
  enum class Read : std::uint8_t { line, end, interrupt };  // interrupt: Ctrl-C

  LineEditor() = default;
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;
  virtual ~LineEditor() = default;

  /// Shows `prompt` and reads one line, without its newline; a pasted block is one line with
  /// newlines inside. Errors: io_error; invalid_argument (a line that is too long).
  virtual Result<Read> read(const std::string& prompt, std::string& line) = 0;

  /// Keeps `text` for the arrow keys and for later runs.
  virtual void remember(const std::string& text) = 0;
};

/// For a terminal at standard input and output; history in `history_file`, if that is not empty.
/// Null: this build has no libedit, or the terminal cannot be driven.
std::unique_ptr<LineEditor> make_terminal_editor(const std::string& history_file);

/// For anything else; the prompt goes to standard error where standard input is a terminal.
std::unique_ptr<LineEditor> make_plain_editor();

}  // namespace koho::app
