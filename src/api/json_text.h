// SPDX-License-Identifier: Apache-2.0
// Appends the JSON that several responders write: numbers, usage, timings, token ids, logprobs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "api/generation.h"
#include "api/responder.h"

namespace koho::api {

/// "stop", "length", "tool_calls", or null.
void append_finish(std::string& out, Finish finish);
/// vLLM's stop_reason: the stop string, the id of a stop token that is not one of the model's own,
/// or null.
void append_stop_reason(std::string& out, const Piece& piece, const Model& model);
/// {"prompt_tokens", …, "prompt_tokens_details": {"cached_tokens"}, …}.
void append_usage(std::string& out, const Usage& usage);
/// {"queued_ms", …, "tokens_per_second"}.
void append_timings(std::string& out, const AnswerTotals& ended);
void append_ids(std::string& out, std::span<const Token> ids);

/// The name of a token in logprobs: its text, or "token_id:7".
std::string token_name(const Model& model, const OutputOptions& options, Token token);
/// {"token", "logprob", "bytes"} of OpenAI's chat logprobs, without the closing brace.
void append_chat_logprob(std::string& out,
                         const Model& model,
                         const OutputOptions& options,
                         const TokenLogprob& entry);

}  // namespace koho::api
