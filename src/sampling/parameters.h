// SPDX-License-Identifier: Apache-2.0
// What becomes of a request's sampling parameters: the one check of their ranges, and the row that
// the samplers read. The parameters themselves: sampling/parameter_table.h. How a row is applied:
// sampling/sampler.cpp.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "sampling/parameter_table.h"
#include "sampling/sampling_row.h"

namespace koho {

/// Checks every range of the table; NaN and infinities never pass. `vocabulary` bounds top_k and
/// the ids of logit_bias.
/// Errors: invalid_argument naming the parameter, its range and the value found.
Status validate(const SamplingParameters& parameters, std::int64_t vocabulary);

/// Whether the samplers need a request's token counts: a penalty is not neutral.
bool has_penalties(const SamplingParameters& parameters);

/// The row of a request; slots and ranges keep their defaults.
SamplingRow make_sampling_row(const SamplingParameters& parameters,
                              std::uint64_t seed,
                              std::int64_t output_position);

}  // namespace koho
