// SPDX-License-Identifier: Apache-2.0
// How this process logs, for others that are to log alike.
#pragma once

#include <cstdint>

#include "base/log.h"

namespace koho::log {

/// What configure() was last told.
Level lowest();
Format format();

/// From now on every line names this rank: of a worker process, whose lines go to the standard
/// error that all ranks share. Call before threads start.
void set_rank(std::int64_t rank);

}  // namespace koho::log
