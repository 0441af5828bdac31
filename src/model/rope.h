// SPDX-License-Identifier: Apache-2.0
// The table of rotary angles: cosines and sines of every position, in f32.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "tensor/tensor.h"

namespace koho {

/// Cosines and sines of position * theta^(-2j/rotary), j = 0 .. rotary/2-1.
///
/// shapes    result [positions, 2, rotary/2] f32: cosines, then sines
/// numerics  frequencies and angles are rounded to f32 as the reference does, cosine and sine taken
/// in f64 source    Glm4MoeRotaryEmbedding in Hugging Face transformers; model-spec 3.3
Result<Tensor> make_rope_table(std::int64_t positions, std::int64_t rotary, double theta);

}  // namespace koho
