// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding of one piece of text: starts from its bytes and repeatedly merges the adjacent
// pair whose merge stands first in the file (the leftmost such pair first), as Hugging Face
// tokenizers' BPE does. Time n log n in the piece's length.
#pragma once

#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tokenizer/string_list.h"
#include "tokenizer/vocabulary.h"

namespace koho {

class Bpe {
 public:
  /// `merges` holds left and right of each merge in turn, spelled in the byte alphabet, in order
  /// of rank; of a pair that stands twice the later place counts. With `ignore_merges` a piece that
  /// is a token is that token, whatever the merges would make of it.
  /// Errors: corrupt_data: a part or a result that is no token.
  static Result<Bpe> build(Vocabulary vocabulary, const StringList& merges, bool ignore_merges);

  /// Appends the tokens of `piece`, any bytes. Requires: fewer than 2^31 bytes. Threads: any.
  void encode(std::string_view piece, std::vector<std::int32_t>& out) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  static constexpr std::uint32_t kNoRank = UINT32_MAX;
  struct Merge {
    std::uint32_t rank = kNoRank;
    std::int32_t token = -1;  // what the pair becomes
  };
  struct Slot {
    std::int32_t left = -1;
    std::int32_t right = -1;
    Merge merge;
  };

  Merge find(std::int32_t left, std::int32_t right) const;
  std::size_t place_of(std::int32_t left, std::int32_t right) const;
  static std::size_t byte_pair(char left, char right) {
    return (static_cast<std::size_t>(static_cast<std::uint8_t>(left)) << 8U) |
           static_cast<std::uint8_t>(right);
  }
  /// The tokens of `piece` by merging alone.
  void merge(std::string_view piece, std::vector<std::int32_t>& out) const;
  void merge_short(std::string_view piece, std::vector<std::int32_t>& out) const;
  void merge_long(std::string_view piece, std::vector<std::int32_t>& out) const;

  Vocabulary vocabulary_;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most two thirds full
  int shift_ = 0;            // of a hash to a place
  // Neighbouring bytes that stand inside some merge's result: between others no merge can reach
  // across, so that the text on both sides is merged apart.
  std::bitset<1U << 16U> may_join_;
  // Whether encoding a token's bytes gives the token: then no merging is needed to know it. Found
  // out when a token's bytes are first met, by whichever thread; all come to the same.
  enum class Own : std::uint8_t { unknown, yes, no };
  std::unique_ptr<std::atomic<Own>[]> own_encoding_;
};

}  // namespace koho
