// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/mapped_file.h"
#include "base/printable.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/token_list.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/utf8.h"

namespace koho {
namespace {

constexpr std::size_t kFileBytesMax = 256U << 20U;

Status check_utf8(std::string_view text) {
  const std::size_t valid = utf8_valid_bytes(text);
  if (valid == text.size()) return {};
  return make_error(ErrorCode::invalid_argument, "the text is not UTF-8 at byte {} (0x{:02x})",
                    valid, static_cast<std::uint8_t>(text[valid]));
}

}  // namespace

struct Tokenizer::Data {
  enum class Kind : std::uint8_t { none, base, added, special };

  Bpe bpe;
  PreTokenizer pre_tokenizer;
  AddedTokenMatcher raw;         // searched first
  AddedTokenMatcher normalized;  // searched in the text between matches of raw
  std::vector<Kind> kinds;       // of each id
  // Added tokens by id, with the bytes that decode() gives: the text itself, or the bytes that it
  // spells if all its characters are in the byte alphabet ("Ġ" gives a blank).
  std::vector<std::pair<std::int32_t, std::string>> added_bytes;
  std::vector<std::pair<std::string, std::int32_t>> added_ids;  // by text

  static Result<Data> build(TokenizerFile file);
  Kind kind(std::int32_t id) const {
    return id >= 0 && static_cast<std::size_t>(id) < kinds.size()
               ? kinds[static_cast<std::size_t>(id)]
               : Kind::none;
  }
  std::string_view bytes(std::int32_t id) const;
  Status encode_plain(std::string_view text, TokenList& out) const;

  /// Splits `text` at added tokens and calls plain(text) and control(id) from left to right. Both
  /// return a Status.
  template <typename Plain, typename Control>
  Status cut(std::string_view text, const Plain& plain, const Control& control) const {
    return cut_by(raw, text, control,
                  [&](std::string_view rest) { return cut_by(normalized, rest, control, plain); });
  }

 private:
  template <typename Plain, typename Control>
  static Status cut_by(const AddedTokenMatcher& matcher,
                       std::string_view text,
                       const Control& control,
                       const Plain& plain) {
    std::size_t at = 0;
    while (const std::optional<AddedTokenMatcher::Match> match = matcher.find(text, at)) {
      if (match->begin > at) KOHO_TRY(plain(text.substr(at, match->begin - at)));
      KOHO_TRY(control(match->id));
      at = match->end;
    }
    if (at < text.size()) KOHO_TRY(plain(text.substr(at)));
    return {};
  }
};

namespace {

/// Checks that ids and texts of the added tokens agree with each other and with the vocabulary.
Status check_added_tokens(std::vector<AddedToken> tokens, const Vocabulary& vocabulary) {
  const auto by_text = [](const AddedToken& a, const AddedToken& b) { return a.text < b.text; };
  const auto by_id = [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; };
  std::sort(tokens.begin(), tokens.end(), by_text);
  for (std::size_t i = 1; i < tokens.size(); ++i)
    if (tokens[i].text == tokens[i - 1].text)
      return make_error(ErrorCode::corrupt_data, "added_tokens: '{}' appears twice",
                        printable(tokens[i].text));
  std::sort(tokens.begin(), tokens.end(), by_id);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const AddedToken& token = tokens[i];
    if (i > 0 && token.id == tokens[i - 1].id)
      return make_error(ErrorCode::corrupt_data, "added_tokens: '{}' and '{}' both have the id {}",
                        printable(tokens[i - 1].text), printable(token.text), token.id);
    // A token may be in added_tokens and in model.vocab, with the same spelling and id.
    std::string bytes;
    if (!append_spelled_bytes(bytes, token.text)) bytes = token.text;
    const std::optional<std::int32_t> in_vocabulary = vocabulary.find(bytes);
    if (in_vocabulary && *in_vocabulary != token.id)
      return make_error(ErrorCode::corrupt_data,
                        "added_tokens: '{}' has the id {}, but {} in model.vocab",
                        printable(token.text), token.id, *in_vocabulary);
    if (!in_vocabulary && token.id < vocabulary.size() && vocabulary.bytes(token.id) != bytes)
      return make_error(ErrorCode::corrupt_data,
                        "added_tokens: '{}' has the id {}, which is another token in model.vocab",
                        printable(token.text), token.id);
  }
  return {};
}

std::vector<AddedToken> with_normalized(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> chosen;
  std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(chosen),
               [&](const AddedToken& token) { return token.normalized == normalized; });
  return chosen;
}

}  // namespace

Result<Tokenizer::Data> Tokenizer::Data::build(TokenizerFile file) {
  KOHO_TRY_ASSIGN(Vocabulary vocabulary, Vocabulary::build(file.spellings, file.ids));
  KOHO_TRY(check_added_tokens(file.added_tokens, vocabulary));
  KOHO_TRY_ASSIGN(Bpe bpe, Bpe::build(std::move(vocabulary), file.merges, file.ignore_merges));
  KOHO_TRY_ASSIGN(PreTokenizer pre_tokenizer, PreTokenizer::compile(file.split_patterns));
  std::vector<Kind> kinds(static_cast<std::size_t>(bpe.vocabulary().size()), Kind::base);
  std::vector<std::pair<std::int32_t, std::string>> added_bytes;
  std::vector<std::pair<std::string, std::int32_t>> added_ids;
  for (const AddedToken& token : file.added_tokens) {
    const auto id = static_cast<std::size_t>(token.id);
    if (id >= kinds.size()) kinds.resize(id + 1, Kind::none);
    kinds[id] = token.special ? Kind::special : Kind::added;
    std::string bytes;
    if (!append_spelled_bytes(bytes, token.text)) bytes = token.text;
    added_bytes.emplace_back(token.id, std::move(bytes));
    added_ids.emplace_back(token.text, token.id);
  }
  std::sort(added_bytes.begin(), added_bytes.end());
  std::sort(added_ids.begin(), added_ids.end());
  return Data{std::move(bpe),
              std::move(pre_tokenizer),
              AddedTokenMatcher(with_normalized(file.added_tokens, false)),
              AddedTokenMatcher(with_normalized(file.added_tokens, true)),
              std::move(kinds),
              std::move(added_bytes),
              std::move(added_ids)};
}

