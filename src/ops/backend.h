// SPDX-License-Identifier: Apache-2.0
// The operator interface: all that the model sees of a machine. Each public operator checks its
// contract once and opens a trace span, then calls the backend's private virtual, which may rely on
// the contract. Fusions are a backend's own affair under an operator. Dimension letters:
// docs/model.md.
//
// Common to all operators: tensors lie on this backend's device; rows may be strided where "rows"
// is said, else views are packed; outputs do not overlap inputs unless "alias" says so; T may be 0
// (nothing is done). On CUDA an operator only enqueues work, allocates nothing, reads nothing back
// and can be captured in a graph. errors: invalid_argument if a shape, dtype or device differs from
// the contract; device_error. threads: one thread per backend at a time.
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

/// Largest sizes a step may have; a backend sizes its scratch memory from it, once.
struct StepLimits {
  std::int64_t tokens_max = 0;
  std::int64_t sequences_max = 0;
  std::int64_t context_max = 0;  // tokens of one sequence
  std::int64_t logit_rows_max = 0;
  std::int64_t vocabulary = 0;
  // GLM-4.7's, on one rank, unless the model says otherwise.
  std::int64_t experts_per_token = 8;  // that routers choose
  std::int64_t query_heads = 96;       // of attention, on this rank
  std::int64_t kv_heads = 8;
  std::int64_t head_width = 128;
};

/// A point in the order of enqueued work.
class Event {
 public:
  virtual ~Event() = default;
  /// Records the event behind everything enqueued so far.
  virtual Status record() = 0;
  /// Waits until everything before the event is done. Errors: device_error of that work.
  virtual Status wait() = 0;
  /// Whether wait() would return at once, with or without an error.
  virtual bool completed() = 0;
};

/// A captured sequence of operators. Its tensors must outlive it.
class CapturedGraph {
 public:
  virtual ~CapturedGraph() = default;
  /// Enqueues the captured operators once more.
  virtual Status replay() = 0;
};

/// Device memory of a backend.
struct MemoryUse {
  std::int64_t held_bytes = 0;
  std::int64_t free_bytes = 0;                   // that allocate() could still give
  std::int64_t allocations = 0;                  // made so far
  std::map<std::string, std::int64_t> purposes;  // of held_bytes, where a backend counts them
};

/// Weights of qk_norm_rope_store_kv.
struct QkNormRope {
  HeadShape heads;
  ConstTensorView q_norm;      // [D] bf16, or empty: no norm
  ConstTensorView k_norm;      // [D] bf16, or empty
  ConstTensorView rope_table;  // [positions, 2, rotary/2] f32: cosines, then sines
  float eps = 0.0F;
};

/// What is known of tokens met before, for penalties; a row a slot.
struct TokenCounts {
  TensorView entries;  // [slots, V] i32: bit 31 = in the prompt, bits 0..30 = times in the output
  TensorView
      nonzero;  // [slots, race_bitmap_words(V)] i32: whose entry is not 0 (sampling/philox.h)

  bool empty() const { return entries.empty(); }
};

/// Inputs of `sample` beside the logits. R rows.
struct SamplingBatch {
  ConstTensorView rows;    // [R, 64] u8: SamplingRow
  ConstTensorView biases;  // [B, 8] u8: LogitBias; may be empty
  ConstTensorView
      masks;  // [M, ceil(V/32)] i32: bit (id % 32) of word (id / 32) set = allowed; may be empty
  TokenCounts counts;  // may be empty
  std::int64_t tokens =
      0;  // ids >= tokens are never sampled (rows of the matrix beyond the tokenizer)
};

/// Outputs of `sample`.
struct SamplingOutput {
  TensorView ids;       // [R] i32; -1 if no token is allowed or the row's logits hold a NaN
  TensorView logprobs;  // [R] f32: of the chosen token under the unmodified logits; may be empty
  TensorView top_ids;   // [R, kTopLogprobsMax] i32: most likely tokens under the unmodified logits;
                        // may be empty
  TensorView top_logprobs;  // [R, kTopLogprobsMax] f32
};

