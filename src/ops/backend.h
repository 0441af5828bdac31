// SPDX-License-Identifier: Apache-2.0
// Backend: everything the model asks of a machine, as memory, events, graphs and operators. The
// model (src/model) calls nothing else, so it runs wherever a backend exists: cpu/ and cuda/.
//
// Each public operator checks its contract once, opens a trace span and calls the backend's private
// virtual of the same name (do_…), which may rely on the contract. How a backend computes an
// operator, and which kernels it fuses inside one, is its own choice. This file refuses: a second
// way to compute an operator, a default implementation of a virtual, anything about one model.
//
// What holds for every operator, unless its block says otherwise:
//   shapes   T tokens, S sequences, H hidden …: the letters of docs/model.md. T may be 0: the
//            operator does nothing.
//   layout   views are packed; where "rows" is said, a row is packed and rows may be strided
//   device   every tensor lies on this backend's device
//   alias    no output overlaps an input
//   errors   invalid_argument: a shape, dtype or device differs from the block; device_error
//   threads  one thread per backend at a time
//   async    on CUDA an operator only enqueues: it allocates nothing, reads nothing back, never
//            waits, and can be captured in a CUDA graph. On the CPU it returns when it is done.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "ops/batch.h"
#include "ops/trace.h"
#include "ops/weights.h"
#include "sampling/parameters.h"
#include "tensor/tensor.h"

namespace koho {

/// The largest sizes that a step may have: a backend sizes its scratch memory by them, once. The
/// last five are facts of the model on this rank; Glm4Moe::load fills them in.
struct StepLimits {
  std::int64_t tokens_max = 0;
  std::int64_t sequences_max = 0;
  std::int64_t context_max = 0;  // tokens of one sequence
  std::int64_t logit_rows_max = 0;
  std::int64_t vocabulary = 0;         // V
  std::int64_t experts_per_token = 0;  // A
  std::int64_t query_heads = 0;        // Q
  std::int64_t kv_heads = 0;           // K
  std::int64_t head_width = 0;         // D
};

/// A cudaEvent, or its like: a point in the order of the work that was enqueued.
class Event {
 public:
  virtual ~Event() = default;
  /// Puts the event behind everything enqueued so far (cudaEventRecord).
  virtual Status record() = 0;
  /// Blocks the caller until all work before the event is done (cudaEventSynchronize). Errors:
  /// device_error of that work.
  virtual Status wait() = 0;
  /// Whether wait() would return at once, with or without an error (cudaEventQuery).
  virtual bool completed() = 0;
};

/// A captured sequence of operators: a CUDA graph, or on the CPU the function itself. The tensors
/// that the operators read and write must outlive it.
class CapturedGraph {
 public:
  virtual ~CapturedGraph() = default;
  /// Enqueues the captured operators once more, on the same tensors.
  virtual Status replay() = 0;
};

/// Device memory of a backend.
struct MemoryUse {
  std::int64_t held_bytes = 0;
  std::int64_t free_bytes = 0;                   // what allocate() could still give
  std::int64_t allocations = 0;                  // made so far
  std::map<std::string, std::int64_t> purposes;  // of held_bytes, where a backend counts them
};

/// Weights of qk_norm_rope_store_kv.
struct QkNormRope {
  HeadShape heads;
  ConstTensorView q_norm;      // [D] bf16, or empty: q has no norm
  ConstTensorView k_norm;      // [D] bf16, or empty: k has no norm
  ConstTensorView rope_table;  // [positions, 2, rotary/2] f32: cosines, then sines
  float eps = 0.0F;
};

/// The penalty table: how often each token occurred so far, one row per request with penalties.
struct TokenCounts {
  // [slots, V] i32: bit 31 = the prompt holds the token, bits 0..30 = times in the output
  TensorView entries;
  // [slots, race_bitmap_words(V)] i32: a bit for each non-zero entry (sampling/philox.h)
  TensorView nonzero;

