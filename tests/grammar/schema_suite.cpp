// SPDX-License-Identifier: Apache-2.0
// Runs a folder of the public JSON Schema Test Suite's format: files with a list of {"description",
// "schema", "tests": [{"data", "valid"}]}. Prints the shares of schemas that grammars express and
// refuse, and of instances that a grammar judges as the suite does. "wrong": the grammar allows an
// instance that is invalid; there must be none. "narrower": it excludes a valid one (its members
// are in another order, or have names that the schema does not declare).
//
//     schema_suite JSON-Schema-Test-Suite/tests/draft2020-12
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/json_writer.h"
#include "base/mapped_file.h"
#include "grammar/constraint.h"
#include "grammar/grammar_compiler.h"
#include "grammar_accepts.h"
#include "grammar_walk.h"

namespace koho::testing {
namespace {

struct Counts {
  int schemas = 0;
  int refused = 0;
  int right = 0;
  int narrower = 0;
  int wrong = 0;
  void add(const Counts& more) {
    schemas += more.schemas;
    refused += more.refused;
    right += more.right;
    narrower += more.narrower;
    wrong += more.wrong;
  }
};

Counts run_group(const json::Value& group, GrammarCompiler& compiler, bool tells) {
  Counts counts{.schemas = 1};
  std::string schema;
  append_json_value(schema, *group.find("schema"));
  const auto compiled = compiler.compile(Constraint::json_schema(schema));
  if (!compiled.ok()) {
    counts.refused = 1;
    // No value is valid: that is what the error says.
    const bool none = compiled.error().reason == ErrorReason::unsatisfiable_schema;
    for (const json::Value& test : *group.find("tests")->array())
      if (none && *test.find("valid")->boolean()) ++counts.narrower;
    if (tells) std::printf("    refused: %s\n", compiled.error().message.substr(0, 200).c_str());
    return counts;
  }
  for (const json::Value& test : *group.find("tests")->array()) {
    std::string data;
    append_json_value(data, *test.find("data"));
    const bool valid = *test.find("valid")->boolean();
    const bool allowed = accepts(**compiled, data);
    counts.right += allowed == valid ? 1 : 0;
    counts.narrower += valid && !allowed ? 1 : 0;
    if (allowed && !valid) {
      ++counts.wrong;
      std::printf("    WRONG: %s allows %s\n", schema.c_str(), data.c_str());
    }
  }
  return counts;
}

int run(const std::filesystem::path& folder, bool tells) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::ranges::sort(files);
  GrammarCompiler compiler(tiny_tokenizer(), 4096, patient_limits());
  Counts all;
  std::printf("%-28s %8s %8s %8s %8s %8s\n", "file", "schemas", "refused", "right", "narrower",
              "wrong");
  for (const std::filesystem::path& file : files) {
    const Result<std::string> text = read_file(file, 16U << 20U);
    if (!text.ok()) continue;
    const Result<json::Value> groups = json::parse(*text);
    if (!groups.ok()) {
      std::printf("%s: %s\n", file.c_str(), groups.error().message.c_str());
      continue;
    }
    Counts counts;
    for (const json::Value& group : *groups->array()) counts.add(run_group(group, compiler, tells));
    std::printf("%-28s %8d %8d %8d %8d %8d\n", file.stem().c_str(), counts.schemas, counts.refused,
                counts.right, counts.narrower, counts.wrong);
    all.add(counts);
  }
  std::printf("%-28s %8d %8d %8d %8d %8d\n", "all", all.schemas, all.refused, all.right,
              all.narrower, all.wrong);
  return all.wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace koho::testing

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: schema_suite FOLDER [--refusals]\n");
    return 2;
  }
  return koho::testing::run(argv[1], argc > 2);
}
