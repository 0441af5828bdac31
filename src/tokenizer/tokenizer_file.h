// SPDX-License-Identifier: Apache-2.0
// Parses tokenizer.json, the file of Hugging Face tokenizers, into compact structs. Accepts
// byte-level BPE as GLM uses it. Every field is either applied, or has the one value that changes
// nothing; otherwise the file is refused with the field's name.
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
  StringList spellings;           // the keys of model.vocab, in the byte alphabet, in file order
  std::vector<std::int32_t> ids;  // of each spelling
  StringList merges;              // the left and the right part of each merge in turn
  bool ignore_merges = false;
  std::vector<std::string> split_patterns;
  std::vector<AddedToken> added_tokens;
};

/// Errors: corrupt_data (not JSON, or a field is missing or of the wrong kind) and unsupported (a
/// feature that koho lacks), both with the field.
Result<TokenizerFile> parse_tokenizer_file(std::string_view json);

}  // namespace koho