  bool empty() const { return entries.empty(); }
};

/// Inputs of `sample` beside the logits. R rows.
struct SamplingBatch {
  ConstTensorView rows;    // [R, sizeof(SamplingRow)] u8: SamplingRow
  ConstTensorView biases;  // [B, 8] u8: LogitBias; may be empty
  // [M, ceil(V/32)] i32: bit (id % 32) of word (id / 32) set = the token is allowed; may be empty
  ConstTensorView masks;
  TokenCounts counts;  // may be empty
  // The tokenizer's tokens. `sample` never draws an id from here on: the head has padding rows.
  std::int64_t tokens = 0;
};

/// Outputs of `sample`.
struct SamplingOutput {
  TensorView ids;       // [R] i32; -1 if no token is allowed or the row's logits hold a NaN
  TensorView logprobs;  // [R] f32: of the chosen token under the unmodified logits; may be empty
  // [R, kTopLogprobsMax] i32: the likeliest tokens under the unmodified logits; may be empty
  TensorView top_ids;
  TensorView top_logprobs;  // [R, kTopLogprobsMax] f32
};

/// What a rank remembers of its running sequences from step to step. A *batch slot* is a running
/// sequence's index in these tables; it stays the same until the sequence ends.
struct BatchSlotTables {
  TensorView pages;         // [batch slots, W] i32: page tables
  TensorView last_sampled;  // [batch slots] i32: the token that the latest step sampled
  TensorView outputs;       // [batch slots, OutputRecord::kWords] i32: when an output ends
};

/// A step's input rows that gather_input_ids completes from the tables.
struct BatchSlotRows {
  TensorView token_ids;        // [T] i32
  TensorView slots;            // [T] i64: slot mapping, as Batch::slots
  TensorView page_tables;      // [S, W] i32
  TensorView context_lengths;  // [S] i32
};

/// One device, or one share of the CPU's cores. Owns its memory, its stream and its kernels; knows
/// tensors and operators, and nothing of requests, pages' owners or other ranks.
class Backend {
 public:
  virtual ~Backend() = default;

  // ---- memory -----------------------------------------------------------------------------------

  virtual DeviceId device() const = 0;
  /// "cpu avx512 2 threads", "NVIDIA H200".
  virtual std::string description() const = 0;
  /// Memory on the device; its contents are unspecified. Requires: no step has run yet. Errors:
  /// resource_exhausted, with the numbers.
  virtual Result<Tensor> allocate(DType dtype, Shape shape, std::string_view purpose) = 0;
  /// Copies host bytes to the device, or back, and waits until they are there. Views are packed.
  virtual Status upload(TensorView destination, std::span<const std::byte> source) = 0;
  virtual Status download(std::span<std::byte> destination, ConstTensorView source) = 0;
  /// Blocks the caller until all enqueued work is done.
  virtual Status synchronize() = 0;
  /// Zeroed host memory that enqueue_upload and enqueue_download may use (pinned on CUDA).
  virtual Result<Tensor> allocate_host(std::int64_t bytes) = 0;
  /// As upload and download, but the call only enqueues the copy. Requires: the host bytes come
  /// from allocate_host(), and the caller leaves them alone until it has waited for a later event.
  virtual Status enqueue_upload(TensorView destination, std::span<const std::byte> source) = 0;
  virtual Status enqueue_download(std::span<std::byte> destination, ConstTensorView source) = 0;
  virtual Result<MemoryUse> memory_use() const = 0;

  // ---- events and graphs ------------------------------------------------------------------------

  virtual Result<std::unique_ptr<Event>> make_event() = 0;
  /// Whether replaying a captured graph costs less than enqueueing its operators. If so, the worker
  /// captures decode steps of a few sizes and pads its batches to them.
  virtual bool supports_graphs() const = 0;
  /// Captures what `operators` enqueues, without running it. A backend that supports graphs calls
  /// the function once, now; another one keeps it and calls it at every replay. Requires: the same
  /// operators ran before on arrays of the same shapes, so that kernels are loaded and scratch
  /// memory is large enough. Errors: those of `operators`; device_error.
  virtual Result<std::unique_ptr<CapturedGraph>> capture(std::function<Status()> operators) = 0;

  // ---- weights: once, at load -------------------------------------------------------------------

  /// Places row blocks that read the same x (q, k, v; gate, up) as one layer. The sources' memory
  /// must outlive the result. Errors: invalid_argument (widths differ), unsupported (a dtype that
  /// this backend lacks), resource_exhausted.
  Result<Linear> place_linear(std::span<const LinearSource> blocks);
  /// Places the local experts of one layer, and its shared expert if it lives here.
  Result<Experts> place_experts(const ExpertsSource& source);
  /// Places a tensor that operators read as it is: norms, embedding, router. No copy on the CPU.
  virtual Result<Tensor> place(ConstTensorView source) = 0;
  /// Prepares for steps of every size up to `limits`: allocates scratch memory, loads kernels, lets
  /// libraries choose their algorithms. After it, steps allocate and load nothing. Requires: all
  /// weights are placed. Errors: resource_exhausted; unsupported: a limit that this backend lacks.
  virtual Status reserve(const StepLimits& limits) = 0;

