// SPDX-License-Identifier: Apache-2.0
// Where the options of `koho serve` come from: environment, config file, command line.
#include "app/serve_options.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "app/model_directory.h"
#include "app/nearest_word.h"
#include "app/peer_flags.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "chat/json.h"

namespace koho::app {
namespace {

using Takes = ServeOption::Takes;

constexpr std::size_t kFileBytesMax = 8U << 20U;

const ServeOption* find_option(std::string_view flag) {
  for (const ServeOption& option : serve_option_table()) {
    const std::vector<std::string_view> names = split(option.flags, ',');
    if (std::ranges::find(names, flag) != names.end()) return &option;
  }
  return nullptr;
}

/// "unknown flag --x; did you mean --y?"
Error unknown_flag(std::string_view kind, std::string_view flag) {
  std::vector<std::string> names;
  for (const ServeOption& option : serve_option_table()) {
    for (const std::string_view name : split(option.flags, ','))
      if (name.starts_with("--")) names.emplace_back(name);
  }
  const std::string near = nearest_word(flag, names);
  const std::size_t hyphens = kind == "flag" ? 0 : 2;  // a config file has none
  return make_error(ErrorCode::invalid_argument, "unknown {} {}{}", kind, flag.substr(hyphens),
                    near.empty() ? "" : fmt::format("; did you mean {}?", near.substr(hyphens)));
}

/// What other engines' flag `flag` comes to: a note in `options`, or the refusal. `value` is what
/// follows it, if anything does; returns whether that is its value.
Result<bool> take_peer_flag(ServeOptions& options,
                            std::string_view kind,
                            std::string_view flag,
                            std::optional<std::string_view> value) {
  // Renamed are flags of other commands: serve has its other names in its own table.
  const auto row = find_peer_flag(flag, value, [](std::string_view) { return false; });
  if (!row) return unknown_flag(kind, flag);
  const bool has_value = value && takes_next(*row, *value);
  const std::string_view own = has_value ? *value : std::string_view();
  if (row->verdict == PeerFlag::Verdict::refused) return refusal_of(*row, flag, own);
  options.warnings.push_back(note_of(*row, flag, own));
  return has_value;
}

Status set_option(const ServeOption& option,
                  ServeOptions& options,
                  const std::string& value,
                  std::string_view source) {
  return option.set(options, value).with_context(source);
}

Status read_environment(ServeOptions& options) {
  for (const ServeOption& option : serve_option_table()) {
    const std::string name = option.environment_name();
    if (const char* value = std::getenv(name.c_str()))
      KOHO_TRY(set_option(option, options, value, name));
  }
  server::ServiceManager::Settings& manager = options.service_manager;
  if (const char* socket = std::getenv("NOTIFY_SOCKET")) manager.socket = socket;
  // systemd may want the watchdog messages from another process.
  const char* process = std::getenv("WATCHDOG_PID");
  if (process != nullptr && parse_integer<std::int64_t>(process) != getpid()) return {};
  if (const char* us = std::getenv("WATCHDOG_USEC"))
    manager.watchdog_us = parse_integer<std::int64_t>(us).value_or(0);
  return {};
}

Status set_by_name(ServeOptions& options, std::string key, const std::string& value) {
  key = hyphenated("--" + key);
  const ServeOption* option = find_option(key);
  if (option == nullptr) {
    KOHO_TRY(take_peer_flag(options, "option", key, value));
    return {};
  }
  return set_option(*option, options, value, key.substr(2));
}

/// The text without white space at its ends and without the quotes around the rest.
std::string word_of(std::string_view text) {
  text = trimmed(text, " \t\r\n");
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') &&
      text.back() == text.front())
    text = text.substr(1, text.size() - 2);
  return std::string(text);
}

std::string text_of(const chat::Json& json) {
  return json.is_string() ? json.text : chat::dump_json(json);
}

/// A JSON object, or lines "name: value", with "- value" lines below a name for lists.
Status read_config(ServeOptions& options, const std::string& path) {
  KOHO_TRY_ASSIGN(const std::string text, read_file_or_pipe(path, kFileBytesMax));
  if (word_of(text).starts_with('{')) {
    KOHO_TRY_ASSIGN(const chat::Json json, chat::parse_json(text));
    for (std::size_t i = 0; i < json.keys.size(); ++i) {
      if (!json.items[i].is_array()) {
        KOHO_TRY(set_by_name(options, json.keys[i], text_of(json.items[i])));
        continue;
      }
      for (const chat::Json& item : json.items[i].items)
        KOHO_TRY(set_by_name(options, json.keys[i], text_of(item)));
    }
    return {};
  }
  std::istringstream lines(text);
  std::string line;
  std::string list;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string place = fmt::format("{}:{}", path, number);
    const std::string whole_line = word_of(line);
    if (whole_line.empty() || whole_line.front() == '#') continue;
    if (whole_line.starts_with("- ") && !list.empty()) {
      KOHO_TRY(set_by_name(options, list, word_of(whole_line.substr(2))).with_context(place));
      continue;
    }
    const std::size_t colon = whole_line.find(':');
    if (colon == std::string::npos)
      return make_error(ErrorCode::invalid_argument, "{}: expected \"name: value\"", place);
    const std::string key = word_of(whole_line.substr(0, colon));
    const std::string value = word_of(whole_line.substr(colon + 1));
    list = value.empty() ? key : "";
    if (!value.empty()) KOHO_TRY(set_by_name(options, key, value).with_context(place));
  }
  return {};
}

