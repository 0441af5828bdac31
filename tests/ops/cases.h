// SPDX-License-Identifier: Apache-2.0
// Cases that are not yet in the list of bench/operators/; op_cases() appends them.
#pragma once

#include <vector>

#include "bench/operators/operator_case.h"
#include "ops/op_cases.h"

namespace koho::testing {

using bench::many_tokens;
using bench::random_indices;
using bench::random_needs;
using bench::random_quant;
using bench::random_tokens;
using bench::random_width;
using bench::with_values;

std::vector<OpCase> row_cases();
std::vector<OpCase> sampling_cases();

}  // namespace koho::testing
