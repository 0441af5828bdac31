// SPDX-License-Identifier: Apache-2.0
// What operators read and write beside weights: one step's flat arrays, the cache pages of one
// layer, activations in the formats that their readers need. All tensors lie on the backend's
// device. The plain numbers are on the host and decide launch shapes only, never results.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/tensor_view.h"

namespace koho {

inline constexpr std::int64_t kPageTokens = 64;  // P, tokens of a cache page

/// One step's tokens, grouped by sequence, decodes first. Two kinds of rows have slot -1 and
/// context length 0: padding at the end (decode steps are padded to a captured graph's size) and
/// sequences that have ended. Their outputs are unspecified but finite.
struct Batch {
  ConstTensorView token_ids;  // [T] i32, 0 <= id < V
  ConstTensorView positions;  // [T] i32, place in the sequence, from 0
  ConstTensorView slots;      // [T] i64, the slot mapping: page * 64 + offset; -1 = store nothing
  // [S+1] i32: sequence s owns token rows query_starts[s] .. query_starts[s+1]-1
  ConstTensorView query_starts;
  ConstTensorView context_lengths;  // [S] i32: tokens in the cache once this step's are stored
  // [S, pages] i32: page numbers in order; entries past the context are unspecified
  ConstTensorView page_tables;
  ConstTensorView logit_rows;  // [R] i32: token rows whose logits are wanted; may be empty

  // [ranks + 1] on the host, under data-parallel attention: rank r has the rows row_starts[r] ..
  // row_starts[r + 1] - 1 of all ranks' rows. Must stay until the step is enqueued.
  std::span<const std::int64_t> row_starts{};

  std::int64_t tokens = 0;       // T
  std::int64_t sequences = 0;    // S
  std::int64_t decodes = 0;      // the first `decodes` sequences have exactly one token row each
  std::int64_t query_max = 0;    // longest run of rows of one sequence
  std::int64_t context_max = 0;  // largest context length
};

/// The cache of one layer. N pages of P = 64 tokens; a sequence's last page may be partly filled.
struct KvLayer {
  TensorView k;         // [N, K, P, D] bf16 or e4m3
  TensorView v;         // [N, K, P, D] like k
  TensorView k_scales;  // empty for bf16; [N, K, P] f32 multipliers for e4m3
  TensorView v_scales;  // like k_scales
};

/// One activation in the formats that its readers need: bf16, FP8 with a scale per token, FP8 with
/// a scale per 128 columns of a token. Absent formats are empty.
struct Activation {
  TensorView values{};           // [T, K] bf16
  TensorView quantized{};        // [T, K] e4m3, packed rows
  TensorView scales{};           // [T] f32: value = quantized * scale
  TensorView block_quantized{};  // [T, K] e4m3
  TensorView block_scales{};     // [T, ceil(K/128)] f32

  /// The first `tokens` rows of every format.
  Activation first(std::int64_t tokens) const {
    auto cut = [tokens](const TensorView& view) {
      return view.empty() ? view : view.first(tokens);
    };
    return {cut(values), cut(quantized), cut(scales), cut(block_quantized), cut(block_scales)};
  }
};

/// Query heads in the format that attention reads; the absent one is empty.
struct Queries {
  TensorView values{};     // [T, Q, D] bf16
  TensorView quantized{};  // [T, Q, D] e4m3
  TensorView scales{};     // [T, Q] f32: value = quantized * scale
};

/// The experts chosen for each token.
struct Routing {
  // [T, A] i32: distinct in a row, highest selection score first, ties to the lower id
  TensorView ids;
  TensorView weights;  // [T, A] f32: normalised and scaled
};

/// How the router selects; the comments name the keys of config.json.
struct RouterSettings {
  std::int64_t top_k = 0;        // A
  std::int64_t groups = 1;       // n_group
  std::int64_t groups_kept = 1;  // topk_group
  bool normalize = true;         // norm_topk_prob
  float scale = 1.0F;            // routed_scaling_factor
};

/// Head geometry of one layer on this rank.
struct HeadShape {
  std::int64_t query_heads = 0;  // Q
  std::int64_t kv_heads = 0;     // K, divides Q
  std::int64_t width = 0;        // D
  std::int64_t rotary = 0;       // rotated dims of a head, even, <= D
};

}  // namespace koho