struct Argument {
  const ServeOption* option = nullptr;
  std::string value;
  /// Behind a list's first value: a further one, or the model where nothing else names it.
  bool follows_list = false;
  /// The model, as a word without a flag.
  bool is_word = false;
};

bool is_integer(std::string_view word) {
  return parse_integer<std::int64_t>(word).has_value();
}

Result<std::vector<Argument>> split_arguments(ServeOptions& options,
                                              const std::vector<std::string>& arguments) {
  std::vector<Argument> found;
  const ServeOption* list = nullptr;  // whose values the words at hand may be
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with('-')) {
      if (list != nullptr)
        found.push_back({.option = list, .value = argument, .follows_list = true});
      else
        found.push_back({.option = find_option("--model"), .value = argument, .is_word = true});
      continue;
    }
    list = nullptr;
    const std::size_t equals = argument.find('=');
    const std::string flag = hyphenated(argument.substr(0, equals));
    const ServeOption* option = find_option(flag);
    if (option == nullptr && equals == std::string::npos && flag.starts_with("--no-")) {
      // As vLLM has it for every flag without a value.
      const ServeOption* positive = find_option("--" + flag.substr(5));
      if (positive != nullptr && positive->takes == Takes::nothing) {
        found.push_back({positive, "false"});
        continue;
      }
    }
    if (option == nullptr) {
      std::optional<std::string_view> value;
      if (equals != std::string::npos)
        value = std::string_view(argument).substr(equals + 1);
      else if (i + 1 < arguments.size())
        value = arguments[i + 1];
      KOHO_TRY_ASSIGN(const bool taken, take_peer_flag(options, "flag", flag, value));
      if (!taken || equals != std::string::npos) continue;
      // A list of sizes, as of --cuda-graph-bs.
      for (++i; i + 1 < arguments.size() && is_integer(arguments[i + 1]);) ++i;
      continue;
    }
    if (equals != std::string::npos) {
      found.push_back({option, argument.substr(equals + 1)});
    } else if (option->takes == Takes::nothing) {
      found.push_back({option, ""});
    } else if (i + 1 < arguments.size()) {
      const std::string& value = arguments[++i];
      if (find_option(hyphenated(value.substr(0, value.find('=')))) != nullptr)
        return make_error(ErrorCode::invalid_argument,
                          "{} needs a value, found the flag {}; if that is the value, write {}={}",
                          flag, value, flag, value);
      found.push_back({option, value});
      if (option->takes == Takes::list) list = option;
    } else {
      return make_error(ErrorCode::invalid_argument, "{} needs a value: {}", flag, option->value);
    }
  }
  return found;
}

