// SPDX-License-Identifier: Apache-2.0
// Reads the two large fields, model.vocab and model.merges, from parser events directly into string
// lists, and everything else into a small tree.
#include "tokenizer/tokenizer_file.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "base/json.h"
#include "base/printable.h"

namespace koho {
namespace {

constexpr std::size_t kTokensMax = 1U << 21U;
constexpr std::size_t kMergesMax = 1U << 23U;
constexpr std::size_t kAddedTokensMax = 1U << 16U;
constexpr std::size_t kSettingsMax = 1U << 20U;    // values outside of vocab and merges
constexpr std::size_t kTokenBytesMax = 1U << 16U;  // as written in the file
constexpr int kDepthMax = 32;

// GPT-2's split pattern, which ByteLevel applies with use_regex.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Sends events inside model.vocab and model.merges to the lists and all others to the tree, where
/// these two fields become null.
class FileEvents : public json::Events {
 public:
  explicit FileEvents(TokenizerFile& file) : file_(file) {}

  Status null() override {
    if (place_ != Place::settings) return unexpected("null");
    return counted(tree_.null());
  }
  Status boolean(bool value) override {
    if (place_ != Place::settings) return unexpected("a boolean");
    return counted(tree_.boolean(value));
  }
  Status real(double value) override {
    if (place_ != Place::settings) return unexpected("a number");
    return counted(tree_.real(value));
  }
  Status integer(std::int64_t value) override {
    if (place_ == Place::settings) return counted(tree_.integer(value));
    if (place_ != Place::vocab) return unexpected("an integer");
    if (value < 0 || value >= static_cast<std::int64_t>(kTokensMax))
      return make_error(ErrorCode::corrupt_data,
                        "model.vocab: '{}' has the id {}; expected 0 to {}", printable(token_),
                        value, kTokensMax - 1);
    file_.spellings.push_back(token_);
    file_.ids.push_back(static_cast<std::int32_t>(value));
    return {};
  }
  Status string(std::string value) override {
    switch (place_) {
      case Place::settings:
        return counted(tree_.string(std::move(value)));
      case Place::merges:
        return joined_merge(value);
      case Place::merge_pair:
        if (++parts_ <= 2) file_.merges.push_back(value);
        return {};
      case Place::vocab:
        break;
    }
    return unexpected("a string");
  }
  Status key(std::string name) override {
    if (place_ == Place::vocab) {
      if (file_.ids.size() == kTokensMax)
        return make_error(ErrorCode::unsupported, "model.vocab has more than {} tokens",
                          kTokensMax);
      token_ = std::move(name);
      return {};
    }
    if (depth_ == 1) in_model_ = name == "model";
    last_key_ = name;
    return tree_.key(std::move(name));
  }
  Status begin_object() override {
    if (place_ != Place::settings) return unexpected("an object");
    if (at_model_field("vocab")) {
      KOHO_TRY(once(has_vocab_, "vocab"));
      place_ = Place::vocab;
      return {};
    }
    ++depth_;
    return counted(tree_.begin_object());
  }
  Status end_object() override {
    if (place_ == Place::vocab) {
      place_ = Place::settings;
      return tree_.null();
    }
    --depth_;
    return tree_.end_object();
  }
  Status begin_array() override {
    if (place_ == Place::merges) {
      parts_ = 0;
      place_ = Place::merge_pair;
      return {};
    }
    if (place_ != Place::settings) return unexpected("an array");
    if (at_model_field("merges")) {
      KOHO_TRY(once(has_merges_, "merges"));
      place_ = Place::merges;
      return {};
    }
    ++depth_;
    return counted(tree_.begin_array());
  }
  Status end_array() override {
    if (place_ == Place::merge_pair) {
      place_ = Place::merges;
      return parts_ == 2 ? counted_merge() : bad_merge("a list of two tokens");
    }
    if (place_ == Place::merges) {
      place_ = Place::settings;
      return tree_.null();
    }
    --depth_;
    return tree_.end_array();
  }

  json::Value take_settings() { return tree_.take(); }
  bool has_vocab() const { return has_vocab_; }
  bool has_merges() const { return has_merges_; }

 private:
  enum class Place : std::uint8_t { settings, vocab, merges, merge_pair };