  // ---- operators --------------------------------------------------------------------------------

  /// Completes a step's inputs on the device: sampled tokens become the next step's input ids, and
  /// page tables come from the batch slots. A sequence whose output has ended is frozen: its rows
  /// store nothing and read no context.
  ///
  ///   token t of sequence s, in batch slot b = batch_slots[s]:
  ///     rows.token_ids[t]       = given_ids[t], or last_sampled[-1 - given_ids[t]] if negative
  ///     rows.slots[t]           = -1 if given_ids[t] is negative and that output has ended
  ///     rows.page_tables[s,i]   = pages[b,i] for i < ceil(context_lengths[s] / 64)
  ///     rows.context_lengths[s] = 0 if the output of b has ended
  ///
  /// shapes    given_ids [T] i32 · batch_slots [S] i32 · see BatchSlotRows, BatchSlotTables
  Status gather_input_ids(const BatchSlotRows& rows,
                          ConstTensorView given_ids,
                          ConstTensorView batch_slots,
                          const BatchSlotTables& tables);

  /// Appends sampled tokens to the outputs of their batch slots and says which outputs end with
  /// them (take_token in sampling/output_record.h). Skips rows with batch_slots[r] < 0.
  ///
  ///   the output has ended:  ends[r] = frozen, nothing else changes
  ///   otherwise:             last_sampled[b] = max(ids[r], 0); ends[r] = ended or none. An id of
  ///                          -1 is not part of an output.
  ///
  /// shapes    ends [R] u8: RowEnd · batch_slots, ids [R] i32, batch_slots distinct · see
  ///           BatchSlotTables
  Status commit_sampled(TensorView ends,
                        const BatchSlotTables& tables,
                        ConstTensorView batch_slots,
                        ConstTensorView ids);

  /// Writes single entries of a table: table[pairs[i,0]] = pairs[i,1].
  ///
  /// shapes    table [n] i32 · pairs [C, 2] i32, 0 <= pairs[i,0] < n; pairs that name the same
  ///           entry have the same value
  Status set_entries(TensorView table, ConstTensorView pairs);

  /// out[t,:] = table[ids[t],:]
  ///
  /// shapes    out [T, H] bf16 · ids [T] i32 in 0..V-1 · table [V, H] bf16
  Status embed(TensorView out, ConstTensorView ids, ConstTensorView table);

  /// out[r,:] = x[rows[r],:]
  ///
  /// shapes    out [R, H] bf16 · x [T, H] bf16 rows · rows [R] i32 in 0..T-1
  Status gather_rows(TensorView out, ConstTensorView x, ConstTensorView rows);

  /// Normalises each row by its root mean square, scales it, and quantises it as its readers need.
  ///
  ///   n[t,:]     = bf16(weight * bf16(x[t,:] / sqrt(mean(x[t,:]^2) + eps)))
  ///   per token: s = max(max|n[t,:]| / 448, 1 / (448 * 512)); quantized[t,:] = e4m3(n[t,:] / s)
  ///   per block: the same over each 128 columns
  ///
  /// shapes    x [T, H] bf16 rows · weight [H] bf16 · out.values, out.quantized [T, H]; out.scales
  ///           [T] or [T, ceil(H/128)]: whichever formats `out` has
  /// numerics  mean and rsqrt in f32, then two roundings to bf16, as the reference does; FP8 values
  ///           come from the rounded n, by a true division
  /// units     eps is added to the mean square (no unit)
  /// source    Glm4MoeRMSNorm in Hugging Face transformers; docs/model.md#rms_norm, #fp8
  Status rms_norm(const Activation& out, ConstTensorView x, ConstTensorView weight, float eps);

  /// residual = bf16(residual + block_output); out = rms_norm(residual)
  ///
  /// shapes    residual [T, H] bf16, changed in place · block_output [T, H] bf16 · the rest as
  ///           rms_norm
  /// source    docs/model.md#one-layer
  Status add_rms_norm(const Activation& out,
                      TensorView residual,
                      ConstTensorView block_output,
                      ConstTensorView weight,
                      float eps);

