// SPDX-License-Identifier: Apache-2.0
// The launchers of all kernels but GEMMs, and their parameters: device pointers, strides in
// elements. The operators have checked shapes; a launcher checks nothing and returns the launch's
// error.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cuda/attention/tile_order.h"
#include "sampling/sampling_row.h"

namespace koho::cuda {

using Bf16 = std::uint16_t;

constexpr int kHeadWidthMax = 256;  // of attention and its rope: what their plain forms hold

/// Where a kernel writes rows of activations: as bf16, as FP8 with one scale per row, as FP8 with
/// one scale per 128 columns. Null: not wanted.
struct RowOutputs {
  Bf16* values = nullptr;
  std::int64_t values_stride = 0;
  std::uint8_t* quantized = nullptr;
  std::int64_t quantized_stride = 0;
  float* scales = nullptr;
  std::uint8_t* block_quantized = nullptr;
  std::int64_t block_quantized_stride = 0;
  float* block_scales = nullptr;
  std::int64_t block_scales_stride = 0;
};

// ---- batch_slots.cu

struct GatherInputIds {
  std::int32_t* token_ids = nullptr;               // [T]
  std::int64_t* slots = nullptr;                   // [T]
  std::int32_t* page_tables = nullptr;             // [S, width]
  std::int32_t* context_lengths = nullptr;         // [S]
  const std::int32_t* given_ids = nullptr;         // [T] id or -1 - batch slot
  const std::int32_t* batch_slots = nullptr;       // [S]
  const std::int32_t* batch_slot_pages = nullptr;  // [batch slots, width]
  const std::int32_t* last_sampled = nullptr;      // [batch slots]
  const std::int32_t* outputs = nullptr;           // [batch slots, OutputRecord::kWords]
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  std::int64_t batch_slot_count = 0;
  std::int64_t width = 0;
};
cudaError_t launch_gather_input_ids(const GatherInputIds& take, cudaStream_t stream);

struct CommitSampled {
  std::uint8_t* ends = nullptr;               // [R]
  std::int32_t* last_sampled = nullptr;       // [batch slots]
  std::int32_t* outputs = nullptr;            // [batch slots, OutputRecord::kWords]
  const std::int32_t* batch_slots = nullptr;  // [R]
  const std::int32_t* ids = nullptr;          // [R]
  std::int64_t rows = 0;
  std::int64_t batch_slot_count = 0;
};
cudaError_t launch_commit_sampled(const CommitSampled& keep, cudaStream_t stream);
cudaError_t launch_set_entries(std::int32_t* table,
                               std::int64_t entries,
                               const std::int32_t* pairs,
                               std::int64_t count,
                               cudaStream_t stream);

// ---- gather_copy.cu

/// Rows of x by their indices, which are moved into x where it lacks them.
struct GatherRows {
  Bf16* out = nullptr;  // [rows, width], packed
  const Bf16* x = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t x_rows = INT32_MAX;        // unless only the device knows
  const std::int32_t* indices = nullptr;  // [rows]
  std::int64_t rows = 0;
  std::int64_t width = 0;
};
cudaError_t launch_gather_rows(const GatherRows& gather, cudaStream_t stream);

struct PageCopy {
  std::uint8_t* k = nullptr;
  std::uint8_t* v = nullptr;
  float* k_scales = nullptr;  // null for bf16 pages
  float* v_scales = nullptr;
  std::int64_t page_bytes = 0;          // of k, and of v
  std::int64_t page_scales = 0;         // floats of k_scales, and of v_scales
  const std::int32_t* pairs = nullptr;  // [count, 2]
  std::int64_t count = 0;
};
cudaError_t launch_copy_pages(const PageCopy& copy, cudaStream_t stream);

/// A row of TokenCounts (ops/backend.h) and what it is to count.
struct CountReset {
  std::int32_t* entries = nullptr;
  std::int32_t* nonzero = nullptr;
  std::int64_t vocabulary = 0;
  std::int64_t nonzero_words = 0;
  const std::int32_t* prompt = nullptr;
  std::int64_t prompt_count = 0;
  const std::int32_t* output = nullptr;
  std::int64_t output_count = 0;
};
cudaError_t launch_reset_counts(const CountReset& reset, cudaStream_t stream);

/// Tokens that another rank sampled.
struct CountSampled {
  std::int32_t* entries = nullptr;  // [slots, V]
  std::int32_t* nonzero = nullptr;  // [slots, nonzero_words]
  std::int64_t slots = 0;
  std::int64_t vocabulary = 0;
  std::int64_t nonzero_words = 0;
  const SamplingRow* rows = nullptr;  // [R], with different counts_slots
  const std::int32_t* ids = nullptr;  // [R]
  std::int64_t row_count = 0;
};
cudaError_t launch_count_sampled(const CountSampled& count, cudaStream_t stream);

// ---- norm.cu

struct NormRows {
  const Bf16* x =
      nullptr;  // [T, H], or the residual, changed in place when `block_output` is given
  std::int64_t x_stride = 0;
  const Bf16* block_output = nullptr;  // [T, H] or null
  Bf16* residual = nullptr;            // = x when `block_output` is given
  const Bf16* weight = nullptr;        // [H]
  float eps = 0.0F;
  std::int64_t rows = 0;
  std::int64_t width = 0;
};
cudaError_t launch_rms_norm(const RowOutputs& out, const NormRows& norm, cudaStream_t stream);

struct SiluMul {
  const Bf16* gate_up = nullptr;  // [T, 2F]
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int64_t width = 0;  // F
};
/// silu(gate) * up [T, F]
cudaError_t launch_silu_mul(const RowOutputs& out, const SiluMul& silu, cudaStream_t stream);

struct QuantizeRows {
  const Bf16* x = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  const std::int32_t* rows_count = nullptr;  // on the device: may shorten `rows`; or null
  std::int64_t width = 0;
  int multiprocessors = 0;  // of the GPU
};
/// Quantises rows of bf16 as their readers need. NOTE: what rows_count points to must be older
/// than the previous kernel.
cudaError_t launch_quantize_rows(const RowOutputs& out,
                                 const QuantizeRows& quantize,
                                 cudaStream_t stream);

/// Rows of bytes into a wider, 16-byte aligned layout; the columns beyond become zero.
struct PadRows {
  std::uint8_t* out = nullptr;
  std::int64_t out_stride = 0;
  const std::uint8_t* x = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t rows = 0;
  std::int64_t bytes = 0;  // of a row of x
};
cudaError_t launch_pad_rows(const PadRows& pad, cudaStream_t stream);

// ---- rope_kv.cu

struct RopeKv {
  Bf16* q = nullptr;          // [T, Q, D]
  const Bf16* qkv = nullptr;  // [T, (Q + 2K) * D]
  std::int64_t qkv_stride = 0;
  const std::int32_t* positions = nullptr;
  const std::int64_t* slots = nullptr;
  void* k = nullptr;  // pages [N, K, 64, D]
  void* v = nullptr;
  float* k_scales = nullptr;  // null for bf16 pages
  float* v_scales = nullptr;
  const Bf16* q_norm = nullptr;
  const Bf16* k_norm = nullptr;
  const float* rope_table = nullptr;
  std::int64_t tokens = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int width = 0;
  int rotary = 0;
  float eps = 0.0F;
  int multiprocessors = 0;  // of the GPU
};
/// The form in e4m3: these instead of q and qkv.
struct RopeKvQuantized : RopeKv {
  std::uint8_t* q_quantized = nullptr;          // [T, Q, D]
  float* q_scales = nullptr;                    // [T, Q]
  const std::uint8_t* qkv_quantized = nullptr;  // [T, (Q + 2K) * D], rows by qkv_stride
  const float* qkv_scales = nullptr;            // [T]
};
/// NOTE: of few tokens the next kernel may start before the previous one has ended.
cudaError_t launch_rope_kv(const RopeKv& parameters, cudaStream_t stream);
cudaError_t launch_rope_kv(const RopeKvQuantized& parameters, cudaStream_t stream);

// ---- attention

struct ContextWorkTiles;
struct Attention {
  const Bf16* q = nullptr;  // [T, Q, D]
  const void* k = nullptr;  // pages [N, K, 64, D]
  const void* v = nullptr;
  const float* k_scales = nullptr;  // null for bf16 pages
  const float* v_scales = nullptr;
  std::int64_t pages = 0;  // N
  const std::int32_t* positions = nullptr;
  const std::int32_t* query_starts = nullptr;
  const std::int32_t* context_lengths = nullptr;
  const std::int32_t* page_tables = nullptr;
  std::int64_t page_tables_stride = 0;
  Bf16* out = nullptr;  // [T, Q * D], packed, aligned to 16 bytes
  std::int64_t tokens = 0;
  int sequences = 0;
  int decodes = 0;
  int query_max = 0;
  int context_max = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int width = 0;
  int chunk_tokens =
      0;  // decode: context tokens whose pages are summed first (attention_split_kv.cuh)
  float* partial = nullptr;  // [attention_partial_floats()]
  void* upcast = nullptr;    // wgmma, e4m3 pages: scratch memory, aligned to 256 bytes
  std::int64_t upcast_bytes = 0;
  std::uint32_t* tile_counters =
      nullptr;  // wgmma: [2] zeros, which kernels leave as they found them
  int multiprocessors = 0;
  TileOrder tile_order{};                          // wgmma: of attention_prompt_tiles()
  ContextWorkTiles* context_work_tiles = nullptr;  // [decodes], of the kernels of many contexts
};
constexpr int kAttentionChunkTokens = 512;  // chunk_tokens is this, or twice it and so on
/// Any shape, one warp a row and head: the definition of the fast kernels. Rows of all sequences.
cudaError_t launch_attention_reference(const Attention& parameters, cudaStream_t stream);
/// True if the tensor-core kernels take these heads and pages.
bool attention_supports_mma(const Attention& parameters);
/// Decoded sequences and what decides into how many split-KV chunks their contexts are divided.
struct SplitKvShape {
  std::int64_t decodes = 0;
  std::int64_t context_max = 0;
  std::int64_t chunk_tokens = 0;
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t width = 0;
};
/// Floats that their sums take.
std::int64_t attention_partial_floats(const SplitKvShape& sums);
/// The first `decodes` sequences, one row each (sequence s owns token row s), cut at fixed places
/// of the context. NOTE: starts before the previous kernel has ended, and after launch_rope_kv()
/// before the one before that: the previous one may write q and the last token of a context, and
/// neither anything else that is read here. Leaves partial sums and, in `out`, rows that need no
/// combining.
cudaError_t launch_attention_decode(const Attention& parameters, cudaStream_t stream);
/// True if rows of `width` of these outputs can be written 8 elements at a time, as the kernel
/// does.
bool attention_combine_supports(const RowOutputs& out, std::int64_t width);
/// Combines the decoded rows into the outputs wanted; zeros in the `rows` after them. `out.values`
/// may be the parameters' `out`.
cudaError_t launch_attention_combine(const RowOutputs& out,
                                     const Attention& parameters,
                                     std::int64_t rows,
                                     cudaStream_t stream);
/// Zeros in p.out for rows that no sequence owns, and for those of empty sequences that are not
/// decoded.
cudaError_t launch_attention_padding(const Attention& parameters, cudaStream_t stream);
/// The sequences after the first `decodes`.
cudaError_t launch_attention_prefill(const Attention& parameters, cudaStream_t stream);
/// The same on Hopper's wgmma, where the heads and pages have that form; and what
/// launch_attention_padding() does. NOTE: starts before the previous kernel has ended: that one may
/// write q and pages, but no lengths, starts or page tables.
bool attention_supports_wgmma(const Attention& parameters);
/// The tiles whose order p.tile_order is: of one prompt alone or beside decoded rows, else none.
PrefillTiles attention_prompt_tiles(const Attention& parameters);
/// Scratch memory that p.upcast is to have: for all sequences and heads, or, if that is more than
/// `most`, as many bytes and no fewer than one of each takes. With less, it is done without.
std::int64_t attention_upcast_bytes(const Attention& parameters, std::int64_t most);
cudaError_t launch_attention_wgmma(const Attention& parameters, cudaStream_t stream);

// ---- choose_route.cpp

struct Route {
  const Bf16* x = nullptr;  // [T, H]
  std::int64_t x_stride = 0;
  const void* weight = nullptr;  // [E, H]
  bool weight_f32 = false;
  const float* bias = nullptr;
  std::int32_t* ids = nullptr;  // [T, A]
  float* weights = nullptr;     // [T, A]
  float* partial = nullptr;     // [kRoutePlainSplitK, T, E] scratch
  std::int64_t tokens = 0;
  int hidden = 0;
  int experts = 0;
  int top_k = 0;
  int groups = 1;
  int groups_kept = 1;
  bool normalize = true;
  float scale = 1.0F;
};
constexpr int kRoutePlainSplitK = 8;  // of H, each summed by itself, then in order
constexpr int kRouteExpertsMax = 1024;
constexpr int kRouteChoicesMax = 32;
/// NOTE: its kernels let the next one start before they wait themselves, so that one may not read,
/// before its own wait, what the predecessor of the router's kernel wrote.
cudaError_t launch_route(const Route& parameters, cudaStream_t stream);

}  // namespace koho::cuda
