// SPDX-License-Identifier: Apache-2.0
#include "api/json_text.h"

#include <algorithm>
#include <array>
#include <iterator>

#include <fmt/format.h>

#include "base/json_writer.h"
#include "tokenizer/utf8.h"

namespace koho::api {

void append_finish(std::string& out, Finish finish) {
  constexpr std::array<std::string_view, 4> kNames{"null", R"("stop")", R"("length")",
                                                   R"("tool_calls")"};
  out += kNames[static_cast<std::size_t>(finish)];
}

void append_stop_reason(std::string& out, const Piece& piece, const Model& model) {
  const Token token = piece.event->stop_token;
  if (!piece.stop_string.empty()) {
    append_json_string(out, piece.stop_string);
  } else if (token >= 0 && std::ranges::find(model.defaults.stop_tokens, token) ==
                               model.defaults.stop_tokens.end()) {
    append_json_integer(out, token);
  } else {
    out += "null";
  }
}

void append_usage(std::string& out, const Usage& usage) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                 R"("prompt_tokens_details":{{"cached_tokens":{}}},)"
                 R"("completion_tokens_details":{{"reasoning_tokens":{}}}}})",
                 usage.prompt_tokens, usage.completion_tokens,
                 usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens,
                 usage.reasoning_tokens);
}

void append_timings(std::string& out, const AnswerTotals& ended) {
  const Timings& timings = ended.timings;
  const auto ms = [](std::int64_t us) { return static_cast<double>(us) / 1e3; };
  fmt::format_to(std::back_inserter(out),
                 R"({{"queued_ms":{:.3f},"prefill_ms":{:.3f},"decode_ms":{:.3f},)"
                 R"("stalled_ms":{:.3f},"total_ms":{:.3f},"preemptions":{},)"
                 R"("tokens_per_second":{:.2f}}})",
                 ms(timings.queued_us), ms(timings.prefill_us), ms(timings.decode_us),
                 ms(timings.stalled_us), ms(timings.total_us), timings.preemptions,
                 ended.tokens_per_second());
}

void append_ids(std::string& out, std::span<const Token> ids) {
  out += '[';
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    append_json_integer(out, ids[i]);
  }
  out += ']';
}

std::string token_name(const Model& model, const OutputOptions& options, Token token) {
  if (options.tokens_as_ids || model.tokenizer == nullptr) return fmt::format("token_id:{}", token);
  std::string text;
  append_utf8_lossy(text, model.tokenizer->token_bytes(token));
  return text;
}

void append_chat_logprob(std::string& out,
                         const Model& model,
                         const OutputOptions& options,
                         const TokenLogprob& entry) {
  out += R"({"token":)";
  append_json_string(out, token_name(model, options, entry.token));
  out += R"(,"logprob":)";
  append_json_float(out, entry.logprob);
  out += R"(,"bytes":[)";
  if (model.tokenizer != nullptr) {
    bool first = true;
    for (const char byte : model.tokenizer->token_bytes(entry.token)) {
      if (!first) out += ',';
      first = false;
      append_json_integer(out, static_cast<unsigned char>(byte));
    }
  }
  out += ']';
}

}  // namespace koho::api
