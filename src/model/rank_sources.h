// SPDX-License-Identifier: Apache-2.0
// What one rank holds of a model's weights: views of a part of each whole one, as sharding.h cuts
// it. Nothing is read.
#pragma once

#include <cstdint>
#include <functional>

#include "base/error.h"
#include "model/config.h"
#include "model/sharding.h"
#include "model/weights.h"

namespace koho {

/// The part of `sources` that the rank holds; of the routed experts those that it has, or its slice
/// of each. Without the MTP layer. Errors: those of check_shard, rows_of and columns_of, naming the
/// layer.
Result<ModelSources> rank_sources(const ModelConfig& config,
                                  const ModelSources& sources,
                                  const Shard& shard);

/// What a weight is to its layer.
enum class SourcePart : std::uint8_t { weight, scale, bias };

/// Calls `visit` for every tensor of `sources` that is there, the MTP layer's left out.
void for_each_source(const ModelSources& sources,
                     const std::function<void(const ConstTensorView&, SourcePart)>& visit);

/// Bytes of all of them.
std::int64_t bytes_of(const ModelSources& sources);

}  // namespace koho
