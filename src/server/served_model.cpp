// SPDX-License-Identifier: Apache-2.0
#include "server/served_model.h"

#include <fmt/format.h>

#include "base/json_writer.h"
#include "runtime/fingerprint.h"
#include "worker/device.h"

namespace koho::server {
namespace {

// 32 MiB of ids: about 8,000 answers of 1,000 tokens, or a hundred long agent sessions.
constexpr std::size_t kTurnTokensMax = 8U << 20U;
constexpr std::size_t kJournalRequestsMax = 256;
constexpr std::size_t kJournalTokensMax = 4U << 20U;  // 16 MiB

}  // namespace

ServedModel served_model_of(Runtime& runtime, std::vector<std::string> names) {
  api::Model model;
  model.names = std::move(names);
  model.created = Core::unix_seconds();
  if (const LoadedText* text = runtime.text()) {
    model.tokenizer = &text->tokenizer;
    model.style = text->style;
    model.tag_ids = api::tag_ids_of(text->tokenizer);
    model.turns = std::make_shared<api::TurnMemory>(kTurnTokensMax);
  }
  model.journal = std::make_shared<api::PromptJournal>(kJournalRequestsMax, kJournalTokensMax);
  model.fingerprint = fingerprint_of(runtime);
  model.defaults = runtime.default_request();
  model.limits = runtime.engine().limits();
  ServedModel serving{.engine = runtime.engine(), .model = std::move(model)};
  if (runtime.text() != nullptr) {
    serving.compile_grammar = [&runtime](const Constraint& constraint) {
      return runtime.grammars().compile(constraint);
    };
    serving.find_grammar = [&runtime](const Constraint& constraint) {
      return runtime.grammars().find(constraint);
    };
  }
  serving.server_info =
      fmt::format(R"("ranks":{},"kv_bytes":{},"kv_bytes_per_token":{},"load_seconds":{:.3f})",
                  runtime.options().ranks, runtime.sizes().kv_bytes,
                  runtime.sizes().kv_bytes_per_token, runtime.load_s());
  if (const Result<std::string> device = device_name(runtime.options().device); device.ok()) {
    serving.server_info += R"(,"device":)";
    append_json_string(serving.server_info, *device);
  }
  if (const Result<std::int64_t> bytes = device_memory_bytes(runtime.options().device); bytes.ok())
    serving.server_info += fmt::format(R"(,"device_memory_bytes":{})", *bytes);
  if (const LoadedText* text = runtime.text())
    serving.server_info += fmt::format(
        R"(,"chat_template":"{}","chat_template_xxh3_128":{})",
        chat::template_style_name(text->style),
        text->template_hash.empty() ? "null" : fmt::format("\"{}\"", text->template_hash));
  return serving;
}

}  // namespace koho::server
