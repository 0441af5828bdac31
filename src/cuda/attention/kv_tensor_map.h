// SPDX-License-Identifier: Apache-2.0
// The cache pages of one layer as TMA sees them: rows of one token and head, cut into
// panels of at most 128 bytes that land in shared memory swizzled (KvPageLayout in attention_mma.cuh).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/kernels.h"

namespace koho::cuda {

constexpr int kPageRows = 64;        // tokens of a page, rows of a copied box
constexpr int kPanelBytesMax = 128;  // of a row in one box

struct KvTensorMaps {
  CUtensorMap k;
  CUtensorMap v;
};

/// Describes p.k and p.v. Errors: cudaErrorNotSupported if the driver lacks the call,
/// cudaErrorInvalidValue if it refuses (addresses must be multiples of 16 bytes).
cudaError_t make_kv_tensor_maps(KvTensorMaps& maps, const Attention& p);
/// Describes packed rows of `width` 16-bit elements, in boxes of `box_rows` and 128 bytes.
cudaError_t make_row_tensor_map(
    CUtensorMap& map, const void* first, std::int64_t rows, int width, int box_rows);

}  // namespace koho::cuda
