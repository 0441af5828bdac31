// SPDX-License-Identifier: Apache-2.0
// Runs a folder of schemas with instances: the public JSON Schema Test Suite's files, each a list
// of {"description", "schema", "tests": [{"data", "valid"}]}, or JSONSchemaBench's (MaskBench),
// each one such object, named DATASET---NAME.json. Prints the shares of schemas that grammars
// express and refuse, and of instances that a grammar judges as the suite does. "wrong": the
// grammar allows an instance that is invalid; there must be none. "narrower": it excludes a valid
// one (its members are in another order, or have names that the schema does not declare). With a
// tokenizer.json, the time of each token's accept() and fill_mask() in the instances, too.
//
//     schema_suite JSON-Schema-Test-Suite/tests/draft2020-12
//     schema_suite jsonschemabench/maskbench/data --tokenizer qwen2.json --each 7 --from 3
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/json_writer.h"
#include "base/mapped_file.h"
#include "grammar/constraint.h"
#include "grammar/grammar_compiler.h"
#include "grammar/matcher.h"
#include "grammar_walk.h"
#include "tests/support/thread_time.h"
#include "tokenizer/tokenizer.h"

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

struct Options {
  std::filesystem::path folder;
  std::string tokenizer;  // a tokenizer.json; "": the tiny model's
  bool tells = false;     // prints why schemas are refused, and what is narrower
  bool all = false;       // fails if a schema is refused or a valid instance excluded
  int each = 1;           // only each nth file
  int from = 0;           // of each n
};

/// As append_json_value(), but 3.0 stays 3.0, which is no integer in draft 4. Recursive; the JSON
/// parser has bounded the depth.
void append_data(std::string& out, const json::Value& value) {
  char before = 0;
  const auto separate = [&](char opening) {
    out += before == 0 ? opening : ',';
    before = ',';
  };
  if (const json::Value::Object* object = value.object()) {
    for (const json::Member& member : *object) {
      separate('{');
      append_json_string(out, member.name);
      out += ':';
      append_data(out, member.value);
    }
    out += before == 0 ? "{}" : "}";
  } else if (const json::Value::Array* array = value.array()) {
    for (const json::Value& item : *array) {
      separate('[');
      append_data(out, item);
    }
    out += before == 0 ? "[]" : "]";
  } else {
    const std::size_t begin = out.size();
    append_json_value(out, value);
    const bool real = value.kind() == json::Kind::real;
    if (real && out.find_first_of(".eE", begin) == std::string::npos) out += ".0";
  }
}

class Suite {
 public:
  Suite(const Options& options, const Tokenizer& tokenizer)
      : options_(options),
        tokenizer_(tokenizer),
        compiler_(tokenizer, tokenizer.vocab_size()),
        mask_(mask_words(tokenizer.vocab_size())) {
    static_cast<void>(compiler_.compile(Constraint::choice({"a"})));  // reads the vocabulary
  }

  int run();

 private:
  void run_group(const json::Value& group, Counts& counts);
  /// As a server would: each token must be in the mask.
  bool allows(const CompiledGrammar& grammar, std::string_view text);
  void print(std::string_view name, const Counts& counts) const {
    std::printf("%-28.28s %8d %8d %8d %8d %8d\n", std::string(name).c_str(), counts.schemas,
                counts.refused, counts.right, counts.narrower, counts.wrong);
  }

  const Options& options_;
  const Tokenizer& tokenizer_;
  GrammarCompiler compiler_;
  std::vector<std::uint32_t> mask_;
  std::vector<float> steps_us_;
  std::vector<float> compiles_ms_;
  std::map<std::string, int> refusals_;
};

bool Suite::allows(const CompiledGrammar& grammar, std::string_view text) {
  const Result<std::unique_ptr<Matcher>> matcher = grammar.start();
  const Result<std::vector<std::int32_t>> ids = tokenizer_.encode(text);
  if (!matcher.ok() || !ids.ok() || !(*matcher)->fill_mask(mask_).ok()) return false;
  for (const std::int32_t id : *ids) {
    if (!is_set(mask_, id)) return false;
    const double begin = thread_us();
    const bool moved = (*matcher)->accept(id).ok() && (*matcher)->fill_mask(mask_).ok();
    steps_us_.push_back(static_cast<float>(thread_us() - begin));
    if (options_.tells && steps_us_.back() > 1000)
      std::printf("    slow: %.0f us after %.40s in %.120s\n",
                  static_cast<double>(steps_us_.back()),
                  std::string(tokenizer_.token_bytes(id)).c_str(), std::string(text).c_str());
    if (!moved) return false;
  }
  return (*matcher)->can_end();
}

