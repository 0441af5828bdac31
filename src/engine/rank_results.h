// SPDX-License-Identifier: Apache-2.0
// What an executor makes of its ranks' answers.
#pragma once

#include <span>

#include "base/error.h"

namespace koho {

/// The error of the rank that failed first, with its number. The others report `unavailable`,
/// because its collectives ended.
Status first_failure(std::span<const Status> ranks);

}  // namespace koho
