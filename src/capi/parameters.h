// SPDX-License-Identifier: Apache-2.0
// The C structs, checked and turned into the engine's own.
#pragma once

#include <cstdint>
#include <span>

#include "base/error.h"
#include "engine/request.h"
#include "koho/engine.h"
#include "runtime/runtime.h"

namespace koho::capi {

/// `given` may be null: all defaults. Its struct_size may be an earlier version's: nothing beyond
/// is read. Errors: invalid_argument; unsupported (struct_size).
Result<RuntimeOptions> runtime_options(const EngineOptions* given);

/// The caller's memory for logits: [rows, V].
struct LogitsBuffer {
  float* data = nullptr;  // null: no logits are asked for
  std::int64_t rows = 0;
};

struct NewRequest {
  Request request;
  LogitsBuffer logits;
};

/// A request of a prompt; `params` may be null: what the model advises. Its ranges are checked by
/// the engine. Errors: invalid_argument; unsupported (struct_size).
Result<NewRequest> make_request(const Runtime& runtime,
                                std::span<const std::int64_t> prompt,
                                const SamplingParams* params);

}  // namespace koho::capi
