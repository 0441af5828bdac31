// SPDX-License-Identifier: Apache-2.0
// The quantization_config of a checkpoint's config.json: which FP8 scheme it announces. What a
// tensor really is, its header says (model/weights.h); this is held against it. Schemes koho does
// not have are refused by name.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "ops/weights.h"

namespace koho {

struct QuantizationConfig {
  std::string method;                // "compressed-tensors" or "fp8"
  std::vector<WeightQuant> schemes;  // of the quantised weights; mostly one
  std::vector<std::string> ignored;  // modules left unquantised, as written; "re:…" is a pattern
};

/// Reads the value of quantization_config. Activations are always quantised as they come (per
/// token, or per token and 128 columns for blocks); anything else is refused. Errors:
/// invalid_argument; unsupported.
Result<QuantizationConfig> parse_quantization_config(const json::Value& value);

}  // namespace koho