std::string_view Tokenizer::Data::bytes(std::int32_t id) const {
  switch (kind(id)) {
    case Kind::none:
      return {};
    case Kind::base:
      return bpe.vocabulary().bytes(id);
    case Kind::added:
    case Kind::special:
      break;
  }
  const auto found =
      std::lower_bound(added_bytes.begin(), added_bytes.end(), id,
                       [](const auto& entry, std::int32_t wanted) { return entry.first < wanted; });
  return found->second;
}

Status Tokenizer::Data::encode_plain(std::string_view text, TokenList& out) const {
  if (text.size() > kTextBytesMax)
    return make_error(ErrorCode::resource_exhausted, "the text has {} bytes; the limit is {}",
                      text.size(), kTextBytesMax);
  std::size_t begin = 0;
  return pre_tokenizer.split(text, [&](std::uint32_t end) {
    bpe.encode(text.substr(begin, end - begin), out);
    out.keep();
    begin = end;
  });
}

Tokenizer::Tokenizer(std::unique_ptr<const Data> data) : data_(std::move(data)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::from_json(std::string_view json) {
  KOHO_TRY_ASSIGN(TokenizerFile file, parse_tokenizer_file(json));
  KOHO_TRY_ASSIGN(Data data, Data::build(std::move(file)));
  return Tokenizer(std::make_unique<const Data>(std::move(data)));
}

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& tokenizer_json) {
  KOHO_TRY_ASSIGN(const MappedFile file, MappedFile::open(tokenizer_json));
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() > kFileBytesMax)
    return make_error(ErrorCode::corrupt_data, "{} has {} bytes; the limit is {}",
                      tokenizer_json.string(), bytes.size(), kFileBytesMax);
  Result<Tokenizer> tokenizer =
      from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!tokenizer.ok()) return std::move(tokenizer).error().with_context(tokenizer_json.string());
  return tokenizer;
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text) const {
  KOHO_TRY(check_utf8(text));
  TokenList out;
  KOHO_TRY(data_->encode_plain(text, out));
  return std::move(out.ids);
}

Result<std::vector<std::int32_t>> Tokenizer::encode_with_special(std::string_view text) const {
  KOHO_TRY(check_utf8(text));
  TokenList out;
  KOHO_TRY(data_->cut(
      text, [&](std::string_view plain) { return data_->encode_plain(plain, out); },
      [&](std::int32_t id) {
        out.ids.push_back(id);
        return ok_status();
      }));
  return std::move(out.ids);
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::span<const TextSegment> segments) const {
  std::size_t total = 0;
  return encode(segments, ~std::size_t{0}, total);
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::span<const TextSegment> segments,
                                                    std::size_t ids_max,
                                                    std::size_t& total) const {
  TokenList out{.ids_max = ids_max};
  std::string_view one;  // plain text since the last control token, if it is of one segment …
  std::string joined;    // … or else
  const auto add_plain = [&](std::string_view text) {
    if (!joined.empty()) {
      joined.append(text);
    } else if (one.empty()) {
      one = text;
    } else {
      joined.append(one).append(text);
    }
    return ok_status();
  };
  const auto flush = [&]() -> Status {
    KOHO_TRY(data_->encode_plain(joined.empty() ? one : std::string_view(joined), out));
    one = {};
    joined.clear();
    return {};
  };
  const auto add_control = [&](std::int32_t id) -> Status {
    KOHO_TRY(flush());
    out.ids.push_back(id);
    out.keep();
    return {};
  };
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const TextSegment& segment = segments[i];
    KOHO_TRY(check_utf8(segment.text).with_context(fmt::format("segment {}", i)));
    KOHO_TRY(segment.allow_special ? data_->cut(segment.text, add_plain, add_control)
                                   : add_plain(segment.text));
  }
  KOHO_TRY(flush());
  total = out.dropped + out.ids.size();
  return std::move(out.ids);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const std::int32_t id : ids)
    if (!(skip_special && is_special(id))) bytes += token_bytes(id);
  std::string text;
  text.reserve(bytes.size());
  append_utf8_lossy(text, bytes);
  return text;
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  return data_->bytes(id);
}
bool Tokenizer::is_token(std::int32_t id) const {
  return data_->kind(id) != Data::Kind::none;
}
bool Tokenizer::is_added(std::int32_t id) const {
  return data_->kind(id) == Data::Kind::added || is_special(id);
}
bool Tokenizer::is_special(std::int32_t id) const {
  return data_->kind(id) == Data::Kind::special;
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view added_token) const {
  const auto found = std::lower_bound(
      data_->added_ids.begin(), data_->added_ids.end(), added_token,
      [](const auto& entry, std::string_view wanted) { return entry.first < wanted; });
  if (found == data_->added_ids.end() || found->first != added_token) return std::nullopt;
  return found->second;
}

std::int32_t Tokenizer::vocab_size() const {
  return static_cast<std::int32_t>(data_->kinds.size());
}

}  // namespace koho
