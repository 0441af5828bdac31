// SPDX-License-Identifier: Apache-2.0
// grammar_bench: what a constrained token costs the host at a vocabulary of GLM's size: CPU time of
// one thread for accept() and fill_mask(), over walks through grammars in which each token is drawn
// from those allowed; and how long a first request waits for its tools' grammar. For
// docs/grammar.md. Vocabularies of our own, or the tokenizer.json of a real one, which must have
// the tags of tool calls (tools/gguf_tokenizer.py).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <random>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/json_writer.h"
#include "base/mapped_file.h"
#include "grammar/grammar_compiler.h"
#include "tests/tokenizer/tokenizer_json.h"

namespace {

using namespace koho;

constexpr const char* kTags[] = {"<tool_call>", "</tool_call>", "<arg_key>",
                                 "</arg_key>",  "<arg_value>",  "</arg_value>"};
constexpr int kFirstTag = 151'552 - static_cast<int>(std::size(kTags));

double processor_us(clockid_t of) {
  timespec now{};
  clock_gettime(of, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

struct Costs {
  std::vector<double> tokens_us;
  double compile_us = 0;
  int refused = 0;
};

bool allows(const std::vector<std::uint32_t>& mask, std::int32_t token) {
  return ((mask[static_cast<std::size_t>(token) / 32] >> (token % 32)) & 1U) != 0;
}

/// As a model does, closes strings and lists after a while instead of going on for ever.
std::int32_t choose(const std::vector<std::uint32_t>& mask,
                    const Tokenizer& tokenizer,
                    std::mt19937_64& random,
                    bool closes) {
  if (closes)
    for (const char c : {'"', '}', ']'})
      if (allows(mask, static_cast<unsigned char>(c))) return static_cast<unsigned char>(c);
  const auto size = static_cast<std::uint64_t>(tokenizer.vocab_size());
  for (int tries = 0; tries < 2000; ++tries)
    if (const auto token = static_cast<std::int32_t>(random() % size); allows(mask, token))
      return token;
  for (std::int32_t token = 0; token < tokenizer.vocab_size(); ++token)
    if (allows(mask, token)) return token;
  return -1;
}

/// Moves on by `token` and fills the next mask; adds the time to `costs`.
Status step(Matcher& matcher, std::int32_t token, std::vector<std::uint32_t>& mask, Costs& costs) {
  const double begin = processor_us(CLOCK_THREAD_CPUTIME_ID);
  Status status = matcher.accept(token);
  if (status.ok()) status = matcher.fill_mask(mask);
  costs.tokens_us.push_back(processor_us(CLOCK_THREAD_CPUTIME_ID) - begin);
  return status;
}

void walk(const CompiledGrammar& grammar,
          const Tokenizer& tokenizer,
          std::uint64_t seed,
          int tokens_max,
          Costs& costs) {
  std::mt19937_64 random(seed);
  std::vector<std::uint32_t> mask(mask_words(tokenizer.vocab_size()));
  Result<std::unique_ptr<Matcher>> matcher = grammar.start();
  if (!matcher.ok() || !(*matcher)->fill_mask(mask).ok()) return;
  for (int i = 0; i < tokens_max; ++i) {
    const std::int32_t token = choose(mask, tokenizer, random, random() % 8 == 0 || i > 200);
    if (token < 0) return;
    const Status status = step(**matcher, token, mask, costs);
    if (!status.ok()) {
      std::printf("  failed after %d tokens, the last '%s': %s\n", i,
                  std::string(tokenizer.token_bytes(token)).c_str(),
                  status.error().message.c_str());
      return;
    }
  }
}

void report(const char* name, std::size_t grammars, Costs& costs) {
  std::vector<double>& us = costs.tokens_us;
  std::ranges::sort(us);
  const auto at = [&](double share) {
    return us.empty() ? 0.0
                      : us[static_cast<std::size_t>(share * static_cast<double>(us.size() - 1))];
  };
  double sum = 0;
  for (const double one : us) sum += one;
  std::printf(
      "%-28s %4zu grammars, %3d refused, %6.1f ms to compile, %6zu tokens: mean %6.1f p50 %6.1f "
      "p99 %7.1f most %8.1f us\n",
      name, grammars, costs.refused,
      costs.compile_us / 1e3 / static_cast<double>(std::max<std::size_t>(grammars, 1)), us.size(),
      us.empty() ? 0 : sum / static_cast<double>(us.size()), at(0.5), at(0.99), at(1.0));
}

void run(const char* name,
         const std::vector<Constraint>& constraints,
         GrammarCompiler& compiler,
         const Tokenizer& tokenizer) {
  Costs costs;
  for (std::size_t i = 0; i < constraints.size(); ++i) {
    const double begin = processor_us(CLOCK_PROCESS_CPUTIME_ID);  // this thread only waits
    const Result<GrammarCompiler::Grammar> grammar = compiler.compile(constraints[i]);
    costs.compile_us += processor_us(CLOCK_PROCESS_CPUTIME_ID) - begin;
    if (!grammar.ok()) {
      ++costs.refused;
      std::printf("  refused: %.100s: %.300s\n", grammar.error().message.c_str(),
                  constraints[i].text.c_str());
      continue;
    }
    const auto before = static_cast<std::ptrdiff_t>(costs.tokens_us.size());
    walk(**grammar, tokenizer, i, 256, costs);
    const auto slow = std::count_if(costs.tokens_us.begin() + before, costs.tokens_us.end(),
                                    [](double us) { return us > 1000; });
    if (slow > 0)
      std::printf("  %td tokens took more than a millisecond: %.200s\n", slow,
                  constraints[i].text.c_str());
  }
  report(name, constraints.size(), costs);
}

/// Tools as agents declare them: a path, options, an enumeration, a list, and in every fourth one
/// an object. No two have the same names.
std::vector<ToolGrammar> make_tools(int count) {
  std::vector<ToolGrammar> tools;
  for (int i = 0; i < count; ++i) {
    const std::string nested =
        i % 4 == 0
            ? fmt::format(
                  R"(,"where_{0}":{{"type":"object","properties":{{"line":{{"type":"integer"}},"text":{{"type":"string"}}}},"required":["line"]}})",
                  i)
            : "";
    tools.push_back(
        {.name = fmt::format("tool_{}", i),
         .parameters = fmt::format(
             R"({{"type":"object","properties":{{"path_{0}":{{"type":"string","description":"A path"}},"limit_{0}":{{"type":"integer"}},"all_{0}":{{"type":"boolean"}},"mode_{0}":{{"type":"string","enum":["read","write","append"]}},"names_{0}":{{"type":"array","items":{{"type":"string"}}}}{1}}},"required":["path_{0}","mode_{0}"]}})",
             i, nested)});
  }
  return tools;
}

/// A vocabulary of `num_tokens` in which every token is text, as nearly all are of a trained one;
/// most of large_recipe's hold bytes that are no UTF-8.
testing::TokenizerRecipe text_recipe(int num_tokens) {
  constexpr std::size_t kTokenBytesMax = 12;
  testing::TokenizerRecipe recipe;
  std::mt19937 random(20261122);
  std::vector<std::string> all;
  for (int byte = ' '; byte <= '~'; ++byte) all.emplace_back(1, static_cast<char>(byte));
  std::unordered_set<std::string> known(all.begin(), all.end());
  const auto pick = [&]() -> const std::string& {
    return random() % 2 == 0 ? all['a' - ' ' + random() % 26] : all[random() % all.size()];
  };
  while (static_cast<int>(recipe.tokens.size()) < num_tokens - 256) {
    const std::string left = pick();
    const std::string right = pick();
    if (left.size() + right.size() > kTokenBytesMax || !known.insert(left + right).second) continue;
    recipe.merges.emplace_back(left, right);
    recipe.tokens.push_back(left + right);
    all.push_back(left + right);
  }
  return recipe;
}

/// Tools with several texts as arguments: bounded, with patterns and formats, in lists and objects.
std::vector<ToolGrammar> make_text_tools() {
  return {
      {.name = "write_file",
       .parameters =
           R"({"type":"object","properties":{"path":{"type":"string"},"content":{"type":"string"},"encoding":{"type":"string","enum":["utf-8","latin-1"]},"comment":{"type":"string"}},"required":["path","content"]})"},
      {.name = "send_mail",
       .parameters =
           R"({"type":"object","properties":{"to":{"type":"array","items":{"type":"string"}},"subject":{"type":"string"},"body":{"type":"string"},"headers":{"type":"object","additionalProperties":{"type":"string"}}},"required":["to","subject","body"]})"},
      {.name = "edit",
       .parameters =
           R"({"type":"object","properties":{"edits":{"type":"array","items":{"type":"object","properties":{"old":{"type":"string"},"new":{"type":"string"},"where":{"type":"string"}},"required":["old","new"]}},"message":{"type":"string"}},"required":["edits","message"]})"},
      {.name = "book",
       .parameters =
           R"({"type":"object","properties":{"id":{"type":"string","pattern":"^[A-Z]{2}-[0-9]{4}$"},"day":{"type":"string","format":"date"},"name":{"type":"string","minLength":1},"note":{"type":"string"}},"required":["id","day","name","note"]})"},
  };
}

/// With the tags of tool calls behind it, 151,552 tokens in all.
Result<Tokenizer> with_tags(testing::TokenizerRecipe recipe) {
  for (const char* tag : kTags)
    recipe.added.push_back(
        {.text = tag, .id = kFirstTag + static_cast<int>(recipe.added.size()), .special = false});
  return Tokenizer::from_json(testing::tokenizer_json(recipe));
}

/// Compiled twice by compilers of their own: with the vocabulary still to be read, as by a server's
/// first request, and with it read before.
void run_tools(const Tokenizer& tokenizer) {
  for (const auto& [name, calls] :
       {std::pair{"tools of texts, auto", Constraint::Calls::when_called},
        std::pair{"tools of texts, required", Constraint::Calls::at_least_one}}) {
    GrammarCompiler compiler(tokenizer, tokenizer.vocab_size());
    static_cast<void>(compiler.compile(Constraint::choice({"a"})));
    run(name, std::vector(16, Constraint::tool_calls(make_text_tools(), calls)), compiler,
        tokenizer);
  }
  for (const auto& [name, calls] : {std::pair{"auto, strict", Constraint::Calls::when_called},
                                    std::pair{"required", Constraint::Calls::at_least_one}})
    for (const int count : {1, 16, 64}) {
      const Constraint constraint = Constraint::tool_calls(make_tools(count), calls);
      for (const bool first : {true, false}) {
        GrammarCompiler compiler(tokenizer, tokenizer.vocab_size());
        if (!first) static_cast<void>(compiler.compile(Constraint::choice({"a"})));
        run(fmt::format("{} tools, {}{}", count, name, first ? ", first" : "").c_str(),
            {constraint}, compiler, tokenizer);
      }
    }
}

/// Answers as models write them, each with a schema or an expression that it follows.
struct Answer {
  const char* name;
  Constraint constraint;
  std::string text;
};

std::vector<Answer> make_answers() {
  const std::string prose =
      "The committee met on Tuesday; it heard three reports. \"Enough,\" said Zoë, \"is enough\" – "
      "and left for 東京. Costs rose by 4.5 % (see table 7), which nobody had foreseen.\n";
  const auto escaped = [](const std::string& text) { return json_string(text); };
  std::string code;
  for (int i = 0; i < 12; ++i)
    code += fmt::format("def f_{0}(x, y={0}):\n    return {{'a': x * {0}, \"b\": [y, None]}}\n", i);
  std::vector<Answer> answers;
  answers.push_back(
      {"prose in JSON",
       Constraint::json_schema(
           R"({"type":"object","properties":{"title":{"type":"string"},"body":{"type":"string"},"tags":{"type":"array","items":{"type":"string"}}},"required":["title","body","tags"]})"),
       fmt::format(R"({{"title": "Minutes", "body": {}, "tags": ["a b", "costs"]}})",
                   escaped(prose + prose + prose))});
  answers.push_back(
      {"code in JSON",
       Constraint::json_schema(
           R"({"type":"object","properties":{"path":{"type":"string"},"code":{"type":"string"}},"required":["path","code"]})"),
       fmt::format(R"({{"path": "f.py", "code": {}}})", escaped(code))});
  answers.push_back(
      {"bounded prose",
       Constraint::json_schema(
           R"({"type":"object","properties":{"body":{"type":"string","maxLength":4000}},"required":["body"]})"),
       fmt::format(R"({{"body": "{}"}})", std::string(40, 'x') + " and more, in all of 3 lines")});
  std::string rows = "[";
  for (int i = 0; i < 40; ++i)
    rows +=
        fmt::format(R"({}{{"id": {}, "name": "row {}", "price": {}.25, "kind": "{}", "seen": {}}})",
                    i == 0 ? "" : ", ", i, i, 10 * i, i % 2 == 0 ? "read" : "write", i % 3 == 0);
  answers.push_back(
      {"rows",
       Constraint::json_schema(
           R"({"type":"array","items":{"type":"object","properties":{"id":{"type":"integer"},"name":{"type":"string"},"price":{"type":"number"},"kind":{"enum":["read","write"]},"seen":{"type":"boolean"}},"required":["id","name","price","kind","seen"]}})"),
       rows + "]"});
  answers.push_back({"free JSON", Constraint::json_object(),
                     fmt::format(R"({{"rows": {}, "text": {}}})", rows + "]", escaped(prose))});
  answers.push_back({"a date and a name",
                     Constraint::regex("[0-9]{4}-[0-9]{2}-[0-9]{2} [A-Z][a-z]+( [A-Z][a-z]+)*"),
                     "2026-11-26 Ada Lovelace Of Ockham"});
  answers.push_back({"words", Constraint::regex("([a-z]+[ ,.]?)+"),
                     "the quick brown fox jumps over the lazy dog,and goes on.and on"});
  answers.push_back({"any line", Constraint::regex("[^\\n]*"), prose.substr(0, prose.size() - 1)});
  std::string members = "{";
  std::string arguments;
  std::string schema = R"({"type":"object","properties":{)";
  for (int i = 0; i < 100; ++i) {
    schema += fmt::format(R"({}"field_{}":{{"type":"string"}})", i == 0 ? "" : ",", i);
    if (i % 3 != 0) continue;
    const std::string text = fmt::format("Line {} of it.", i);
    members += fmt::format(R"({}"field_{}": "{}")", i == 0 ? "" : ", ", i, text);
    arguments += fmt::format(
        "<arg_key>field_{}</arg_key><arg_value>{} \"Quoted\" text, {{braces}}.\n</arg_value>", i,
        text);
  }
  answers.push_back(
      {"100 optional members", Constraint::json_schema(schema + "}}"), members + "}"});
  using Calls = Constraint::Calls;
  answers.push_back({"100 optional arguments",
                     Constraint::tool_calls({{"fill", schema + "}}", true}}, Calls::when_called),
                     "I fill it in.<tool_call>fill" + arguments + "</tool_call>"});
  answers.push_back(
      {"a call with two texts", Constraint::tool_calls(make_text_tools(), Calls::at_least_one),
       fmt::format("<tool_call>write_file<arg_key>path</arg_key><arg_value>f.py</arg_value>"
                   "<arg_key>content</arg_key><arg_value>{}</arg_value>"
                   "<arg_key>comment</arg_key><arg_value>{}</arg_value></tool_call>",
                   code, prose)});
  return answers;
}

/// Each answer's own tokens, not ones drawn from those allowed.
void run_answers(GrammarCompiler& compiler, const Tokenizer& tokenizer) {
  std::vector<std::uint32_t> mask(mask_words(tokenizer.vocab_size()));
  for (const Answer& answer : make_answers()) {
    Costs costs;
    const Result<GrammarCompiler::Grammar> grammar = compiler.compile(answer.constraint);
    const Result<std::vector<std::int32_t>> ids = tokenizer.encode_with_special(answer.text);
    if (!grammar.ok() || !ids.ok()) {
      std::printf("  %s: %s\n", answer.name,
                  (grammar.ok() ? ids.error() : grammar.error()).message.c_str());
      continue;
    }
    Result<std::unique_ptr<Matcher>> matcher = (*grammar)->start();
    if (!matcher.ok() || !(*matcher)->fill_mask(mask).ok()) return;
    for (const std::int32_t id : *ids) {
      if (!allows(mask, id)) {
        std::printf("  %s: '%s' is not allowed\n", answer.name,
                    std::string(tokenizer.token_bytes(id)).c_str());
        break;
      }
      if (!step(**matcher, id, mask, costs).ok()) break;
    }
    report(answer.name, 1, costs);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: grammar_bench SCHEMAS_JSON (a schema a line) [TOKENIZER_JSON]\n");
    return 2;
  }
  const Result<std::string> file = read_file(argv[1], 1U << 24U);
  const bool real = argc == 3;
  const Result<Tokenizer> tokenizer =
      real ? Tokenizer::load(argv[2]) : with_tags(testing::large_recipe(kFirstTag, 318'088));
  const Result<Tokenizer> plain = with_tags(text_recipe(kFirstTag));
  if (!file.ok() || !tokenizer.ok() || !plain.ok()) {
    std::fprintf(stderr, "%s\n", (file.ok() ? tokenizer.error() : file.error()).message.c_str());
    return 1;
  }
  std::printf("%d tokens\n", tokenizer->vocab_size());
  std::vector<Constraint> schemas;
  std::vector<Constraint> bounded;
  for (std::size_t line = file->find('\n') + 1; line < file->size();
       line = file->find('\n', line) + 1) {
    std::string text = file->substr(line, file->find('\n', line) - line);
    if (text.ends_with(',')) text.pop_back();
    if (!text.starts_with("{")) break;
    const bool lengths = text.find("Length") != text.npos || text.find("pattern") != text.npos;
    (lengths ? bounded : schemas).push_back(Constraint::json_schema(text));
  }
  std::vector<Constraint> lengths;
  for (const int most : {10, 40, 100, 200, 1000, 10000, 100000})
    lengths.push_back(Constraint::json_schema(fmt::format(
        R"({{"type":"object","properties":{{"a":{{"type":"string","maxLength":{0}}},"b":{{"type":"string","minLength":{0}}},
           "c":{{"type":"array","items":{{"type":"string","minLength":1,"maxLength":{0}}}}}}},"required":["a","b","c"]}})",
        most)));
  std::vector<Constraint> patterns;
  for (const char* pattern : {".{1,200}", "^[A-Za-z ]{1,64}$", "[a-z0-9]{8}", "[^#]{0,4000}"})
    patterns.push_back(Constraint::regex(pattern));
  for (const char* pattern : {"^.{1,200}$", "^[A-Za-z0-9_-]{1,64}$", "^[A-Z]{2}-[0-9]{4}$"})
    patterns.push_back(Constraint::json_schema(
        fmt::format(R"({{"type":"array","items":{{"type":"string","pattern":"{}"}}}})", pattern)));

  GrammarCompiler compiler(*tokenizer, tokenizer->vocab_size());
  run("any JSON", {Constraint::json_object()}, compiler, *tokenizer);
  run("schemas without lengths", schemas, compiler, *tokenizer);
  run("schemas with lengths", bounded, compiler, *tokenizer);
  run("lengths of 10 to 100,000", lengths, compiler, *tokenizer);
  run("bounded patterns", patterns, compiler, *tokenizer);
  run_answers(compiler, *tokenizer);
  std::printf("the same vocabulary\n");
  run_tools(*tokenizer);
  if (real) return 0;
  std::printf("a vocabulary of text\n");
  run_tools(*plain);
  return 0;
}
