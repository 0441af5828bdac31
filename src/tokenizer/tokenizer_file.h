// SPDX-License-Identifier: Apache-2.0
// tokenizer.json as Hugging Face tokenizers writes it, read into compact structs. Accepts
// byte-level BPE of the GLM kind; every field is honoured, or its value is the only one that
// changes nothing, or the file is refused with the field's name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/string_list.h"

namespace koho {

struct TokenizerFile {
  StringList spellings;           // of model.vocab, in the byte alphabet, in the file's order
  std::vector<std::int32_t> ids;  // of each spelling
  StringList merges;              // left and right in turn
  bool ignore_merges = false;
  std::vector<std::string> split_patterns;
  std::vector<AddedToken> added_tokens;
};

/// Errors: corrupt_data (not JSON, a field missing or of the wrong kind), unsupported (a feature
/// koho does not have), both naming the field.
Result<TokenizerFile> parse_tokenizer_file(std::string_view json);

}  // namespace koho
