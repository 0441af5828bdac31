// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding of arbitrary bytes. UTF-8 text decodes from its ids to itself, has no added
// tokens unless they are enabled, and has the same ids in segments; other bytes are an error. Bytes
// taken as ids decode the same at once and as a stream, to whole characters at every step.
// The tokenizer is the tests' small one: 1,000 tokens and GLM's added tokens.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace koho {
namespace {

using Ids = std::vector<std::int32_t>;

Tokenizer load_tokenizer() {
  Result<Tokenizer> tokenizer =
      Tokenizer::load(KOHO_SOURCE_DIR "/tests/tokenizer/data/small/tokenizer.json");
  KOHO_CHECK(tokenizer.ok());
  return std::move(*tokenizer);
}

void check_text(const Tokenizer& tokenizer, std::string_view text) {
  const Result<Ids> plain = tokenizer.encode(text);
  const Result<Ids> special = tokenizer.encode_with_special(text);
  const bool valid = utf8_valid_bytes(text) == text.size();
  KOHO_CHECK(plain.ok() == valid && special.ok() == valid);
  if (!valid) return;
  for (const std::int32_t id : *plain)
    KOHO_CHECK(tokenizer.is_token(id) && !tokenizer.is_added(id));
  KOHO_CHECK(tokenizer.decode(*plain) == text);
  KOHO_CHECK(tokenizer.decode(*special) == text);
  std::size_t middle = text.size() / 2;
  while (middle < text.size() && (static_cast<std::uint8_t>(text[middle]) & 0xC0U) == 0x80U)
    ++middle;
  const std::vector<TextSegment> halves{{text.substr(0, middle), false},
                                        {text.substr(middle), false}};
  KOHO_CHECK(*tokenizer.encode(halves) == *plain);
  const std::vector<TextSegment> whole{{"", false}, {text, true}};
  KOHO_CHECK(*tokenizer.encode(whole) == *special);
}

void check_ids(const Tokenizer& tokenizer, std::string_view bytes) {
  Ids ids;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2)
    ids.push_back(static_cast<std::uint8_t>(bytes[i]) % 5 * 256 +
                  static_cast<std::uint8_t>(bytes[i + 1]));
  for (const bool skip_special : {false, true}) {
    Detokenizer stream(tokenizer, skip_special);
    std::string streamed;
    for (const std::int32_t id : ids) {
      const std::string part = stream.push(id);
      KOHO_CHECK(utf8_valid_bytes(part) == part.size());
      streamed += part;
    }
    streamed += stream.finish();
    KOHO_CHECK(streamed == tokenizer.decode(ids, skip_special));
  }
}

}  // namespace
}  // namespace koho

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const koho::Tokenizer tokenizer = koho::load_tokenizer();
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  koho::check_text(tokenizer, bytes);
  koho::check_ids(tokenizer, bytes);
  return 0;
}
