// SPDX-License-Identifier: Apache-2.0
// Schemas and expressions with texts that they allow, and texts that they do not.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "grammar/grammar_compiler.h"
#include "grammar_walk.h"

namespace koho::testing {

/// Of models/tiny's vocabulary; the same for all tests of a program.
inline GrammarCompiler& compiler() {
  static GrammarCompiler made(tiny_tokenizer(), 4096, patient_limits());
  return made;
}

struct Case {
  const char* name;
  std::string source;
  std::vector<std::string> allowed;
  std::vector<std::string> excluded;
};

inline void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

}  // namespace koho::testing
