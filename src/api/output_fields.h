// SPDX-License-Identifier: Apache-2.0
// The fields that say what a client sees of an output (streaming, ids, timings) and how its request
// is served (priority, deadline, cache salt, names).
#pragma once

#include <span>

#include "api/shared_fields.h"

namespace koho::api {

std::span<const RequestField> output_fields();

}  // namespace koho::api
