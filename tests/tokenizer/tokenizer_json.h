// SPDX-License-Identifier: Apache-2.0
// Writes tokenizer.json files for tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace koho::testing {

struct AddedTokenLine {
  std::string text;
  int id = 0;
  bool special = true;
  bool normalized = false;
};

/// A byte-level BPE. The 256 bytes have the ids 0 to 255; `tokens`, given as bytes, follow.
struct TokenizerRecipe {
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<AddedTokenLine> added;
  std::string pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  bool ignore_merges = false;
  bool merges_as_pairs = true;  // write ["a", "b"]; false: "a b"
};

/// The text of the file, with one value per line as Hugging Face tokenizers writes it.
std::string tokenizer_json(const TokenizerRecipe& recipe);

/// A recipe with `num_tokens` tokens, each the concatenation of two earlier ones, and up to
/// `num_merges` merges: all splits of a token into two tokens.
TokenizerRecipe large_recipe(int num_tokens, std::size_t num_merges);

/// A recipe that merges a run of each unit into tokens of 1, 2, 4, ... 64 units: the most merges
/// that a run of a unit can take.
TokenizerRecipe doubling_recipe(const std::vector<std::string>& units);

}  // namespace koho::testing
