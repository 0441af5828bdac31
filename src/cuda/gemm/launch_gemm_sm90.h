// SPDX-License-Identifier: Apache-2.0
// Launches Hopper's TMA-fed GEMM kernels with the tensor maps that they need.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "cuda/device/tensor_map.h"
#include "cuda/gemm/gemm_sm90.h"

namespace koho::cuda {

/// Encodes tiled weights (tiled_layout.h) in the TMA boxes that CTAs of config.rows rows copy, each
/// config.slot_width bytes of K. In shared memory a TMA box is a matrix of core matrices: 128 bytes
/// between chunks of K, 8 * config.slot_width between groups of 8 rows. Bytes beyond K are zero.
/// Errors: device_error.
Status make_weight_tensor_maps(WeightTensorMaps& maps,
                               const Gemm& parameters,
                               const DecodeGemmConfig& config);
/// Encodes the token rows for launch_gemm_prefill_sm90() with `columns`. Errors: device_error.
Status make_prefill_tensor_maps(PrefillTensorMaps& maps, const TensorRows& rows, int columns);

/// One weight matrix, up to 128 tokens, by the decode kernel that `config` names. Errors:
/// device_error.
Status launch_decode_gemm(const Gemm& parameters,
                          const DecodeGemmConfig& config,
                          cudaStream_t stream);
/// The prefill kernel over the `rows` rows of x. Errors: device_error.
Status launch_prefill_gemm(const Gemm& parameters,
                           std::int64_t rows,
                           int columns,
                           int multiprocessors,
                           cudaStream_t stream);

}  // namespace koho::cuda
