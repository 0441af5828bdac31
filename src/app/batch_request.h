// SPDX-License-Identifier: Apache-2.0
// A line of `koho batch`'s input as a request of the engine. Says what is wrong with a bad one and
// goes on. The format: docs/batch.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "app/sampling_flags.h"
#include "base/error.h"
#include "chat/json.h"
#include "runtime/runtime.h"

namespace koho::app {

struct BatchLine {
  std::string id = "null";  // as JSON: a string, an integer, or null if it could not be read
  Result<Request> request;
};

/// The names of the sampling parameters that a line may have, in lines of at most 100 columns.
std::string batch_sampling_fields();

class BatchRequestReader {
 public:
  /// Lines that leave a field out get what `flags` say, then the model's own. Requires: both
  /// outlive the reader.
  BatchRequestReader(Runtime& runtime, const SamplingFlags& flags)
      : runtime_(runtime), flags_(flags) {}

  /// Never fails as a whole: what is wrong stands in `request`. Ranges are left to
  /// Engine::submit.
  BatchLine read(std::string_view line);

  /// Fields that no line should have, and in how many lines they stood.
  const std::map<std::string, std::int64_t>& unknown_fields() const { return unknown_; }

 private:
  Result<Request> read_request(const chat::Json& json) const;
  Status read_prompt(const chat::Json& json, Request& request) const;
  Status read_sampling(const chat::Json& json, SamplingParameters& sampling) const;
  Status read_stops(const chat::Json& json, Request& request) const;
  Status read_lengths(const chat::Json& json, Request& request) const;
  void note_unknown(const chat::Json& json);

  Runtime& runtime_;
  const SamplingFlags& flags_;
  std::map<std::string, std::int64_t> unknown_;
};

}  // namespace koho::app