  bool at_model_field(std::string_view name) const {
    return depth_ == 2 && in_model_ && last_key_ == name;
  }
  static Status once(bool& seen, std::string_view name) {
    if (std::exchange(seen, true))
      return make_error(ErrorCode::corrupt_data, "model.{} appears twice", name);
    return {};
  }
  Status counted(Status status) {
    if (++settings_ > kSettingsMax)
      return make_error(ErrorCode::corrupt_data,
                        "more than {} values outside of model.vocab and model.merges",
                        kSettingsMax);
    return status;
  }
  Status unexpected(std::string_view found) const {
    if (place_ == Place::vocab)
      return make_error(ErrorCode::corrupt_data, "model.vocab: '{}' has {} for its id",
                        printable(token_), found);
    return bad_merge(found == "a string" ? "a list of two tokens"
                                         : "\"left right\" or [\"left\", \"right\"]");
  }
  Status bad_merge(std::string_view expected) const {
    return make_error(ErrorCode::corrupt_data, "model.merges, entry {}: expected {}",
                      file_.merges.size() / 2, expected);
  }
  Status joined_merge(std::string_view merge) {
    const std::size_t blank = merge.find(' ');
    if (blank == std::string_view::npos || merge.find(' ', blank + 1) != std::string_view::npos)
      return bad_merge("two tokens with one blank between them");
    file_.merges.push_back(merge.substr(0, blank));
    file_.merges.push_back(merge.substr(blank + 1));
    return counted_merge();
  }
  Status counted_merge() const {
    if (file_.merges.size() / 2 > kMergesMax)
      return make_error(ErrorCode::unsupported, "model.merges has more than {} entries",
                        kMergesMax);
    return {};
  }

  TokenizerFile& file_;
  json::TreeEvents tree_;
  Place place_ = Place::settings;
  int depth_ = 0;  // of open objects and arrays in the tree
  bool in_model_ = false;
  bool has_vocab_ = false;
  bool has_merges_ = false;
  std::string last_key_;
  std::string token_;  // the last key of model.vocab
  int parts_ = 0;      // of the current merge pair
  std::size_t settings_ = 0;
};

/// An object of the tree with its path for error messages.
class Section {
 public:
  static Result<Section> of(const json::Value* value, std::string path) {
    if (value == nullptr || value->object() == nullptr)
      return make_error(ErrorCode::corrupt_data, "{} is {}; expected an object", path,
                        value == nullptr ? "missing" : json::kind_name(value->kind()));
    return Section(*value, std::move(path));
  }

  std::string path(std::string_view name) const {
    return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
  }
  const json::Value* find(std::string_view name) const { return value_->find(name); }

  /// Refuses members that are not in `known`.
  Status expect_only(std::initializer_list<std::string_view> known) const {
    for (const json::Member& member : *value_->object())
      if (std::find(known.begin(), known.end(), member.name) == known.end())
        return make_error(ErrorCode::unsupported, "unknown field {}", path(printable(member.name)));
    return {};
  }
  Result<std::string> string(std::string_view name) const {
    const json::Value* value = find(name);
    if (value == nullptr || value->string() == nullptr) return wrong(name, "a string");
    return *value->string();
  }
  Result<std::int64_t> integer(std::string_view name) const {
    const json::Value* value = find(name);
    if (value == nullptr || !value->integer()) return wrong(name, "an integer");
    return *value->integer();
  }
  Result<bool> boolean(std::string_view name) const {
    const json::Value* value = find(name);
    if (value == nullptr || !value->boolean()) return wrong(name, "a boolean");
    return *value->boolean();
  }
  /// `otherwise` if the field is missing.
  Result<bool> boolean_or(std::string_view name, bool otherwise) const {
    return find(name) == nullptr ? Result<bool>(otherwise) : boolean(name);
  }
  Status expect_null(std::string_view name) const {
    const json::Value* value = find(name);
    if (value == nullptr || value->is_null()) return {};
    return make_error(ErrorCode::unsupported, "{} is {}; koho supports null only", path(name),
                      json::kind_name(value->kind()));
  }
  Status expect_null_or_string(std::string_view name) const {
    const json::Value* value = find(name);
    if (value == nullptr || value->is_null() || value->string() != nullptr) return {};
    return wrong(name, "null or a string");
  }
  Status expect_null_or_empty(std::string_view name) const {
    const json::Value* value = find(name);
    if (value != nullptr && value->string() != nullptr && value->string()->empty()) return {};
    return expect_null(name);
  }
  Status expect_boolean(std::string_view name, bool supported) const {
    KOHO_TRY_ASSIGN(const bool value, boolean_or(name, supported));
    if (value == supported) return {};
    return make_error(ErrorCode::unsupported, "{} is {}; koho supports {} only", path(name), value,
                      supported);
  }
  Status expect_string(std::string_view name, std::string_view supported) const {
    KOHO_TRY_ASSIGN(const std::string value, string(name));
    if (value == supported) return {};
    return make_error(ErrorCode::unsupported, "{} is '{}'; koho supports '{}' only", path(name),
                      printable(value), supported);
  }
  Error wrong(std::string_view name, std::string_view expected) const {
    const json::Value* value = find(name);
    return make_error(ErrorCode::corrupt_data, "{} is {}; expected {}", path(name),
                      value == nullptr ? "missing" : json::kind_name(value->kind()), expected);
  }

