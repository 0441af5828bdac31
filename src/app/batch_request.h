// SPDX-License-Identifier: Apache-2.0
// Parses a line of `koho batch`'s input to a request of the engine. A bad line is an error in its
// BatchLine; the reader goes on. The format: docs/batch.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "app/sampling_flags.h"
#include "base/error.h"
#include "chat/json.h"
#include "chat/output_parser.h"
#include "runtime/runtime.h"

namespace koho::app {

struct BatchLine {
  std::string id = "null";  // as JSON: a string, an integer, or null if it could not be read
  Result<Request> request;
  std::optional<chat::OutputParserOptions> parser{};  // of a line with messages
};

/// The names of the sampling parameters that a line may have, in lines of at most 100 columns.
std::string batch_sampling_fields();

class BatchRequestReader {
 public:
  /// Fields that a line leaves out come from `flags`, then from the model's generation_config.json.
  /// Requires: both arguments outlive the reader.
  BatchRequestReader(Runtime& runtime, const SamplingFlags& flags)
      : runtime_(runtime), flags_(flags) {}

  /// Parses a line; an error is in BatchLine::request. Engine::submit checks the ranges.
  BatchLine read(std::string_view line);

  /// Unknown fields, and the number of lines that have each.
  const std::map<std::string, std::int64_t>& unknown_fields() const { return unknown_; }

 private:
  using Parser = std::optional<chat::OutputParserOptions>;

  Result<Request> read_request(const chat::Json& json, Parser& parser) const;
  Status read_prompt(const chat::Json& json, Request& request, Parser& parser) const;
  Status read_sampling(const chat::Json& json, SamplingParameters& sampling) const;
  Status read_stops(const chat::Json& json, Request& request) const;
  Status read_lengths(const chat::Json& json, Request& request) const;
  void note_unknown(const chat::Json& json);

  Runtime& runtime_;
  const SamplingFlags& flags_;
  std::map<std::string, std::int64_t> unknown_;
};

}  // namespace koho::app