/// What the ranks remember of their batch slots (plan/step_plan.h), a row a batch slot.
struct BatchSlotTables {
  TensorView pages;         // [batch slots, W] i32: page tables
  TensorView last_sampled;  // [batch slots] i32
  TensorView outputs;       // [batch slots, OutputRecord::kWords] i32
};

/// A step's rows, to be completed from their batch slots.
struct BatchSlotRows {
  TensorView token_ids;        // [T] i32
  TensorView slots;            // [T] i64
  TensorView page_tables;      // [S, W] i32
  TensorView context_lengths;  // [S] i32
};

class Backend {
 public:
  virtual ~Backend() = default;

  // ---- memory
  // -------------------------------------------------------------------------------------------------------

  virtual DeviceId device() const = 0;
  /// "cpu avx512 2 threads", "NVIDIA H200".
  virtual std::string description() const = 0;
  /// Memory on the device; contents unspecified. Only before the first step. Errors:
  /// resource_exhausted with numbers.
  virtual Result<Tensor> allocate(DType dtype, Shape shape, std::string_view purpose) = 0;
  /// Host bytes to the device and back; packed views; both wait until done.
  virtual Status upload(TensorView destination, std::span<const std::byte> source) = 0;
  virtual Status download(std::span<std::byte> destination, ConstTensorView source) = 0;
  /// Waits for everything enqueued.
  virtual Status synchronize() = 0;
  /// Host memory, zeroed, for enqueue_upload and enqueue_download.
  virtual Result<Tensor> allocate_host(std::int64_t bytes) = 0;
  /// As upload and download, but only enqueued. Requires: the host bytes come from allocate_host()
  /// and are left alone until a later event was waited for.
  virtual Status enqueue_upload(TensorView destination, std::span<const std::byte> source) = 0;
  virtual Status enqueue_download(std::span<std::byte> destination, ConstTensorView source) = 0;
  virtual Result<std::unique_ptr<Event>> make_event() = 0;
  virtual Result<MemoryUse> memory_use() const = 0;

  // ---- graphs
  // ----------------------------------------------------------------------------------------------------

  /// Whether replaying costs less than enqueueing anew, so that a worker should pad its batches to
  /// sizes it has captured.
  virtual bool supports_graphs() const = 0;
  /// Captures what `operators` enqueues, without doing it. A backend that supports graphs calls the
  /// function once, now; another one keeps it and calls it at every replay. Requires: the same
  /// operators ran before on arrays of the same shapes. Errors: those of `operators`; device_error.
  virtual Result<std::unique_ptr<CapturedGraph>> capture(std::function<Status()> operators) = 0;

  // ---- weights: once, at load
  // ----------------------------------------------------------------------------------------

  /// Places row blocks that read the same x as one layer. The sources' memory must outlive the
  /// result. Errors: invalid_argument (widths differ), unsupported (a dtype this backend lacks),
  /// resource_exhausted.
  Result<Linear> place_linear(std::span<const LinearSource> blocks);
  Result<Experts> place_experts(const ExpertsSource& source);
  /// A tensor that is read as it is (norms, embedding, router); in place on the CPU.
  virtual Result<Tensor> place(ConstTensorView source) = 0;
  /// Sizes scratch memory, and sets up what the first steps of sizes up to `limits` would have to
  /// otherwise (kernels to load, libraries' algorithms to choose). Requires: all weights are
  /// placed. Errors: resource_exhausted.
  virtual Status reserve(const StepLimits& limits) = 0;

  // ---- operators
  // -----------------------------------------------------------------------------------------------------

  /// What a step's rows take from their batch slots. Rows of a batch slot whose output has ended are frozen:
  /// they store nothing and read no context.
  ///
  ///   rows.token_ids[t] = given_ids[t], or last_sampled[batch slot] if that is -1 - batch slot; then, if the
  ///   batch slot's output has ended, rows.slots[t] = -1
  ///   rows.page_tables[s, i] = pages[batch slots[s], i] for i < ceil(context_lengths[s] / 64), but if
  ///   the batch slot's output has ended, context_lengths[s] = 0
  ///
  /// shapes    given_ids [T] i32 · batch_slots [S] i32 · see BatchSlotRows, BatchSlotTables
  Status gather_input_ids(const BatchSlotRows& rows,
                          ConstTensorView given_ids,
                          ConstTensorView batch_slots,
                          const BatchSlotTables& tables);

