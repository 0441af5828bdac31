// SPDX-License-Identifier: Apache-2.0
// Tensor maps of one layer's cache pages: rows of one token and head, in panels of at most 128
// bytes that TMA swizzles into shared memory (KvPageLayout in attention_mma.cuh).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/kernels.h"

namespace koho::cuda {

constexpr int kPageRows = 64;        // tokens of a page
constexpr int kPanelBytesMax = 128;  // of a row in one TMA box

struct KvTensorMaps {
  CUtensorMap k;
  CUtensorMap v;
};

/// Describes p.k and p.v in TMA boxes of `box_rows` rows. Errors: cudaErrorNotSupported if the
/// driver lacks the call, cudaErrorInvalidValue if it refuses (addresses must be multiples of 16
/// bytes).
cudaError_t make_kv_tensor_maps(KvTensorMaps& maps, const Attention& p, int box_rows);
/// Describes packed rows of `width` 16-bit elements, in TMA boxes of `box_rows` rows and 128 bytes.
cudaError_t make_row_tensor_map(
    CUtensorMap& map, const void* first, std::int64_t rows, int width, int box_rows);

}  // namespace koho::cuda
