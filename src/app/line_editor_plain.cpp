// SPDX-License-Identifier: Apache-2.0
// Lines as the terminal's driver or a pipe gives them.
#include <cstdio>
#include <string_view>
#include <unistd.h>

#include "app/answering.h"
#include "app/line_editor.h"
#include "base/line_reader.h"

namespace koho::app {
namespace {

constexpr std::size_t kLineBytesMax = std::size_t{16} << 20U;
constexpr int kLookMs = 50;  // interval of checks for Ctrl-C

class PlainEditor final : public LineEditor {
 public:
  Result<Read> read(const std::string& prompt, std::string& line) override {
    if (isatty(STDIN_FILENO) == 1) std::fputs(prompt.c_str(), stderr);
    InterruptGuard::clear();
    while (!InterruptGuard::interrupted()) {
      std::string_view found;
      KOHO_TRY_ASSIGN(const LineReader::State state, keyboard_.next(found, kLookMs));
      if (state == LineReader::State::too_long)
        return make_error(ErrorCode::invalid_argument,
                          "the line is longer than {} bytes, the limit", kLineBytesMax);
      if (state == LineReader::State::end) return Read::end;
      if (state != LineReader::State::line) continue;
      line = found;
      return Read::line;
    }
    std::fputs("\n", stderr);
    return Read::interrupt;
  }
  void remember(const std::string& /*text*/) override {}

 private:
  LineReader keyboard_{STDIN_FILENO, "standard input", kLineBytesMax};
};

}  // namespace

std::unique_ptr<LineEditor> make_plain_editor() {
  return std::make_unique<PlainEditor>();
}

}  // namespace koho::app