/// Where nothing else names the model, the last word behind a list does; where something does, a
/// second one is an error.
Status settle_model(const ServeOptions& options, std::vector<Argument>& given) {
  const ServeOption* const model = find_option("--model");
  const Argument* word = nullptr;
  const Argument* flag = nullptr;
  Argument* last = nullptr;
  for (Argument& one : given) {
    if (one.follows_list) last = &one;
    if (one.option != model) continue;
    if (one.is_word && word != nullptr)
      return make_error(ErrorCode::invalid_argument, "'{}' is one word too many: the model is {}",
                        one.value, word->value);
    (one.is_word ? word : flag) = &one;
  }
  if (word != nullptr && flag != nullptr && word->value != flag->value)
    return make_error(ErrorCode::invalid_argument,
                      "'{}' is one word too many: {} has named the model, {}", word->value,
                      model->name(), flag->value);
  if (word == nullptr && flag == nullptr && options.model.empty() && last != nullptr)
    last->option = model;
  return {};
}

/// Turns the sizes that other engines have into layouts.
Status carry_over_sizes(ServeOptions& options) {
  RuntimeOptions& runtime = options.runtime;
  // Where nothing says the number of ranks, these do.
  for (const auto& size : {options.expert_parallel_size, options.data_parallel_size})
    if (runtime.ranks == 0 && size.value_or(1) > 1) runtime.ranks = *size;
  if (options.expert_parallel_size) {
    const std::int64_t size = *options.expert_parallel_size;
    if (size != 1 && size != runtime.ranks)
      return make_error(ErrorCode::invalid_argument,
                        "--expert-parallel-size must be the number of ranks, {}, or 1 for sliced "
                        "experts, found {}",
                        runtime.ranks, size);
    runtime.experts =
        size == runtime.ranks ? ExpertLayout::expert_parallel : ExpertLayout::tensor_parallel;
  }
  if (const std::int64_t size = options.data_parallel_size.value_or(1);
      size != 1 && !(size == runtime.ranks && runtime.attention == AttentionLayout::data_parallel))
    return make_error(ErrorCode::invalid_argument,
                      "--data-parallel-size must be 1, or with --attention dp the number of "
                      "ranks, {}, found {}; for several copies of a model start several servers",
                      runtime.ranks, size);
  return {};
}

/// Adds the keys of a file with one per line. What stands in JSON that was not recognised, or in
/// UTF-16, is refused: it would be a key that anyone can guess, such as "}", or nobody can send.
Status add_key_lines(std::string_view text,
                     const std::string& path,
                     std::vector<server::ApiKeySettings>& keys) {
  constexpr std::size_t kBytesMax = 1024;
  constexpr std::string_view kOfJson = R"("[]{})";
  const auto is_plain = [kOfJson](char c) {
    return c > ' ' && c < '\x7f' && kOfJson.find(c) == std::string_view::npos;
  };
  std::size_t number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    const std::string_view key = trimmed(line, " \t\r");
    if (key.starts_with('#')) continue;
    if (key.size() > kBytesMax || !std::ranges::all_of(key, is_plain))
      return make_error(ErrorCode::invalid_argument,
                        "{}, line {}: a key has at most {} visible ASCII characters and none of {} "
                        "(the file has one per line, or is JSON)",
                        path, number, kBytesMax, kOfJson);
    if (!key.empty()) keys.emplace_back(std::string(key));
  }
  return {};
}

}  // namespace

std::string_view ServeOption::name() const {
  return flags.substr(0, flags.find(','));
}

std::string ServeOption::environment_name() const {
  std::string made = "KOHO_";
  for (const char c : name().substr(2))
    made += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return made;
}