  /// Takes sampled tokens into their batch slots' outputs and finds those that end (take_token,
  /// sampling/output_record.h). Rows with batch slots[r] < 0 are passed over.
  ///
  ///   the output has ended:  ends[r] = frozen, and nothing changes
  ///   otherwise              last_sampled[batch slot] = max(ids[r], 0); ends[r] = ended or none; an
  ///                          id of -1 is no part of an output
  ///
  /// shapes    ends [R] u8: RowEnd · batch slots, ids [R] i32, batch slots distinct · see BatchSlotTables
  Status commit_sampled(TensorView ends,
                        const BatchSlotTables& tables,
                        ConstTensorView batch_slots,
                        ConstTensorView ids);

  /// table[pairs[i,0]] = pairs[i,1], a place named twice given one value.
  /// shapes    table [n] i32 · pairs [C, 2] i32, 0 <= pairs[i,0] < n
  Status set_entries(TensorView table, ConstTensorView pairs);

  /// out[t,:] = table[ids[t],:].  shapes: out [T, H] bf16 · ids [T] i32 in 0..V-1 · table [V, H]
  /// bf16
  Status embed(TensorView out, ConstTensorView ids, ConstTensorView table);

  /// out[r,:] = x[rows[r],:].  shapes: out [R, H] bf16 · x [T, H] bf16 · rows [R] i32 in 0..T-1
  Status gather_rows(TensorView out, ConstTensorView x, ConstTensorView rows);

  /// Normalises each row by its root mean square, scales it, and quantises it as its readers need.
  ///
  ///   n[t,:] = bf16(weight * bf16(x[t,:] / sqrt(mean(x[t,:]^2) + eps)))
  ///   per_token: s = max(max|n[t,:]| / 448, 1 / (448 * 512)), quantized = e4m3(n / s), a true division
  ///   per_block: the same over each 128 columns
  ///
  /// shapes    x [T, H] bf16 rows · weight [H] bf16 · out.values, quantized [T, H] …
  /// numerics  mean and rsqrt in f32, two roundings to bf16 as the reference; quantized from the
  /// rounded n source    Glm4MoeRMSNorm in Hugging Face transformers; model-spec 3.2, 4.1
  Status rms_norm(const Activation& out, ConstTensorView x, ConstTensorView weight, float eps);

  /// residual = bf16(residual + block_output), then rms_norm of the new residual.
  /// shapes    residual [T, H] bf16, changed in place · block_output [T, H] bf16 · the rest as rms_norm
  Status add_rms_norm(const Activation& out,
                      TensorView residual,
                      ConstTensorView block_output,
                      ConstTensorView weight,
                      float eps);

  /// out = x * weight^T + bias.
  ///
  ///   fp8 channel/tensor: out[t,n] = round(x_scale[t] * (w_scale[n] * sum_k x_quantized[t,k] *
  ///   w_quantized[n,k]) + bias[n]) fp8 block: the scales are applied to the partial sum of each 128
  ///   columns
  ///
  /// shapes    out [T, N] bf16 rows, or f32 rows (then unrounded: the head) · x.* [T, K]
  /// numerics  accumulates in f32; one rounding; a row's bits do not depend on T nor on other rows
  /// source    model-spec 4.2, 4.4
  Status linear(TensorView out, const Activation& x, const Linear& weight);

