// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <queue>

#include "base/printable.h"
#include "tokenizer/byte_alphabet.h"

namespace koho {
namespace {

// Up to this many bytes, scanning all pairs is faster than keeping them in a queue.
constexpr std::size_t kShortPieceBytes = 64;
// Appended ids after which merge() looks whether there are too many.
constexpr std::size_t kIdsAtOnce = 16U << 10U;

Result<std::int32_t> merge_part(const Vocabulary& vocabulary,
                                std::string_view spelling,
                                std::size_t merge,
                                std::string& bytes) {
  const bool spelled = append_spelled_bytes(bytes, spelling);
  const std::optional<std::int32_t> id = spelled ? vocabulary.find(bytes) : std::nullopt;
  if (!id)
    return make_error(ErrorCode::corrupt_data,
                      "model.merges, entry {}: '{}' is not a token of model.vocab", merge,
                      printable(spelling));
  return *id;
}

}  // namespace

Result<Bpe> Bpe::build(Vocabulary vocabulary, const StringList& merges, bool ignore_merges) {
  Bpe bpe;
  bpe.vocabulary_ = std::move(vocabulary);
  const std::size_t num_merges = merges.size() / 2;
  const std::size_t places = std::bit_ceil(num_merges + num_merges / 2 + 2);
  bpe.slots_.resize(places);
  bpe.shift_ = 64 - std::countr_zero(places);
  std::string left_bytes;
  std::string right_bytes;
  for (std::size_t i = 0; i < num_merges; ++i) {
    left_bytes.clear();
    right_bytes.clear();
    KOHO_TRY_ASSIGN(const std::int32_t left,
                    merge_part(bpe.vocabulary_, merges[2 * i], i, left_bytes));
    KOHO_TRY_ASSIGN(const std::int32_t right,
                    merge_part(bpe.vocabulary_, merges[2 * i + 1], i, right_bytes));
    left_bytes += right_bytes;
    const std::optional<std::int32_t> joined = bpe.vocabulary_.find(left_bytes);
    if (!joined)
      return make_error(ErrorCode::corrupt_data,
                        "model.merges, entry {}: '{}' + '{}' is not a token of model.vocab", i,
                        printable(merges[2 * i]), printable(merges[2 * i + 1]));
    for (std::size_t at = 1; at < left_bytes.size(); ++at)
      bpe.may_join_.set(byte_pair(left_bytes[at - 1], left_bytes[at]));
    bpe.slots_[bpe.place_of(left, right)] = {left, right, {static_cast<std::uint32_t>(i), *joined}};
  }

  const auto tokens = static_cast<std::size_t>(bpe.vocabulary_.size());
  bpe.own_encoding_ = std::make_unique<std::atomic<Own>[]>(tokens);
  if (ignore_merges)
    for (std::size_t id = 0; id < tokens; ++id)
      bpe.own_encoding_[id].store(Own::yes, std::memory_order_relaxed);
  return bpe;
}

/// The slot that holds the pair, or the free slot where it belongs.
std::size_t Bpe::place_of(std::int32_t left, std::int32_t right) const {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15U;  // 2^64 / golden ratio
  const std::uint64_t key = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32U) |
                            static_cast<std::uint32_t>(right);
  std::size_t place = static_cast<std::size_t>((key ^ (key >> 29U)) * kOdd >> shift_);
  while (slots_[place].left >= 0 && !(slots_[place].left == left && slots_[place].right == right))
    place = (place + 1) & (slots_.size() - 1);
  return place;
}

Bpe::Merge Bpe::find(std::int32_t left, std::int32_t right) const {
  return slots_[place_of(left, right)].merge;
}

void Bpe::encode(std::string_view piece, TokenList& out, const Windows& windows) const {
  const std::optional<std::int32_t> token = vocabulary_.find(piece);
  if (!token) return merge(piece, out, windows);
  std::atomic<Own>& own = own_encoding_[static_cast<std::size_t>(*token)];
  const Own known = own.load(std::memory_order_relaxed);
  if (known == Own::yes) {
    out.ids.push_back(*token);
    return;
  }
  const std::size_t before = out.ids.size();
  merge(piece, out, windows);
  if (known == Own::no) return;
  const bool yes = out.ids.size() == before + 1 && out.ids.back() == *token;
  own.store(yes ? Own::yes : Own::no, std::memory_order_relaxed);
}

void Bpe::merge(std::string_view piece, TokenList& out, const Windows& windows) const {
  std::size_t begin = 0;
  const std::size_t keep_at = out.ids_max + std::min(kIdsAtOnce, ~out.ids_max);
  for (std::size_t end = 1; end <= piece.size(); ++end) {
    if (end < piece.size() && may_join_[byte_pair(piece[end - 1], piece[end])]) continue;
    const std::string_view part = piece.substr(begin, end - begin);
    begin = end;
    if (part.size() == 1) {
      out.ids.push_back(vocabulary_.byte_token(static_cast<std::uint8_t>(part[0])));
    } else if (part.size() <= kShortPieceBytes) {
      merge_short(part, out.ids);
    } else if (part.size() <= windows.bytes) {
      merge_long(part, out.ids);
    } else {
      merge_windows(part, out, windows);
    }
    if (out.ids.size() >= keep_at) out.keep();
  }
}

