// SPDX-License-Identifier: Apache-2.0
// RoPE's table: the cosines and sines of every position, computed once on the host. The operator
// qk_norm_rope_store_kv applies it.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "tensor/tensor.h"

namespace koho {

/// The cosines and sines of the angles position * theta^(-2j / rotary), j = 0 .. rotary/2 - 1.
///
/// shapes    result [positions, 2, rotary/2] f32: cosines, then sines
/// numerics  frequencies and angles are rounded to f32, as the reference does; cosine and sine are
///           computed in f64 and rounded once
/// errors    resource_exhausted
/// source    Glm4MoeRotaryEmbedding in Hugging Face transformers; docs/model.md#attention
Result<Tensor> make_rope_table(std::int64_t positions, std::int64_t rotary, double theta);

}  // namespace koho
