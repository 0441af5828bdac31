// SPDX-License-Identifier: Apache-2.0
// Encodes text to token ids and decodes ids to text, by a checkpoint's tokenizer.json, with the
// same results as Hugging Face tokenizers. A user's text never becomes a control token: encode()
// ignores added tokens; only encode_with_special() and segments that allow it recognize them. Adds
// no BOS token: GLM's chat template writes its own prefix.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace koho {

/// A part of a prompt. The tokenizer searches for added tokens only in segments that allow it, in
/// each separately.
struct TextSegment {
  std::string_view text;
  bool allow_special = false;
};

/// See the file head. Threads: any, for const methods.
class Tokenizer {
 public:
  /// Errors: not_found, io_error; corrupt_data and unsupported, with the field of the file.
  static Result<Tokenizer> load(const std::filesystem::path& tokenizer_json);
  static Result<Tokenizer> from_json(std::string_view json);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// The ids of plain text. Errors: invalid_argument: the text is not UTF-8 (with the byte);
  /// resource_exhausted: it exceeds 256 MiB, or the split pattern passes its step limit (GLM's
  /// pattern cannot).
  Result<std::vector<std::int32_t>> encode(std::string_view text) const;
  /// The same, but recognizes added tokens. For the text of a template or an operator.
  Result<std::vector<std::int32_t>> encode_with_special(std::string_view text) const;
  /// The ids of the concatenated segments. No token reaches across an added token. Plain text is
  /// encoded as one text across the boundaries of segments.
  Result<std::vector<std::int32_t>> encode(std::span<const TextSegment> segments) const;
  /// The same, but of more than `ids_max` ids only the first ones; `total` is the number of all.
  /// Memory: the ids that are returned, and a copy of plain text that several segments make up.
  Result<std::vector<std::int32_t>> encode(std::span<const TextSegment> segments,
                                           std::size_t ids_max,
                                           std::size_t& total) const;

  /// The text of `ids`. Bytes that are not UTF-8 become U+FFFD; an id that is not a token gives
  /// nothing. `skip_special` skips tokens with the special flag. For a stream of ids use
  /// Detokenizer.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

  /// The bytes of one token, perhaps part of a character; empty if `id` is not a token. Valid as
  /// long as the tokenizer.
  std::string_view token_bytes(std::int32_t id) const;
  bool is_token(std::int32_t id) const;
  /// Whether the token is an added token ("<think>").
  bool is_added(std::int32_t id) const;
  /// Whether the token is an added token with the special flag.
  bool is_special(std::int32_t id) const;
  /// The id of an added token, by its whole text.
  std::optional<std::int32_t> id_of(std::string_view added_token) const;
  /// The largest id plus one. The model may have more rows of logits; they are never sampled.
  std::int32_t vocab_size() const;

 private:
  struct Data;
  explicit Tokenizer(std::unique_ptr<const Data> data);
  std::unique_ptr<const Data> data_;
};

}  // namespace koho
