// SPDX-License-Identifier: Apache-2.0
// Reads every value of a checkpoint once, or of one rank's part of it, to find numbers that are not
// finite and negative FP8 scales: one of them would turn every answer into noise.
#pragma once

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "model/weights.h"

namespace koho {

/// Errors: corrupt_data, naming tensor, file, place and value of the first bad one. Cost: reads the
/// whole checkpoint.
Status scan_values(const Checkpoint& checkpoint);

/// The same for `part`, views into the checkpoint: reads nothing else. Errors: corrupt_data; the
/// place is counted within the part.
Status scan_values(const Checkpoint& checkpoint, const ModelSources& part);

}  // namespace koho
