// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/vocabulary.h"

#include <bit>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/printable.h"
#include "tokenizer/byte_alphabet.h"

namespace koho {
namespace {

struct Hash {
  std::size_t place;
  std::uint32_t tag;
};

Hash hash_of(std::string_view bytes) {
  const std::uint64_t hash = XXH3_64bits(bytes.data(), bytes.size());
  return {static_cast<std::size_t>(hash), static_cast<std::uint32_t>(hash >> 32U)};
}

}  // namespace

Result<Vocabulary> Vocabulary::build(const StringList& spellings,
                                     std::span<const std::int32_t> ids) {
  const std::size_t tokens = ids.size();
  std::vector<std::size_t> line_of(tokens, tokens);  // the index in `spellings` of each id
  for (std::size_t i = 0; i < tokens; ++i) {
    const std::int32_t id = ids[i];
    if (id < 0 || static_cast<std::size_t>(id) >= tokens)
      return make_error(ErrorCode::corrupt_data,
                        "model.vocab: '{}' has the id {}; {} tokens must have the ids 0 to {}",
                        printable(spellings[i]), id, tokens, tokens - 1);
    std::size_t& line = line_of[static_cast<std::size_t>(id)];
    if (line != tokens)
      return make_error(ErrorCode::corrupt_data, "model.vocab: '{}' and '{}' both have the id {}",
                        printable(spellings[line]), printable(spellings[i]), id);
    line = i;
  }

  Vocabulary vocabulary;
  vocabulary.bytes_.reserve(tokens, spellings.bytes());
  vocabulary.slots_.resize(std::bit_ceil(2 * tokens + 1));
  std::string bytes;
  for (std::size_t id = 0; id < tokens; ++id) {
    const std::string_view spelling = spellings[line_of[id]];
    bytes.clear();
    const bool spelled = append_spelled_bytes(bytes, spelling);
    vocabulary.bytes_.push_back(spelled ? std::string_view(bytes) : spelling);
    if (spelled) KOHO_TRY(vocabulary.insert(static_cast<std::int32_t>(id)));
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char single = static_cast<char>(byte);
    const std::optional<std::int32_t> id = vocabulary.find({&single, 1});
    if (!id)
      return make_error(ErrorCode::corrupt_data,
                        "model.vocab has no token for the byte {:#04x} ('{}'); byte-level BPE "
                        "needs all 256",
                        byte, spell_bytes({&single, 1}));
    vocabulary.byte_tokens_[byte] = *id;
  }
  return vocabulary;
}

Status Vocabulary::insert(std::int32_t id) {
  const std::string_view key = bytes(id);
  const Hash hash = hash_of(key);
  const std::size_t mask = slots_.size() - 1;
  std::size_t place = hash.place & mask;
  for (; slots_[place].id >= 0; place = (place + 1) & mask)
    if (slots_[place].tag == hash.tag && bytes(slots_[place].id) == key)
      return make_error(ErrorCode::corrupt_data, "model.vocab: '{}' has two ids, {} and {}",
                        printable(spell_bytes(key)), slots_[place].id, id);
  slots_[place] = {hash.tag, id};
  return {};
}

std::optional<std::int32_t> Vocabulary::find(std::string_view key) const {
  const Hash hash = hash_of(key);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t place = hash.place & mask; slots_[place].id >= 0; place = (place + 1) & mask)
    if (slots_[place].tag == hash.tag && bytes(slots_[place].id) == key) return slots_[place].id;
  return std::nullopt;
}

}  // namespace koho