  /// Norms and rotates the heads of q and k, and stores k and v in the cache.
  ///
  ///   q, k: per head bf16 RMS norm (if weights are given), then dims j and j + rotary/2 of the
  ///   first `rotary` dims are rotated by the angle of the token's position, in f32, rounded once
  ///   to bf16
  ///   qkv.quantized: the above of bf16(quantized * scale); q.quantized = e4m3(q / s), s = max|q| / 448 (1 for a
  ///   zero row) per token and head, so that an attention over e4m3 pages can take q's scale into
  ///   its own as it takes k's. Pages have the same bits whichever form holds the same values.
  ///
  /// Codes are for a qkv that arrives as FP8 (a matrix with FP8 output, heads exchanged between
  /// GPUs) with an attention that multiplies FP8 queries. The model has neither: its linear layers
  /// give bf16, `attention` reads q.values, and its q would lose as much as a cache of quantised values does.
  ///
  /// shapes    positions [T] i32 · slots [T] i64 (-1 = store nothing)
  ///           either q.values [T, Q, D] bf16 · qkv.values [T, (Q + 2K) * D] bf16 rows
  ///           or q.quantized [T, Q, D] e4m3, q.scales [T, Q] f32 · qkv.quantized [T, (Q + 2K) * D] e4m3
  ///           rows, qkv.scales [T] f32
  ///           kv.k, kv.v [N, K, 64, D]; e4m3 pages: s = max|row| / 448 (1 for a zero row) per
  ///           token and head; bf16 or e4m3 with either form
  /// errors    invalid_argument also for no form, for two, for q's not being qkv's, and for
  ///           qkv.block_quantized
  /// source    model-spec 3.3; docs/decisions (RoPE in f32)
  Status qk_norm_rope_store_kv(const Queries& q,
                               const KvLayer& kv,
                               const Activation& qkv,
                               ConstTensorView positions,
                               ConstTensorView slots,
                               const QkNormRope& weights);

  /// Causal attention of every token row over its sequence's cached tokens up to its own position.
  ///
  ///   query head h reads kv head h / (Q/K); scale 1/sqrt(D); softmax in f32
  ///
  /// shapes    out.* [T, Q*D] · q [T, Q, D] bf16 · kv as stored, this step's tokens included
  /// numerics  a row's bits depend on its own sequence only, not on its neighbours, on chunking, or
  /// on the pages' numbers
  Status attention(const Activation& out,
                   ConstTensorView q,
                   const KvLayer& kv,
                   const Batch& batch,
                   const HeadShape& heads);

  /// out = bf16(bf16(silu(gate)) * up), quantised as needed.
  /// shapes    gate_up [T, 2F] bf16: gate in the first F columns, up in the last · out.* [T, F]
  Status silu_mul(const Activation& out, ConstTensorView gate_up);

  /// Chooses A of E experts for each token.
  ///
  ///   s = sigmoid(x * weight^T) in f32; the A largest s + bias are chosen, group by group if
  ///   groups > 1 (a group's score is the sum of its two largest s + bias; no expert of the
  ///   others is chosen);
  ///   weights = s of the chosen, / (sum + 1e-20) if normalize, * scale. A NaN score counts as the
  ///   lowest.
  ///
  /// shapes    out.ids, weights [T, A] · x [T, H] bf16 · weight [E, H] bf16 or f32 · bias [E] f32
  /// source    model-spec 3.5
  Status route(const Routing& out,
               ConstTensorView x,
               ConstTensorView weight,
               ConstTensorView bias,
               const RouterSettings& settings);

  /// The sum of the chosen local experts' outputs, weighted, and of the shared expert's.
  ///
  ///   y[t] = bf16(sum_a weights[t,a] * bf16(expert_a(x[t])))  over chosen experts in
  ///   first..first+count-1, in order a, accumulated in f32; out[t] = shared ? bf16(y[t] +
  ///   bf16(shared(x[t]))) : y[t] an expert is down(silu_mul(gate, up)), its inner activation
  ///   quantised per row as `down` needs
  ///
  /// shapes    out [T, H] bf16 · x.* [T, H]
  Status experts(TensorView out,
                 const Activation& x,
                 const Routing& routing,
                 const Experts& weights);

  /// Copies whole cache pages: pairs[i] = {from, to}.  shapes: pairs [C, 2] i32
  Status copy_pages(const KvLayer& kv, ConstTensorView pairs);

  /// Draws the next token of each row (definition: sampling/sampler.h) and counts it for the
  /// penalties. shapes    logits [R, V] f32, unchanged · see SamplingBatch, SamplingOutput
  Status sample(const SamplingOutput& out, ConstTensorView logits, const SamplingBatch& batch);

  /// Counts a prompt's and an output's tokens in a row of the penalty table, after clearing it.
  /// shapes    see TokenCounts · ids [n] i32
  Status reset_counts(const TokenCounts& counts,
                      std::int64_t slot,
                      ConstTensorView prompt_ids,
                      ConstTensorView output_ids);

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

  Trace trace_;
};

}  // namespace koho