void Bpe::merge_short(std::string_view piece, std::vector<std::int32_t>& out) const {
  std::array<std::int32_t, kShortPieceBytes> tokens;
  std::array<std::uint32_t, kShortPieceBytes> ranks;   // of the pair of token i and token i + 1
  std::array<std::int32_t, kShortPieceBytes> becomes;  // the token of that pair
  std::size_t count = piece.size();
  const auto look_up = [&](std::size_t i) {
    const Merge merge = find(tokens[i], tokens[i + 1]);
    ranks[i] = merge.rank;
    becomes[i] = merge.token;
  };
  for (std::size_t i = 0; i < count; ++i)
    tokens[i] = vocabulary_.byte_token(static_cast<std::uint8_t>(piece[i]));
  for (std::size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == kNoRank) break;
    tokens[best] = becomes[best];
    --count;
    for (std::size_t i = best + 1; i < count; ++i) tokens[i] = tokens[i + 1];
    for (std::size_t i = best + 1; i + 1 < count; ++i) {
      ranks[i] = ranks[i + 1];
      becomes[i] = becomes[i + 1];
    }
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  out.insert(out.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count));
}

void Bpe::merge_long(std::string_view piece, std::vector<std::int32_t>& out) const {
  struct Symbol {
    std::int32_t token;  // -1: merged into the symbol before
    std::int32_t previous;
    std::int32_t next;  // -1 at the end
  };
  const auto count = static_cast<std::int32_t>(piece.size());
  std::vector<Symbol> symbols(piece.size());
  // Candidate pairs: the rank in the upper half and the position in the lower, so that the least
  // entry is the next merge. If a pair has changed since, its rank no longer matches the entry.
  std::vector<std::uint64_t> queued;
  const auto at = [&](std::int32_t i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };
  const auto candidate = [&](std::int32_t i) {
    const Merge merge = find(at(i).token, at(at(i).next).token);
    return (static_cast<std::uint64_t>(merge.rank) << 32U) | static_cast<std::uint32_t>(i);
  };
  const auto rank_of = [](std::uint64_t entry) { return static_cast<std::uint32_t>(entry >> 32U); };
  for (std::int32_t i = 0; i < count; ++i)
    at(i) = {vocabulary_.byte_token(static_cast<std::uint8_t>(piece[static_cast<std::size_t>(i)])),
             i - 1, i + 1 < count ? i + 1 : -1};
  for (std::int32_t i = 0; i + 1 < count; ++i)
    if (const std::uint64_t entry = candidate(i); rank_of(entry) != kNoRank)
      queued.push_back(entry);
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> queue(
      std::greater<>(), std::move(queued));

  const auto push = [&](std::int32_t i) {
    if (const std::uint64_t entry = candidate(i); rank_of(entry) != kNoRank) queue.push(entry);
  };
  while (!queue.empty()) {
    const std::uint64_t entry = queue.top();
    queue.pop();
    const auto place = static_cast<std::int32_t>(static_cast<std::uint32_t>(entry));
    Symbol& left = at(place);
    if (left.token < 0 || left.next < 0) continue;
    Symbol& right = at(left.next);
    const Merge merge = find(left.token, right.token);
    if (merge.rank != rank_of(entry)) continue;
    left.token = merge.token;
    right.token = -1;
    left.next = right.next;
    if (left.next >= 0) {
      at(left.next).previous = place;
      push(place);
    }
    if (left.previous >= 0) push(left.previous);
  }
  for (std::int32_t i = 0; i >= 0; i = at(i).next) out.push_back(at(i).token);
}

/// merge_long() takes some 20 bytes of memory a byte; windows make it a constant.
///
/// Why windows give the tokens of the whole: as long as no merge crosses a cut between two parts
/// of a piece, each part is merged as if it were alone, and whether and when the first merge would
/// cross depends only on the merges within the last token of the one and the first of the other,
/// since all other merges neither touch these two nor change which of theirs comes first. So a list
/// of tokens is the encoding of its bytes if each adjacent pair in it is adjacent in the encoding
/// of some text. The tokens of a window up to one that the next window has at the same place, and
/// that window's from there on, are such a list.
void Bpe::merge_windows(std::string_view piece, TokenList& out, const Windows& windows) const {
  out.keep();
  const std::size_t ids_before = out.ids.size();
  const std::size_t dropped_before = out.dropped;
  const auto bytes = [&](std::int32_t token) { return vocabulary_.bytes(token).size(); };
  std::vector<std::int32_t> tokens;  // at the end of piece[0, end), which is merged
  std::size_t end = windows.bytes;
  merge_long(piece.substr(0, end), tokens);
  std::vector<std::int32_t> next;
  std::size_t overlap = windows.overlap;
  while (end < piece.size()) {
    // The next window begins with a token of this one, `overlap` or a little more before its end.
    std::size_t mine = tokens.size();
    std::size_t my_place = end;
    while (mine > 0 && end - my_place < overlap) my_place -= bytes(tokens[--mine]);
    const std::size_t next_end = std::min(piece.size(), my_place + windows.bytes + overlap);
    const bool whole = mine == 0;
    next.clear();
    merge_long(piece.substr(my_place, next_end - my_place), next);
    std::size_t its = 0;
    std::size_t its_place = my_place;
    bool agreed = false;
    while (mine < tokens.size() && its < next.size()) {
      agreed = my_place == its_place && tokens[mine] == next[its];
      if (agreed) break;
      if (my_place <= its_place) {
        my_place += bytes(tokens[mine++]);
      } else {
        its_place += bytes(next[its++]);
      }
    }
    if (agreed) {
      const auto kept = static_cast<std::ptrdiff_t>(mine);
      out.ids.insert(out.ids.end(), tokens.begin(), tokens.begin() + kept);
      out.keep();
      next.erase(next.begin(), next.begin() + static_cast<std::ptrdiff_t>(its));
      tokens.swap(next);
      end = next_end;
      overlap = windows.overlap;
    } else if (!whole) {
      overlap *= 2;
    } else {
      out.ids.resize(ids_before);
      out.dropped = dropped_before;
      return merge_long(piece, out.ids);
    }
  }
  out.ids.insert(out.ids.end(), tokens.begin(), tokens.end());
}

}  // namespace koho
