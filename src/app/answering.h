// SPDX-License-Identifier: Apache-2.0
// What `koho run` and `koho chat` share: their flags, an engine for one sequence at a time, and one
// answer from it, which Ctrl-C stops.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/answer_display.h"
#include "app/command_line.h"
#include "app/constraint_flags.h"
#include "app/rank_flags.h"
#include "app/sampling_flags.h"
#include "base/error.h"
#include "chat/message.h"
#include "runtime/runtime.h"

namespace koho::app {

struct AnsweringFlags {
  std::string model;
  std::string system;
  std::string tools;    // a file
  std::string history;  // chat: a file, or empty
  std::string chat_template = "auto";
  std::string device = "auto";
  RankFlags spread;
  std::optional<bool> deterministic;
  bool no_thinking = false;
  bool show_reasoning = false;
  bool hide_reasoning = false;
  std::int32_t context = 0;
  std::int64_t threads = 0;
  SamplingFlags sampling;
  ConstraintFlags constraint;

  /// Nothing: where there is a terminal.
  std::optional<bool> reasoning_is_shown() const {
    if (hide_reasoning) return false;
    return show_reasoning ? std::optional(true) : std::nullopt;
  }
};

void add_answering_flags(CommandLine& command, AnsweringFlags& flags);

/// Checks what needs no model. Errors: invalid_argument.
Status check_flags(const AnsweringFlags& flags);

/// Errors: invalid_argument, `what` is not UTF-8.
Status check_utf8(const char* what, const std::string& text);

/// A message of a conversation.
chat::Message make_message(const std::string& role, const std::string& content);

/// The conversation before its first message: system message, tools, thinking. Errors: those of the
/// file of tools.
Result<chat::Conversation> start_conversation(const AnsweringFlags& flags);

/// An engine for one sequence at a time whose context holds `context` tokens; 0: --context, or what
/// the model has. The previous answer's pages stay in the prefix cache while the next one runs.
Result<std::unique_ptr<Runtime>> open_runtime(const AnsweringFlags& flags,
                                              LoadedModel model,
                                              std::optional<LoadedText> text,
                                              std::int64_t context = 0);

/// While this object exists, Ctrl-C stops the running answer instead of the program.
class InterruptGuard {
 public:
  InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  ~InterruptGuard();

  static bool interrupted();
  static void clear();

 private:
  struct sigaction previous_ {};
};

/// A complete answer.
struct Answer {
  std::vector<std::int32_t> ids;  // a stop token included
  std::string text;               // without stop token, stop string and special tokens
  std::string finish_reason;      // "stop", "length" or "abort"
  bool context_is_full = false;   // … by the context, not by --max-tokens
  Usage usage;
  Timings timings;

  std::int64_t prefill_tokens() const { return usage.prompt_tokens - usage.cached_tokens; }
  double prefill_tokens_per_s() const;
  double decode_tokens_per_s() const;
};

/// Generates an answer; `show` gets each event. Errors: invalid_argument (the prompt does not fit);
/// those of the engine.
Result<Answer> answer(Runtime& runtime,
                      std::span<const std::int32_t> prompt,
                      const SamplingFlags& flags,
                      const std::optional<Constraint>& constraint,
                      const std::function<void(const OutputEvent&)>& show);

/// "[12 prompt tokens (0 cached) at 187 tok/s, 16 generated at 204.8 tok/s]".
std::string rates_text(const Answer& answer);

/// Why an answer ended before the model was done, and what to do; empty if it was done.
std::string cut_text(const Answer& answer, const SamplingFlags& flags, const Runtime& runtime);

/// Flushes standard output; a full disk is noticed only here. Errors: io_error.
Status finish_output();

inline constexpr int kExitInterrupted = 130;  // as shells report it: 128 + SIGINT

}  // namespace koho::app
