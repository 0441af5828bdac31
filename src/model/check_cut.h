// SPDX-License-Identifier: Apache-2.0
// Whether a model's weights can be cut for the ranks, found out without placing any.
#pragma once

#include "base/error.h"
#include "model/config.h"
#include "model/sharding.h"
#include "model/weights.h"

namespace koho {

/// Cuts every layer for every rank, as Glm4Moe::load does. `shard.rank` does not matter. Errors: as
/// check_shard(), rows_of() and columns_of(), with the layer.
Status check_cut(const ModelConfig& config, const ModelSources& sources, const Shard& shard);

}  // namespace koho
