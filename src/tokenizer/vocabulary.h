// SPDX-License-Identifier: Apache-2.0
// The tokens of the BPE model: maps ids to bytes and bytes to ids. Ids run from 0 to size() - 1
// without gaps, and each of the 256 bytes is a token, so every text can be encoded.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tokenizer/string_list.h"

namespace koho {

class Vocabulary {
 public:
  /// The token `spellings[i]`, in the byte alphabet, has the id `ids[i]`. A spelling with
  /// characters outside the alphabet means its own UTF-8 bytes, and encoding never produces it.
  /// Errors: corrupt_data: an id or a spelling appears twice, an id is missing, a byte has no
  /// token.
  static Result<Vocabulary> build(const StringList& spellings, std::span<const std::int32_t> ids);

  std::int32_t size() const { return static_cast<std::int32_t>(bytes_.size()); }
  /// Requires: 0 <= id < size().
  std::string_view bytes(std::int32_t id) const { return bytes_[static_cast<std::size_t>(id)]; }
  /// The id of the token with exactly these bytes.
  std::optional<std::int32_t> find(std::string_view bytes) const;
  std::int32_t byte_token(std::uint8_t byte) const { return byte_tokens_[byte]; }

 private:
  // Open addressing with linear probing; a power of two, at most half full.
  struct Slot {
    std::uint32_t tag = 0;  // the upper half of the hash of the bytes
    std::int32_t id = -1;
  };
  Status insert(std::int32_t id);

  StringList bytes_;  // by id
  std::vector<Slot> slots_;
  std::array<std::int32_t, 256> byte_tokens_{};
};

}  // namespace koho