Status read_template_defaults(ServeOptions& options, const std::string& text) {
  KOHO_TRY_ASSIGN(const chat::Json json, chat::parse_json(text));
  for (std::size_t i = 0; i < json.keys.size(); ++i) {
    const std::string& key = json.keys[i];
    const bool value = json.items[i].boolean;
    if (key == "enable_thinking" || key == "thinking") {
      options.enable_thinking = value;
    } else if (key == "clear_thinking") {
      options.preserve_thinking =
          value ? api::PreserveThinking::never : api::PreserveThinking::always;
    } else {
      return make_error(ErrorCode::invalid_argument,
                        "expected enable_thinking or clear_thinking, found '{}'", key);
    }
  }
  return {};
}

Result<ServeOptions> read_serve_options(const std::vector<std::string>& arguments) {
  ServeOptions options;
  KOHO_TRY_ASSIGN(std::vector<Argument> given, split_arguments(options, arguments));
  KOHO_TRY(read_environment(options));
  const ServeOption* config = find_option("--config");
  for (const Argument& argument : given)
    if (argument.option == config) KOHO_TRY(read_config(options, argument.value));
  KOHO_TRY(settle_model(options, given));
  // A list on the command line replaces the list of the config file.
  bool names_replaced = false;
  bool origins_replaced = false;
  bool hosts_replaced = false;
  for (const Argument& argument : given) {
    if (argument.option->name() == "--served-model-name" && !std::exchange(names_replaced, true))
      options.names.clear();
    if (argument.option->name() == "--allowed-origins" && !std::exchange(origins_replaced, true))
      options.server.allowed_origins.clear();
    if (argument.option->name() == "--allowed-hosts" && !std::exchange(hosts_replaced, true))
      options.server.allowed_hosts.clear();
    KOHO_TRY(set_option(*argument.option, options, argument.value, argument.option->name()));
  }
  if (options.model.empty())
    return make_error(ErrorCode::invalid_argument,
                      "the model is missing: give its directory first, or with -m");
  KOHO_TRY_ASSIGN(options.directory, find_model(options.model, !options.random_weights));
  if (options.server.tls_cert.empty() && !options.server.tls_key.empty())
    return make_error(ErrorCode::invalid_argument, "--tls-key needs --tls-cert");
  KOHO_TRY(carry_over_sizes(options));
  KOHO_TRY_ASSIGN(options.server.api_keys, read_api_keys(options, false));
  if (!says_cache_size_once(options.runtime))
    return make_error(ErrorCode::invalid_argument,
                      "give only one of --kv-pages, --kv-cache-memory and "
                      "--gpu-memory-utilization: each sets the size of the KV cache");
  return options;
}

Result<std::vector<server::ApiKeySettings>> read_api_keys(const ServeOptions& options, bool again) {
  std::vector<server::ApiKeySettings> keys(options.given_keys.begin(), options.given_keys.end());
  for (const std::string& path : options.api_key_files) {
    KOHO_TRY_ASSIGN(const std::string text, again ? read_file(path, kFileBytesMax)
                                                  : read_file_or_pipe(path, kFileBytesMax));
    const std::size_t before = keys.size();
    std::string_view all = text;
    if (all.starts_with("\xef\xbb\xbf")) all.remove_prefix(3);  // as Windows' editors begin a file
    if (const std::string_view begin = trimmed(all, " \t\r\n");
        begin.starts_with('{') || begin.starts_with('[')) {
      Result<std::vector<server::ApiKeySettings>> found = server::parse_api_keys(all);
      if (!found.ok()) return Error(found.error()).with_context(path);
      keys.insert(keys.end(), found->begin(), found->end());
    } else {
      KOHO_TRY(add_key_lines(all, path, keys));
    }
    if (keys.size() == before)
      return make_error(ErrorCode::invalid_argument,
                        "{} has no API key: expected one per line, or JSON", path);
  }
  return keys;
}

}  // namespace koho::app
