// SPDX-License-Identifier: Apache-2.0
// Hopper's matrix kernels for one matrix (decode) and for many tokens. All give a row the same
// bits.
#pragma once

#include <numeric>
#include <vector>

#include <cuda.h>

#include "base/arithmetic.h"
#include "cuda/matmul.h"
#include "cuda/tiles.h"

namespace koho::cuda {

constexpr int kBox = 128;               // bytes of K of a box of token rows
constexpr int kSharedMax = 227 * 1024;  // bytes of shared memory that a CTA may have

/// How the work of one matrix is cut; no result depends on it.
struct DenseForm {
  int columns = 8;       // room for so many tokens a CTA: 8, 16, 32, 64, 128
  int slot_width = 256;  // bytes of K of a slot of the ring: 256 or 128
  int ring_bytes = 0;
  int copiers = 1;   // warps; with 2 one of them copies token rows alone
  int rows = 0;      // weight rows of a CTA of the turned kernel; 0: the other kernel
  int resident = 1;  // CTAs that a multiprocessor has room for (turned): 1 or 2
  int ctas = 0;      // that take blocks of rows one after the other (turned); 0: one a block
  int shared = 1;    // 2: the tokens' two slices are a cluster and share weights (turned)
};

/// Whether CTAs of a form of the turned kernel can take blocks one after the other.
constexpr bool turned_repeats(const DenseForm& form) {
  return form.slot_width < kStageWidth && form.resident == 1;
}

/// The form of one matrix on Hopper, from measurements on an H200 (bench/matmul_forms.cpp).
DenseForm dense_form(const Matmul& parameters, int multiprocessors);
/// All of the turned kernel's that can multiply these.
std::vector<DenseForm> turned_forms(const Matmul& parameters);
/// The turned kernel's, if that is the faster one; else one of 0 rows.
DenseForm turned_form(const Matmul& parameters, int multiprocessors);

/// Tokens of a CTA's slice: as equal as they can be. `tokens` of the whole call.
constexpr int dense_slice(const DenseForm& form, int tokens) {
  return form.rows > 0 ? ceil_div(tokens, ceil_div(tokens, form.columns)) : tokens;
}

/// One matrix for up to `form.columns` tokens, each CTA 64 weight rows; `x_map` describes x in
/// boxes of dense_slice() rows. NOTE: a row of a box that is no token's is read as zeros, at a
/// fraction of other rows' speed.
cudaError_t launch_matmul_dense(const Matmul& parameters,
                                const CUtensorMap& x_map,
                                const DenseForm& form,
                                cudaStream_t stream);

/// CTAs with `rows` weight rows begin at multiples of this within tiles.
constexpr int turned_row_step(int rows) {
  return std::gcd(rows, kTileRows);
}
/// Weights in boxes of 8, 16, … 64 rows, as far as the form needs them.
struct WeightMaps {
  CUtensorMap of[kTileRows / 8];
};
/// The same turned, form.rows weight rows and the whole width a CTA; with 64 columns it has one
/// warpgroup, with 128 two and all tokens. Its bits are the other kernel's where the width is a
/// multiple of kStageWidth. Errors: cudaErrorInvalidValue for a form that turned_forms() lacks.
cudaError_t launch_matmul_turned(const Matmul& parameters,
                                 const WeightMaps& weight_maps,
                                 const CUtensorMap& x_map,
                                 const DenseForm& form,
                                 cudaStream_t stream);

/// The kernel of many tokens multiplies 128 of them at a time, or up to kPrefillColumns: there an
/// item's products have its tokens rounded up to the next form.
constexpr int kPrefillColumns = 192;
constexpr int kPrefillStep = 16;
constexpr int prefill_forms(int columns) {
  return columns == kPrefillColumns ? 9 : 1;
}
constexpr int prefill_form_columns(int columns, int form) {
  return columns - (prefill_forms(columns) - 1 - form) * kPrefillStep;
}

/// x in boxes of half the columns of each form.
struct PrefillMaps {
  CUtensorMap of[prefill_forms(kPrefillColumns)];
  CUtensorMap out;  // in boxes of kPrefillStep tokens by a tile's rows, if the copy engine stores
  bool stores = false;
};

/// One matrix or experts, any number of tokens; entries have at most `columns` (128; or
/// kPrefillColumns, for fp8 in one part, rounded to bf16). x_rows is not used: rows of x lie in
/// sorted order, and `maps` describes them.
cudaError_t launch_matmul_prefill(const Matmul& parameters,
                                  const PrefillMaps& maps,
                                  int columns,
                                  int multiprocessors,
                                  cudaStream_t stream);

}  // namespace koho::cuda
