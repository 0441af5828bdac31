// SPDX-License-Identifier: Apache-2.0
#include "tests/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <random>
#include <set>
#include <unordered_map>

#include <fmt/format.h>

#include "tokenizer/byte_alphabet.h"

namespace koho::testing {
namespace {

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string spelled(std::string_view bytes) {
  return in_quotes(spell_bytes(bytes));
}

void write_vocabulary(const TokenizerRecipe& recipe, std::string& out) {
  out += "    \"vocab\": {";
  for (int byte = 0; byte < 256; ++byte)
    out += fmt::format("{}\n      {}: {}", byte == 0 ? "" : ",",
                       spelled(std::string(1, static_cast<char>(byte))), byte);
  for (std::size_t i = 0; i < recipe.tokens.size(); ++i)
    out += fmt::format(",\n      {}: {}", spelled(recipe.tokens[i]), 256 + i);
  out += "\n    },\n";
}

void write_merges(const TokenizerRecipe& recipe, std::string& out) {
  out += "    \"merges\": [";
  const char* comma = "";
  for (const auto& [left, right] : recipe.merges) {
    if (recipe.merges_as_pairs) {
      out += fmt::format("{}\n      [\n        {},\n        {}\n      ]", comma, spelled(left),
                         spelled(right));
    } else {
      out += fmt::format("{}\n      {}", comma,
                         in_quotes(spell_bytes(left) + " " + spell_bytes(right)));
    }
    comma = ",";
  }
  out += "\n    ]\n";
}

}  // namespace

std::string tokenizer_json(const TokenizerRecipe& recipe) {
  std::string out =
      "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
      "  \"added_tokens\": [";
  const char* comma = "";
  for (const AddedTokenLine& token : recipe.added) {
    out += fmt::format(
        "{}\n    {{\"id\": {}, \"content\": {}, \"single_word\": false, \"lstrip\": false, "
        "\"rstrip\": false, \"normalized\": {}, \"special\": {}}}",
        comma, token.id, in_quotes(token.text), token.normalized, token.special);
    comma = ",";
  }
  out += fmt::format(
      "\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": {{\"type\": \"Sequence\", "
      "\"pretokenizers\": [\n    {{\"type\": \"Split\", \"pattern\": {{\"Regex\": {}}}, "
      "\"behavior\": \"Isolated\", \"invert\": false}},\n    {{\"type\": \"ByteLevel\", "
      "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}}\n  ]}},\n",
      in_quotes(recipe.pattern));
  out +=
      "  \"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
      "\"trim_offsets\": false, \"use_regex\": true},\n"
      "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
      "\"trim_offsets\": true, \"use_regex\": true},\n";
  out += fmt::format(
      "  \"model\": {{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n"
      "    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n    \"ignore_merges\": {},\n",
      recipe.ignore_merges);
  write_vocabulary(recipe, out);
  write_merges(recipe, out);
  return out + "  }\n}\n";
}

TokenizerRecipe large_recipe(int num_tokens, std::size_t num_merges) {
  constexpr std::size_t kTokenBytesMax = 12;
  TokenizerRecipe recipe;
  std::mt19937 random(20261121);
  std::unordered_map<std::string, int> known;
  std::vector<std::string> all;
  for (int byte = 0; byte < 256; ++byte) all.emplace_back(1, static_cast<char>(byte));
  for (const std::string& token : all) known.emplace(token, 0);
  const auto pick = [&]() -> const std::string& {
    // Mostly letters, so that tokens grow as words do.
    return random() % 4 == 0 ? all['a' + random() % 26] : all[random() % all.size()];
  };
  while (static_cast<int>(all.size()) < num_tokens) {
    const std::string left = pick();
    const std::string right = pick();
    std::string token = left + right;
    if (token.size() > kTokenBytesMax || !known.emplace(token, 0).second) continue;
    recipe.merges.emplace_back(left, right);
    recipe.tokens.push_back(token);
    all.push_back(std::move(token));
  }
  const std::size_t first = recipe.merges.size();
  for (std::size_t i = 0; i < first && recipe.merges.size() < num_merges; ++i) {
    const std::string& token = recipe.tokens[i];
    for (std::size_t cut = 1; cut < token.size() && recipe.merges.size() < num_merges; ++cut) {
      std::pair<std::string, std::string> split(token.substr(0, cut), token.substr(cut));
      if (split != recipe.merges[i] && known.count(split.first) != 0 &&
          known.count(split.second) != 0)
        recipe.merges.push_back(std::move(split));
    }
  }
  return recipe;
}

TokenizerRecipe doubling_recipe(const std::vector<std::string>& units) {
  constexpr std::size_t kRepeatMax = 64;
  TokenizerRecipe recipe;
  std::set<std::string> known;
  const auto merge = [&](const std::string& left, const std::string& right) {
    if (!known.insert(left + right).second) return;
    recipe.tokens.push_back(left + right);
    recipe.merges.emplace_back(left, right);
  };
  for (const std::string& unit : units) {
    for (std::size_t i = 1; i < unit.size(); ++i) merge(unit.substr(0, i), unit.substr(i, 1));
    std::string run = unit;
    for (std::size_t repeat = 1; repeat < kRepeatMax; repeat *= 2) {
      merge(run, run);
      run += run;
    }
  }
  return recipe;
}

}  // namespace koho::testing
