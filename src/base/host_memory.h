// SPDX-License-Identifier: Apache-2.0
// How much memory the machine could still give, so that a load that cannot fit is refused before
// the system's out-of-memory killer ends it.
#pragma once

#include <cstdint>
#include <optional>

namespace koho {

/// What the system thinks can be taken without swapping: free memory and the caches it would give
/// up (MemAvailable of /proc/meminfo). Nothing where it does not say. A limit of the process' own
/// (a container's) is not seen.
std::optional<std::int64_t> available_memory_bytes();

}  // namespace koho
