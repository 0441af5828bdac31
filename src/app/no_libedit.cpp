// SPDX-License-Identifier: Apache-2.0
// A build without libedit: the terminal's own line editing.
#include "app/line_editor.h"

namespace koho::app {

std::unique_ptr<LineEditor> make_terminal_editor(const std::string& /*history_file*/) {
  return nullptr;
}

}  // namespace koho::app
