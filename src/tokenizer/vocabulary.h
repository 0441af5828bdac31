// SPDX-License-Identifier: Apache-2.0
// The tokens of the BPE model: bytes of an id, id of bytes. Ids are 0 to size() - 1 without gaps,
// and all 256 single bytes are tokens, so that every text can be encoded.
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
  /// `spellings[i]`, in the byte alphabet, has the id `ids[i]`. A spelling outside the alphabet
  /// stands for its own UTF-8 and is never the result of encoding.
  /// Errors: corrupt_data: an id or a spelling twice, a gap, a missing byte.
  static Result<Vocabulary> build(const StringList& spellings, std::span<const std::int32_t> ids);

  std::int32_t size() const { return static_cast<std::int32_t>(bytes_.size()); }
  /// Requires: 0 <= id < size().
  std::string_view bytes(std::int32_t id) const { return bytes_[static_cast<std::size_t>(id)]; }
  /// The token that stands for exactly these bytes.
  std::optional<std::int32_t> find(std::string_view bytes) const;
  std::int32_t byte_token(std::uint8_t byte) const { return byte_tokens_[byte]; }

 private:
  // Open addressing with linear probing; a power of two, at most half full.
  struct Slot {
    std::uint32_t tag = 0;  // the upper half of the hash
    std::int32_t id = -1;
  };
  Status insert(std::int32_t id);

  StringList bytes_;  // by id
  std::vector<Slot> slots_;
  std::array<std::int32_t, 256> byte_tokens_{};
};

}  // namespace koho
