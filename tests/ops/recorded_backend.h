// SPDX-License-Identifier: Apache-2.0
// A backend that runs every operator of another one as a recording: recorded, replayed once.
#pragma once

#include <memory>

#include "ops/backend.h"

namespace koho::testing {

/// Requires: `backend` outlives the result. What `backend` enqueues for an operator is recorded
/// (on a GPU: captured in a graph) without being done, then replayed; whatever an operator's
/// results depend on besides, such as host code that a replay does not run again, shows as a
/// wrong result.
std::unique_ptr<Backend> make_recorded_backend(Backend& backend);

}  // namespace koho::testing
