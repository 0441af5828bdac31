// SPDX-License-Identifier: Apache-2.0
// The quantization_config of a checkpoint's config.json: which FP8 scheme it announces. The
// tensors' own headers decide how each is stored (model/weights.h); they are compared with this. It
// refuses by name the schemes that koho does not have.
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