 private:
  Section(const json::Value& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const json::Value* value_;
  std::string path_;
};

Status read_model(const Section& top, TokenizerFile& file) {
  KOHO_TRY_ASSIGN(const Section model, Section::of(top.find("model"), "model"));
  KOHO_TRY(model.expect_string("type", "BPE"));
  KOHO_TRY(model.expect_only({"type", "dropout", "unk_token", "continuing_subword_prefix",
                              "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
                              "vocab", "merges"}));
  KOHO_TRY(model.expect_null("dropout"));
  KOHO_TRY(model.expect_null_or_empty("continuing_subword_prefix"));
  KOHO_TRY(model.expect_null_or_empty("end_of_word_suffix"));
  // All 256 bytes are tokens, so no text is unknown: the next three fields change no result.
  KOHO_TRY(model.expect_null_or_string("unk_token"));
  for (const char* unused : {"fuse_unk", "byte_fallback"})
    if (Result<bool> value = model.boolean_or(unused, false); !value.ok())
      return std::move(value).error();
  KOHO_TRY_ASSIGN(file.ignore_merges, model.boolean_or("ignore_merges", false));
  return {};
}

Status read_split(const Section& split, TokenizerFile& file) {
  KOHO_TRY(split.expect_only({"type", "pattern", "behavior", "invert"}));
  KOHO_TRY(split.expect_string("behavior", "Isolated"));
  KOHO_TRY(split.expect_boolean("invert", false));
  KOHO_TRY_ASSIGN(const Section pattern, Section::of(split.find("pattern"), split.path("pattern")));
  KOHO_TRY(pattern.expect_only({"Regex"}));
  KOHO_TRY_ASSIGN(std::string regex, pattern.string("Regex"));
  file.split_patterns.push_back(std::move(regex));
  return {};
}

Status read_byte_level(const Section& byte_level, TokenizerFile& file) {
  KOHO_TRY(byte_level.expect_only({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  KOHO_TRY(byte_level.expect_boolean("add_prefix_space", false));
  KOHO_TRY_ASSIGN(const bool use_regex, byte_level.boolean_or("use_regex", true));
  if (use_regex) file.split_patterns.emplace_back(kByteLevelPattern);
  return {};
}

/// Accepts a Sequence of Split with ByteLevel as its last element, or ByteLevel alone.
Status read_pre_tokenizer(const Section& top, TokenizerFile& file) {
  KOHO_TRY_ASSIGN(const Section pre, Section::of(top.find("pre_tokenizer"), "pre_tokenizer"));
  KOHO_TRY_ASSIGN(const std::string type, pre.string("type"));
  if (type == "ByteLevel") return read_byte_level(pre, file);
  if (type != "Sequence") return pre.expect_string("type", "Sequence");
  KOHO_TRY(pre.expect_only({"type", "pretokenizers"}));
  const json::Value* list = pre.find("pretokenizers");
  if (list == nullptr || list->array() == nullptr || list->array()->empty())
    return pre.wrong("pretokenizers", "a non-empty array");
  for (std::size_t i = 0; i < list->array()->size(); ++i) {
    KOHO_TRY_ASSIGN(
        const Section step,
        Section::of(&(*list->array())[i], fmt::format("{}[{}]", pre.path("pretokenizers"), i)));
    if (i + 1 == list->array()->size()) {
      KOHO_TRY(step.expect_string("type", "ByteLevel"));
      KOHO_TRY(read_byte_level(step, file));
    } else {
      KOHO_TRY(step.expect_string("type", "Split"));
      KOHO_TRY(read_split(step, file));
    }
  }
  return {};
}

/// Accepts null and ByteLevel, which changes only offsets. koho reports none.
Status read_post_processor(const Section& top) {
  const json::Value* value = top.find("post_processor");
  if (value == nullptr || value->is_null()) return {};
  KOHO_TRY_ASSIGN(const Section post, Section::of(value, "post_processor"));
  KOHO_TRY(post.expect_string("type", "ByteLevel"));
  return post.expect_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

Status read_decoder(const Section& top) {
  KOHO_TRY_ASSIGN(const Section decoder, Section::of(top.find("decoder"), "decoder"));
  KOHO_TRY(decoder.expect_string("type", "ByteLevel"));
  return decoder.expect_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

Result<AddedToken> read_added_token(const Section& entry) {
  KOHO_TRY(entry.expect_only(
      {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  AddedToken token;
  KOHO_TRY_ASSIGN(token.text, entry.string("content"));
  const std::string context = "added token '" + printable(token.text) + "'";
  if (token.text.empty())
    return make_error(ErrorCode::corrupt_data, "{} is empty", entry.path("content"));
  KOHO_TRY(entry.expect_boolean("single_word", false).with_context(context));
  KOHO_TRY(entry.expect_boolean("lstrip", false).with_context(context));
  KOHO_TRY(entry.expect_boolean("rstrip", false).with_context(context));
  KOHO_TRY_ASSIGN(token.special, entry.boolean("special"));
  KOHO_TRY_ASSIGN(token.normalized, entry.boolean_or("normalized", !token.special));
  KOHO_TRY_ASSIGN(const std::int64_t id, entry.integer("id"));
  if (id < 0 || id >= static_cast<std::int64_t>(kTokensMax))
    return make_error(ErrorCode::corrupt_data, "{} is {}; expected 0 to {}", entry.path("id"), id,
                      kTokensMax - 1);
  token.id = static_cast<std::int32_t>(id);
  return token;
}

Status read_added_tokens(const Section& top, TokenizerFile& file) {
  const json::Value* list = top.find("added_tokens");
  if (list == nullptr) return {};
  if (list->array() == nullptr) return top.wrong("added_tokens", "an array");
  if (list->array()->size() > kAddedTokensMax)
    return make_error(ErrorCode::unsupported, "added_tokens has {} entries; at most {}",
                      list->array()->size(), kAddedTokensMax);
  for (std::size_t i = 0; i < list->array()->size(); ++i) {
    KOHO_TRY_ASSIGN(const Section entry,
                    Section::of(&(*list->array())[i], fmt::format("added_tokens[{}]", i)));
    KOHO_TRY_ASSIGN(AddedToken token, read_added_token(entry));
    file.added_tokens.push_back(std::move(token));
  }
  return {};
}

}  // namespace

Result<TokenizerFile> parse_tokenizer_file(std::string_view json) {
  TokenizerFile file;
  FileEvents events(file);
  KOHO_TRY(json::parse_events(json, {.depth_max = kDepthMax, .string_bytes_max = kTokenBytesMax},
                              events));
  const json::Value settings = events.take_settings();
  KOHO_TRY_ASSIGN(const Section top, Section::of(&settings, ""));
  KOHO_TRY(top.expect_only({"version", "truncation", "padding", "added_tokens", "normalizer",
                            "pre_tokenizer", "post_processor", "decoder", "model"}));
  KOHO_TRY(top.expect_string("version", "1.0"));
  KOHO_TRY(top.expect_null("truncation"));
  KOHO_TRY(top.expect_null("padding"));
  KOHO_TRY(top.expect_null("normalizer"));
  KOHO_TRY(read_model(top, file));
  if (!events.has_vocab())
    return make_error(ErrorCode::corrupt_data, "model.vocab is missing or not an object");
  if (!events.has_merges())
    return make_error(ErrorCode::corrupt_data, "model.merges is missing or not an array");
  KOHO_TRY(read_pre_tokenizer(top, file));
  KOHO_TRY(read_post_processor(top));
  KOHO_TRY(read_decoder(top));
  KOHO_TRY(read_added_tokens(top, file));
  return file;
}

}  // namespace koho