  /// out = x * weight^T + bias
  ///
  ///   bf16:                 out[t,n] = sum_k x[t,k] * w[n,k] + bias[n]
  ///   fp8 channel, tensor:  out[t,n] = xs[t] * (ws[n] * sum_k xq[t,k] * wq[n,k]) + bias[n]
  ///   fp8 block:            both scales multiply the partial sum of each 128 columns
  ///
  /// shapes    out [T, N] bf16 rows, or f32 rows (the head) · x.* [T, K] · weight [N, K]
  /// numerics  sums in f32, one rounding at the end, none for f32. A row's bits do not depend on
  ///           the other rows; on CUDA they may depend on T unless deterministic
  ///           (docs/kernels/gemm.md)
  /// source    docs/model.md#fp8
  Status linear(TensorView out, const Activation& x, const Linear& weight);

  /// Norms and rotates the heads of q and k, and stores k and v in the cache.
  ///
  ///   q, k:  per head an RMS norm (if weights.q_norm, k_norm are given), then RoPE of the first
  ///          `rotary` dims: dims j and j + rotary/2 by the angle of the token's position
  ///   pages: bf16, or e4m3 with s = max|row| / 448 (1 for a zero row) per token and head
  ///
  /// shapes    positions [T] i32 · slots [T] i64, -1 = store nothing · kv.k, kv.v [N, K, 64, D]
  ///           bf16: q.values [T, Q, D] · qkv.values [T, (Q + 2K) * D] bf16 rows
  ///           FP8:  q.quantized [T, Q, D] e4m3, q.scales [T, Q] f32 ·
  ///                 qkv.quantized [T, (Q + 2K) * D] e4m3 rows, qkv.scales [T] f32
  /// numerics  the norm as rms_norm; RoPE in f32, rounded once to bf16. The FP8 format computes on
  ///           bf16(quantized * scale) and gives q with s = max|q| / 448 per token and head. Pages
  ///           have the same bits in both formats.
  /// errors    invalid_argument also: q and qkv have no format, both, or different ones; qkv has
  ///           block_quantized
  /// source    docs/model.md#attention. The model uses bf16; FP8 is for q, k and v that come
  ///           quantised from a GEMM with FP8 output or from another GPU.
  Status qk_norm_rope_store_kv(const Queries& q,
                               const KvLayer& kv,
                               const Activation& qkv,
                               ConstTensorView positions,
                               ConstTensorView slots,
                               const QkNormRope& weights);

  /// Causal attention: each token row attends to its sequence's cached tokens up to its own
  /// position.
  ///
  ///   query head h reads key/value head h / (Q/K); scale 1/sqrt(D)
  ///
  /// shapes    out.* [T, Q * D] · q [T, Q, D] bf16 · kv as stored, with this step's tokens
  /// numerics  softmax in f32. A row's bits depend on its own sequence, not on the other sequences
  ///           of the batch nor on which pages hold it
  /// source    docs/model.md#attention, docs/kernels/attention.md
  Status attention(const Activation& out,
                   ConstTensorView q,
                   const KvLayer& kv,
                   const Batch& batch,
                   const HeadShape& heads);

  /// out = bf16(bf16(silu(gate)) * up), quantised as its readers need (rms_norm says how).
  ///
  /// shapes    gate_up [T, 2F] bf16: gate in the first F columns, up in the last · out.* [T, F]
  Status silu_mul(const Activation& out, ConstTensorView gate_up);

  /// The router: chooses A of E experts for each token.
  ///
  ///   s       = sigmoid(x * weight^T)
  ///   ids     = the A largest of s + bias, ties to the lower id. With groups > 1 only experts of
  ///             the `groups_kept` best groups; a group scores the sum of its two largest s + bias
  ///   weights = s[ids], / (sum + 1e-20) if normalize, * scale
  ///
  /// shapes    out.ids, out.weights [T, A] · x [T, H] bf16 · weight [E, H] bf16 or f32 ·
  ///           bias [E] f32
  /// numerics  all in f32; a NaN counts as the lowest score
  /// source    docs/model.md#router, docs/kernels/router.md
  Status route(const Routing& out,
               ConstTensorView x,
               ConstTensorView weight,
               ConstTensorView bias,
               const RouterSettings& settings);

  /// The weighted sum of the chosen local experts' outputs, plus the shared expert's.
  ///
  ///   expert(x) = down(silu_mul(gate(x), up(x)))
  ///   y[t]      = bf16(sum_a weights[t,a] * bf16(expert_{ids[t,a]}(x[t]))), over the ids in
  ///               first..first+count-1
  ///   out[t]    = y[t], or bf16(y[t] + bf16(shared(x[t]))) with a shared expert
  ///
  /// shapes    out [T, H] bf16 · x.* [T, H]
  /// numerics  sums over experts in f32, in the order of a; the inner activation is quantised per
  ///           row as `down` needs. A row's bits do not depend on the other rows.
  /// source    docs/model.md#router, docs/kernels/experts.md
  Status experts(TensorView out,
                 const Activation& x,
                 const Routing& routing,
                 const Experts& weights);

