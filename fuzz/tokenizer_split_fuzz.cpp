// SPDX-License-Identifier: Apache-2.0
// Split patterns. An accepted pattern compiles or is refused with an error; it splits the text into
// pieces of whole characters that concatenate to the text, or reports an error.
// Input: the pattern, a zero byte, the text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/utf8.h"

namespace koho {
namespace {

void check_pattern(std::string_view pattern, std::string_view text) {
  if (utf8_valid_bytes(pattern) != pattern.size()) return;
  text = text.substr(0, utf8_valid_bytes(text));
  const std::vector<std::string> patterns{std::string(pattern)};
  const Result<PreTokenizer> pre_tokenizer = PreTokenizer::compile(patterns);
  if (!pre_tokenizer.ok()) {
    KOHO_CHECK(pre_tokenizer.error().code == ErrorCode::unsupported);
    return;
  }
  std::vector<std::uint32_t> ends;
  if (!pre_tokenizer->split(text, ends).ok()) return;
  std::size_t begin = 0;
  for (const std::uint32_t end : ends) {
    KOHO_CHECK(end > begin && end <= text.size());
    const std::string_view piece = text.substr(begin, end - begin);
    KOHO_CHECK(utf8_valid_bytes(piece) == piece.size());
    begin = end;
  }
  KOHO_CHECK(begin == text.size());
}

}  // namespace
}  // namespace koho

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = bytes.find('\0');
  koho::check_pattern(bytes.substr(0, zero),
                      zero == std::string_view::npos ? "" : bytes.substr(zero + 1));
  return 0;
}
