// SPDX-License-Identifier: Apache-2.0
// tokenizer.json files made by code.
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

/// A byte-level BPE: the 256 bytes have the ids 0 to 255, then come `tokens`, given as bytes.
struct TokenizerRecipe {
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<AddedTokenLine> added;
  std::string pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  bool ignore_merges = false;
  bool merges_as_pairs = true;  // ["a", "b"], else "a b"
};

/// The file, written with a line for each value as Hugging Face tokenizers writes it.
std::string tokenizer_json(const TokenizerRecipe& recipe);

/// A recipe with `num_tokens` tokens of which each is the join of two earlier ones, and with up to
/// `num_merges` merges: all splits of a token into two tokens.
TokenizerRecipe large_recipe(int num_tokens, std::size_t num_merges);

/// A recipe that merges runs of each unit to ever longer tokens: its bytes to one, one to two, two
/// to four, up to 64. The hardest work that a run of a unit can be.
TokenizerRecipe doubling_recipe(const std::vector<std::string>& units);

}  // namespace koho::testing