  /// Copies whole cache pages of one layer, K and V, scales included: pairs[i] = {from, to}.
  ///
  /// shapes    pairs [C, 2] i32
  Status copy_pages(const KvLayer& kv, ConstTensorView pairs);

  /// Draws the next token of each row and counts it for the penalties.
  ///
  /// shapes    logits [R, V] f32, unchanged · see SamplingBatch, SamplingOutput
  /// source    sampling/sampler.h defines the draw; docs/kernels/sampling.md
  Status sample(const SamplingOutput& out, ConstTensorView logits, const SamplingBatch& batch);

  /// Clears a row of the penalty table, then counts a prompt's and an output's tokens in it.
  ///
  /// shapes    prompt_ids, output_ids [n] i32 · see TokenCounts
  Status reset_counts(const TokenCounts& counts,
                      std::int64_t slot,
                      ConstTensorView prompt_ids,
                      ConstTensorView output_ids);

  /// Counts tokens that another rank sampled, as `sample` counts its own.
  ///
  ///   entries[rows[r].counts_slot, ids[r]] += 1, where neither is negative
  ///
  /// shapes    rows [R, sizeof(SamplingRow)] u8: SamplingRow, with different counts_slots ·
  ///           ids [R] i32 · see TokenCounts
  Status count_sampled(const TokenCounts& counts, ConstTensorView rows, ConstTensorView ids);

  Trace& trace() { return trace_; }

 private:
  virtual Result<Linear> do_place_linear(std::span<const LinearSource> blocks) = 0;
  virtual Result<Experts> do_place_experts(const ExpertsSource& source) = 0;
  virtual Status do_gather_input_ids(const BatchSlotRows& rows,
                                     ConstTensorView given_ids,
                                     ConstTensorView batch_slots,
                                     const BatchSlotTables& tables) = 0;
  virtual Status do_commit_sampled(TensorView ends,
                                   const BatchSlotTables& tables,
                                   ConstTensorView batch_slots,
                                   ConstTensorView ids) = 0;
  virtual Status do_set_entries(TensorView table, ConstTensorView pairs) = 0;
  virtual Status do_embed(TensorView out, ConstTensorView ids, ConstTensorView table) = 0;
  virtual Status do_gather_rows(TensorView out, ConstTensorView x, ConstTensorView rows) = 0;
  virtual Status do_rms_norm(const Activation& out,
                             ConstTensorView x,
                             ConstTensorView weight,
                             float eps) = 0;
  virtual Status do_add_rms_norm(const Activation& out,
                                 TensorView residual,
                                 ConstTensorView block_output,
                                 ConstTensorView weight,
                                 float eps) = 0;
  virtual Status do_linear(TensorView out, const Activation& x, const Linear& weight) = 0;
  virtual Status do_qk_norm_rope_store_kv(const Queries& q,
                                          const KvLayer& kv,
                                          const Activation& qkv,
                                          ConstTensorView positions,
                                          ConstTensorView slots,
                                          const QkNormRope& weights) = 0;
  virtual Status do_attention(const Activation& out,
                              ConstTensorView q,
                              const KvLayer& kv,
                              const Batch& batch,
                              const HeadShape& heads) = 0;
  virtual Status do_silu_mul(const Activation& out, ConstTensorView gate_up) = 0;
  virtual Status do_route(const Routing& out,
                          ConstTensorView x,
                          ConstTensorView weight,
                          ConstTensorView bias,
                          const RouterSettings& settings) = 0;
  virtual Status do_experts(TensorView out,
                            const Activation& x,
                            const Routing& routing,
                            const Experts& weights) = 0;
  virtual Status do_copy_pages(const KvLayer& kv, ConstTensorView pairs) = 0;
  virtual Status do_sample(const SamplingOutput& out,
                           ConstTensorView logits,
                           const SamplingBatch& batch) = 0;
  virtual Status do_reset_counts(const TokenCounts& counts,
                                 std::int64_t slot,
                                 ConstTensorView prompt_ids,
                                 ConstTensorView output_ids) = 0;
  virtual Status do_count_sampled(const TokenCounts& counts,
                                  ConstTensorView rows,
                                  ConstTensorView ids) = 0;

  Trace trace_;
};

}  // namespace koho
