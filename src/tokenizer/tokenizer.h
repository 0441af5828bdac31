// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back, by a checkpoint's tokenizer.json: the ids and texts that Hugging Face
// tokenizers gives. Text of a user never becomes a control token: encode() does not know added
// tokens; encode_with_special() and segments that allow it do. Adds no BOS: GLM's chat template
// writes its own prefix.
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

/// A stretch of a prompt. Added tokens are looked for in stretches that allow it, each by itself.
struct TextSegment {
  std::string_view text;
  bool allow_special = false;
};

/// Threads: const methods from any number of threads.
class Tokenizer {
 public:
  /// Errors: not_found, io_error; corrupt_data, unsupported: naming the field of the file.
  static Result<Tokenizer> load(const std::filesystem::path& tokenizer_json);
  static Result<Tokenizer> from_json(std::string_view json);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// The ids of plain text. Errors: invalid_argument: not UTF-8 (naming the byte);
  /// resource_exhausted: over 256 MiB, or a split pattern that runs away (GLM's does not).
  Result<std::vector<std::int32_t>> encode(std::string_view text) const;
  /// The same, with the added tokens in `text` recognised: for text of a template or an operator.
  Result<std::vector<std::int32_t>> encode_with_special(std::string_view text) const;
  /// The ids of the segments' concatenation. A control token ends what stands before it, so that no
  /// piece reaches across it; plain text is encoded as one text across the boundaries of segments.
  Result<std::vector<std::int32_t>> encode(std::span<const TextSegment> segments) const;

  /// The text of `ids`: bytes that are not UTF-8 become U+FFFD, ids that are no token nothing.
  /// `skip_special` leaves out tokens with the special flag. For a stream of ids see Detokenizer.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

  /// The bytes of one token, perhaps a part of a character; empty if `id` is no token. Valid as
  /// long as the tokenizer.
  std::string_view token_bytes(std::int32_t id) const;
  bool is_token(std::int32_t id) const;
  /// Whether the token is an added one ("<think>"): only these are recognised in template text.
  bool is_added(std::int32_t id) const;
  /// Whether the token is an added one with the file's special flag.
  bool is_special(std::int32_t id) const;
  /// The id of an added token, by its whole text.
  std::optional<std::int32_t> id_of(std::string_view added_token) const;
  /// One more than the largest id: the model's rows from there on are never sampled.
  std::int32_t vocab_size() const;

 private:
  struct Data;
  explicit Tokenizer(std::unique_ptr<const Data> data);
  std::unique_ptr<const Data> data_;
};

}  // namespace koho
