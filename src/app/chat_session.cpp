// SPDX-License-Identifier: Apache-2.0
#include "app/chat_session.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "app/nearest_word.h"
#include "app/parser_options.h"
#include "app/terminal.h"
#include "base/json_writer.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "chat/json.h"
#include "sampling/parameter_table.h"

namespace koho::app {
namespace {

constexpr std::uint64_t kConversationBytesMax = 64U << 20U;
constexpr std::string_view kBlock = "\"\"\"";

constexpr const char* kHelp =
    R"(/help               this text
/system [TEXT]      sets the system message and starts anew; without TEXT removes it
/clear              starts anew
/regen              answers the last message again
/set NAME VALUE     temperature, top_p, top_k, min_p, max_tokens, seed, thinking, reasoning, …; /set lists
/save FILE          writes the conversation as JSON
/load FILE          goes on with a conversation that /save wrote
/exit               leaves; so does Ctrl-D
Several lines: a line that ends in \ goes on, """ begins and ends a block, Alt-Enter is a new line,
and a pasted block stays together. Ctrl-C stops an answer, at the prompt twice it leaves.
)";

void append_field(std::string& out, std::string_view name, std::string_view value) {
  out += fmt::format(R"(,"{}":)", name);
  append_json_string(out, value);
}

std::string message_json(const chat::Message& message) {
  std::string out = R"({"role":)";
  append_json_string(out, message.role);
  if (message.content) out += R"(,"content":)" + chat::dump_json(*message.content);
  if (message.reasoning_content) append_field(out, "reasoning_content", *message.reasoning_content);
  if (message.tool_calls.empty()) return out + "}";
  out += R"(,"tool_calls":[)";
  for (const chat::ToolCall& call : message.tool_calls) {
    if (out.back() != '[') out += ',';
    out += R"({"type":"function")";
    append_field(out, "id", call.id);
    out += R"(,"function":{"name":)";
    append_json_string(out, call.name);
    append_field(out, "arguments", chat::dump_json(call.arguments));
    out += "}}";
  }
  return out + "]}";
}

/// The value that was set, or else the model's own.
template <typename T>
std::string shown(const std::optional<T>& value, T of_model) {
  return value ? fmt::to_string(*value) : fmt::format("{} (the model's)", of_model);
}

/// What /set takes.
std::vector<std::string> settable() {
  std::vector<std::string> names{"max_tokens", "seed", "thinking", "reasoning"};
  for (const SamplingParameter& row : kSamplingParameters)
    if ((row.interfaces & kCommandLine) != 0 && (row.number != nullptr || row.integer != nullptr))
      names.emplace_back(row.name);
  return names;
}

constexpr std::string_view kCommands[] = {"help", "system", "clear", "regen",
                                          "set",  "save",   "load",  "exit"};

/// " did you mean /help?", where a name is near.
std::string meant(std::string_view given, const std::vector<std::string>& known, const char* sign) {
  const std::string near = nearest_word(given, known);
  return near.empty() ? "" : fmt::format(" did you mean {}{}?", sign, near);
}

/// The path with the user's directory for "~/", as a shell has it.
std::string home_path(const std::string& path) {
  const char* home = std::getenv("HOME");
  return home != nullptr && path.starts_with("~/") ? home + path.substr(1) : path;
}

Result<bool> on_or_off(std::string_view value) {
  if (value == "on") return true;
  if (value == "off") return false;
  return make_error(ErrorCode::invalid_argument, "expected on or off, found '{}'", value);
}

}  // namespace

std::string conversation_json(const chat::Conversation& conversation) {
  std::string out = R"({"messages":[)";
  for (const chat::Message& message : conversation.messages)
    out += (out.back() == '[' ? "\n" : ",\n") + message_json(message);
  return out + "\n]}\n";
}

ChatSession::ChatSession(Runtime& runtime,
                         AnsweringFlags& flags,
                         std::optional<Constraint> constraint,
                         chat::Conversation conversation,
                         LineEditor& editor)
    : runtime_(runtime),
      flags_(flags),
      constraint_(std::move(constraint)),
      conversation_(std::move(conversation)),
      editor_(editor) {}

/// One quiet line beside the conversation.
void ChatSession::say(const std::string& text) {
  const bool dim = use_color(STDERR_FILENO);
  std::fflush(stdout);
  std::fprintf(stderr, "%s%s%s\n", dim ? "\x1b[2m" : "", terminal_text(text).c_str(),
               dim ? "\x1b[0m" : "");
}

Result<std::optional<std::string>> ChatSession::read_message() {
  std::string text;
  bool block = false;
  bool more = false;
  while (true) {
    std::string line;
    Result<LineEditor::Read> read = editor_.read(more ? ". " : "> ", line);
    if (!read.ok()) {
      if (read.error().code != ErrorCode::invalid_argument) return std::move(read).error();
      say("koho: error: " + read.error().message);
      continue;
    }
    if (*read == LineEditor::Read::end) return std::optional<std::string>();
    if (*read == LineEditor::Read::interrupt) {
      if (std::exchange(just_interrupted_, true)) {
        exit_code_ = kExitInterrupted;
        return std::optional<std::string>();
      }
      say("Ctrl-C again leaves, and so does Ctrl-D");
      text.clear();
      block = more = false;
      continue;
    }
    just_interrupted_ = false;
    if (!more && trimmed(line).starts_with(kBlock)) {
      block = true;
      line = line.substr(line.find(kBlock) + kBlock.size());
    }
    const bool ends_block = block && trimmed(line).ends_with(kBlock);
    if (ends_block) line.erase(line.rfind(kBlock));
    const bool continued = !block && line.ends_with('\\');
    if (continued) line.pop_back();
    text += line;
    if (block ? ends_block : !continued) break;
    if (!(block && text.empty())) text += '\n';
    more = true;
  }
  if (block && text.ends_with('\n')) text.pop_back();
  return std::optional(std::move(text));
}

Result<int> ChatSession::run() {
  while (true) {
    KOHO_TRY_ASSIGN(const std::optional<std::string> said, read_message());
    if (!said) return exit_code_;
    if (trimmed(*said).empty()) continue;
    editor_.remember(*said);
    if (said->starts_with('/')) {
      Result<bool> stays = command(*said);
      if (!stays.ok()) {
        say("koho: error: " + stays.error().message);
      } else if (!*stays) {
        return exit_code_;
      }
      continue;
    }
    if (const Status good = check_utf8("the line", *said); !good.ok()) {
      say("koho: error: " + good.error().message);
      continue;
    }
    conversation_.messages.push_back(make_message("user", *said));
    KOHO_TRY(reply());
  }
}

Status ChatSession::reply() {
  const LoadedText& text = *runtime_.text();
  AnswerDisplay::Options options = display_options(flags_.reasoning_is_shown());
  options.by_spelling = !flags_.sampling.stop.empty();
  AnswerDisplay display(parser_options(runtime_, conversation_), options);
  InterruptGuard::clear();
  const auto made = [&]() -> Result<Answer> {
    KOHO_TRY_ASSIGN(const std::vector<std::int32_t> prompt, text.encode(conversation_));
    return answer(runtime_, prompt, flags_.sampling, constraint_,
                  [&display](const OutputEvent& event) { display.show(event); });
  }();
  if (!made.ok()) {
    say("koho: error: " + made.error().message + " (/clear starts anew)");
    conversation_.messages.pop_back();
    return {};
  }
  display.finish();
  std::printf("\n");
  KOHO_TRY(finish_output());
  const std::string cut = cut_text(*made, flags_.sampling, runtime_);
  say(rates_text(*made) + (cut.empty() ? "" : " " + cut));
  just_interrupted_ = made->finish_reason == "abort";
  conversation_.messages.push_back(display.message());
  return {};
}

void ChatSession::drop_last_answer() {
  std::vector<chat::Message>& messages = conversation_.messages;
  while (!messages.empty() && messages.back().role == "assistant") messages.pop_back();
}

Result<bool> ChatSession::command(const std::string& line) {
  const std::size_t space = std::min(line.find(' '), line.size());
  const std::string name = line.substr(1, space - 1);
  const std::string rest(trimmed(std::string_view(line).substr(space)));
  const auto keep_system = [this] {
    std::erase_if(conversation_.messages,
                  [](const chat::Message& message) { return message.role != "system"; });
  };
  if (name == "exit" || name == "quit" || name == "bye") return false;
  if (name == "help" || name == "?") {
    std::fputs(kHelp, stderr);
  } else if (name == "clear") {
    keep_system();
    say("a new conversation");
  } else if (name == "system") {
    KOHO_TRY(check_utf8("the system message", rest));
    conversation_.messages.clear();
    if (!rest.empty()) conversation_.messages.push_back(make_message("system", rest));
    say(rest.empty() ? "no system message; a new conversation"
                     : "the system message is set; a new conversation");
  } else if (name == "save") {
    KOHO_TRY(save(home_path(rest)));
    say(fmt::format("{} messages in {}", conversation_.messages.size(), rest));
  } else if (name == "load") {
    KOHO_TRY(load(home_path(rest)));
    say(fmt::format("{} messages from {}", conversation_.messages.size(), rest));
  } else if (name == "regen") {
    drop_last_answer();
    if (conversation_.messages.empty() || conversation_.messages.back().role != "user")
      return make_error(ErrorCode::invalid_argument, "there is no message to answer again");
    KOHO_TRY(reply());
  } else if (name == "set") {
    KOHO_TRY(set(rest));
  } else {
    return make_error(ErrorCode::invalid_argument, "unknown command /{};{} /help lists them", name,
                      meant(name, {std::begin(kCommands), std::end(kCommands)}, "/"));
  }
  return true;
}

Status ChatSession::set(std::string_view text) {
  SamplingFlags& sampling = flags_.sampling;
  if (text.empty()) {
    std::string list;
    const SamplingParameters own = default_sampling(runtime_.model().generation);
    for (std::size_t i = 0; i < std::size(kSamplingParameters); ++i) {
      const SamplingParameter& row = kSamplingParameters[i];
      if ((row.interfaces & kCommandLine) == 0) continue;
      if (row.number != nullptr)
        list += fmt::format("{} {}\n", row.name, shown(sampling.numbers[i], own.*row.number));
      if (row.integer != nullptr)
        list += fmt::format("{} {}\n", row.name, shown(sampling.integers[i], own.*row.integer));
    }
    list += fmt::format("max_tokens {}\nseed {}\nthinking {}\nreasoning {}", sampling.tokens_max,
                        sampling.seed ? fmt::to_string(*sampling.seed) : "random",
                        conversation_.enable_thinking.value_or(true) ? "on" : "off",
                        flags_.reasoning_is_shown().value_or(true) ? "on" : "off");
    say(list);
    return {};
  }
  const std::size_t space = std::min(text.find(' '), text.size());
  const std::string name(text.substr(0, space));
  const std::string value(trimmed(text.substr(space)));
  SamplingFlags changed = sampling;
  const auto integer = parse_integer<std::int64_t>(value);
  const SamplingParameter* row = find_parameter(name);
  if (name == "thinking") {
    KOHO_TRY_ASSIGN(const bool on, on_or_off(value));
    conversation_.enable_thinking = on ? std::nullopt : std::optional(false);
  } else if (name == "reasoning") {
    KOHO_TRY_ASSIGN(flags_.show_reasoning, on_or_off(value));
    flags_.hide_reasoning = !flags_.show_reasoning;
  } else if (name == "max_tokens" || name == "seed") {
    if (!integer || *integer < (name == "seed" ? 0 : -1) ||
        *integer == 0 + (name == "seed" ? -1 : 0) || *integer > 0x7FFFFFFF)
      return make_error(ErrorCode::invalid_argument, "{}: expected an integer, found '{}'", name,
                        value);
    if (name == "seed")
      changed.seed = *integer;
    else
      changed.tokens_max = static_cast<std::int32_t>(*integer);
  } else if (row != nullptr && (row->number != nullptr || row->integer != nullptr)) {
    const auto at = static_cast<std::size_t>(row - kSamplingParameters);
    double number = 0.0;
    int used = 0;
    const bool is_number = std::sscanf(value.c_str(), "%lf%n", &number, &used) == 1 &&
                           static_cast<std::size_t>(used) == value.size();
    if (row->integer != nullptr ? !integer.has_value() : !is_number)
      return make_error(ErrorCode::invalid_argument, "{}: expected a number, found '{}'", name,
                        value);
    if (row->integer != nullptr)
      changed.integers[at] = *integer;
    else
      changed.numbers[at] = number;
  } else {
    return make_error(ErrorCode::invalid_argument,
                      "there is no '{}' to set;{} /set lists what there is", name,
                      meant(name, settable(), ""));
  }
  KOHO_TRY(changed.validate(static_cast<std::int32_t>(runtime_.model().config.vocab_size)));
  sampling = changed;
  say(fmt::format("{} is {}", name, value));
  return {};
}

Status ChatSession::save(const std::string& path) const {
  if (path.empty()) return make_error(ErrorCode::invalid_argument, "/save needs a FILE");
  std::ofstream file(path);
  file << conversation_json(conversation_);
  if (!file.flush()) return make_error(ErrorCode::io_error, "{} could not be written", path);
  return {};
}

Status ChatSession::load(const std::string& path) {
  if (path.empty()) return make_error(ErrorCode::invalid_argument, "/load needs a FILE");
  KOHO_TRY_ASSIGN(const std::string text, read_file(path, kConversationBytesMax));
  KOHO_TRY_ASSIGN(const chat::Json json, chat::parse_json(text));
  Result<chat::Conversation> read = chat::read_turns(json);
  if (!read.ok()) return std::move(read).error().with_context(path);
  KOHO_TRY(chat::normalize(*read));
  conversation_.messages = std::move(read->messages);
  return {};
}

}  // namespace koho::app