void Suite::run_group(const json::Value& group, Counts& counts) {
  ++counts.schemas;
  std::string schema;
  append_json_value(schema, *group.find("schema"));
  const std::int64_t before = compiler_.statistics().compile_us;
  const auto compiled = compiler_.compile(Constraint::json_schema(schema));
  const std::int64_t compile_us = compiler_.statistics().compile_us - before;
  compiles_ms_.push_back(static_cast<float>(compile_us) * 1e-3F);
  const json::Value* tests = group.find("tests");
  if (!compiled.ok()) {
    ++counts.refused;
    // No value is valid: that is what the error says.
    const bool none = compiled.error().reason == ErrorReason::unsatisfiable_schema;
    if (none && tests != nullptr)
      for (const json::Value& test : *tests->array())
        if (*test.find("valid")->boolean()) ++counts.narrower;
    const std::string message = compiled.error().message.substr(0, 200);
    ++refusals_[message.substr(0, message.find(':'))];
    if (options_.tells) std::printf("    refused: %s\n", message.c_str());
    return;
  }
  if (tests == nullptr) return;
  for (const json::Value& test : *tests->array()) {
    std::string data;
    append_data(data, *test.find("data"));
    const bool valid = *test.find("valid")->boolean();
    const bool allowed = allows(**compiled, data);
    counts.right += allowed == valid ? 1 : 0;
    counts.narrower += valid && !allowed ? 1 : 0;
    if (options_.tells && valid && !allowed)
      std::printf("    narrower: %.300s excludes %.300s\n", schema.c_str(), data.c_str());
    if (allowed && !valid) {
      ++counts.wrong;
      std::printf("    WRONG: %.2000s allows %.1000s\n", schema.c_str(), data.c_str());
    }
  }
}

void print_times(const char* what, std::vector<float>& times) {
  if (times.empty()) return;
  std::ranges::sort(times);
  const auto at = [&](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
  };
  std::printf("%s (%zu): p50 %.1f p99 %.1f p99.9 %.1f most %.1f\n", what, times.size(), at(0.5),
              at(0.99), at(0.999), at(1));
}

int Suite::run() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(options_.folder))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::ranges::sort(files);
  std::map<std::string, Counts> by_set;
  Counts all;
  for (auto i = static_cast<std::size_t>(options_.from); i < files.size();
       i += static_cast<std::size_t>(options_.each)) {
    const Result<std::string> text = read_file(files[i], 16U << 20U);
    if (!text.ok()) continue;
    const Result<json::Value> groups = json::parse(*text);
    if (!groups.ok()) {
      std::printf("%s: %s\n", files[i].c_str(), groups.error().message.c_str());
      continue;
    }
    Counts counts;
    if (groups->array() != nullptr) {
      for (const json::Value& group : *groups->array()) run_group(group, counts);
    } else if (groups->find("schema") != nullptr) {
      run_group(*groups, counts);
    }
    const std::string stem = files[i].stem().string();
    by_set[stem.substr(0, stem.find("---"))].add(counts);
    all.add(counts);
  }
  std::printf("%-28s %8s %8s %8s %8s %8s\n", "file", "schemas", "refused", "right", "narrower",
              "wrong");
  Counts single;  // files that are the only one of their set, if there are many
  for (const auto& [name, counts] : by_set) {
    if (by_set.size() > 100 && counts.schemas == 1) {
      single.add(counts);
    } else {
      print(name, counts);
    }
  }
  if (single.schemas > 0) print("others", single);
  print("all", all);
  for (const auto& [reason, count] : refusals_) std::printf("%s: %d\n", reason.c_str(), count);
  print_times("to compile, ms of processor time", compiles_ms_);
  print_times("a token's accept and fill_mask, us of processor time", steps_us_);
  const bool complete = all.schemas > 0 && all.refused == 0 && all.narrower == 0;
  return all.wrong == 0 && (complete || !options_.all) ? 0 : 1;
}

}  // namespace
}  // namespace koho::testing

int main(int argc, char** argv) {
  using namespace koho;
  testing::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--refusals") {
      options.tells = true;
    } else if (argument == "--all") {
      options.all = true;
    } else if (argument == "--tokenizer" && i + 1 < argc) {
      options.tokenizer = argv[++i];
    } else if (argument == "--each" && i + 1 < argc) {
      options.each = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--from" && i + 1 < argc) {
      options.from = std::max(0, std::atoi(argv[++i]));
    } else {
      options.folder = argument;
    }
  }
  if (options.folder.empty()) {
    std::fprintf(stderr,
                 "usage: schema_suite FOLDER [--refusals] [--all] [--tokenizer TOKENIZER_JSON] "
                 "[--each N] [--from I]\n");
    return 2;
  }
  if (options.tokenizer.empty()) return testing::Suite(options, testing::tiny_tokenizer()).run();
  const Result<Tokenizer> tokenizer = Tokenizer::load(options.tokenizer);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
    return 1;
  }
  return testing::Suite(options, *tokenizer).run();
}
