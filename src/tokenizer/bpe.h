// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding of one piece of text, as Hugging Face tokenizers' BPE: starts with the piece's
// bytes and repeatedly merges the adjacent pair of lowest rank, which is the pair's position in the
// file; of several equal pairs the leftmost. Takes n log n time for n bytes, and memory that does
// not grow with n.
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
#include "tokenizer/token_list.h"
#include "tokenizer/vocabulary.h"

namespace koho {

class Bpe {
 public:
  /// `merges` holds the left and right part of each merge in turn, in the byte alphabet and in the
  /// order of rank. If a pair appears twice, the later rank counts. With `ignore_merges` a
  /// piece that is a token becomes that token without merging.
  /// Errors: corrupt_data: a part or a result of a merge is not a token.
  static Result<Bpe> build(Vocabulary vocabulary, const StringList& merges, bool ignore_merges);

  /// How long pieces are merged. Tests make them short; the tokens are the same.
  struct Windows {
    std::size_t bytes = 64U << 10U;
    /// A window begins so far before the end of the one before, or further if their tokens do not
    /// agree.
    std::size_t overlap = 256;
  };
  /// Appends the tokens of `piece`, which may be any bytes. Requires: fewer than 2^31 bytes.
  /// Threads: any.
  void encode(std::string_view piece, TokenList& out) const { encode(piece, out, Windows{}); }
  void encode(std::string_view piece, TokenList& out, const Windows& windows) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  static constexpr std::uint32_t kNoRank = UINT32_MAX;
  struct Merge {
    std::uint32_t rank = kNoRank;
    std::int32_t token = -1;  // the token that the pair becomes
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
  /// Appends the tokens of `piece` by merging, without looking the piece up as a whole.
  void merge(std::string_view piece, TokenList& out, const Windows& windows) const;
  void merge_short(std::string_view piece, std::vector<std::int32_t>& out) const;
  void merge_long(std::string_view piece, std::vector<std::int32_t>& out) const;
  /// The same as merge_long(), of a piece longer than a window, in a window's memory.
  void merge_windows(std::string_view piece, TokenList& out, const Windows& windows) const;

  Vocabulary vocabulary_;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most two thirds full
  int shift_ = 0;            // from a hash to an index of slots_
  // The pairs of adjacent bytes that occur in the result of some merge. No merge crosses any other
  // pair, so merge() cuts the piece there.
  std::bitset<1U << 16U> may_join_;
  // Whether the encoding of a token's bytes is the token itself, so that a look-up replaces
  // merging. The first thread that encodes these bytes finds out; all threads find the same.
  enum class Own : std::uint8_t { unknown, yes, no };
  std::unique_ptr<std::atomic<Own>[]> own_encoding_;
};

}  // namespace koho
