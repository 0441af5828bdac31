// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: operators as kernel launches on one stream. An operator only enqueues;
// reserve() sizes the scratch memory that operators share. The members are implemented by subject:
// backend.cpp (start, small operators), enqueue.cpp (copies, events, graphs), gemm/linear.cpp,
// moe/experts.cpp, attention/attention.cpp, load/place_weights.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cuda/cuda_backend.h"
#include "cuda/device/runtime.h"
#include "cuda/gemm/cublaslt_gemm.h"
#include "cuda/gemm/gemm.h"
#include "cuda/kernels.h"
#include "cuda/load/loader.h"
#include "cuda/load/placed_weights.h"
#include "cuda/load/tiled_scales.h"

namespace koho::cuda {

constexpr std::int64_t kScratchAlignment = 256;        // of each tensor in scratch memory
constexpr std::int64_t kUpcastBytesMax = 256LL << 20;  // of e4m3 pages upcast at a time

/// Where this backend's communicator enqueues and allocates.
struct BackendPlace {
  int device = 0;
  cudaStream_t stream = nullptr;
  std::shared_ptr<DeviceMemory> memory;
  std::optional<bool> deterministic;  // CudaOptions::deterministic
};

struct AttentionPath;  // of one call, in attention.cpp
// Of one call of an expert layer, in moe/experts.cpp.
struct GroupCall;
struct GroupKernels;
struct GroupRows;
struct GroupScratch;

/// Whether there are kernels for all that steps will ask for, before any runs. Errors: unsupported.
Status check_limits(const StepLimits& limits);

class CudaBackend final : public Backend {
 public:
  static Result<std::unique_ptr<Backend>> open(const CudaOptions& options);
  ~CudaBackend() override;

  DeviceId device() const override { return device_id_; }
  /// The GPU's name, and what this backend would use there but was found wrong or missing.
  std::string description() const override;
  Result<Tensor> allocate(DType dtype, Shape shape, std::string_view purpose) override;
  Status upload(TensorView destination, std::span<const std::byte> source) override;
  Status download(std::span<std::byte> destination, ConstTensorView source) override;
  Status synchronize() override;
  Result<Tensor> allocate_host(std::int64_t bytes) override;
  Status enqueue_upload(TensorView destination, std::span<const std::byte> source) override;
  Status enqueue_download(std::span<std::byte> destination, ConstTensorView source) override;
  Result<std::unique_ptr<Event>> make_event() override;
  Result<MemoryUse> memory_use() const override;
  bool supports_graphs() const override { return true; }
  Result<std::unique_ptr<CapturedGraph>> capture(std::function<Status()> operators) override;
  Result<Tensor> place(ConstTensorView source) override;
  Status reserve(const StepLimits& limits) override;
  BackendPlace place_of() const {
    return {options_.device, stream_, memory_, options_.deterministic};
  }

 private:
  friend class SelfTest;

  CudaBackend(DeviceInfo device, const CudaOptions& options);
  Status start();
  /// Self-tests the kernels that this GPU is to run and sets which of them may be used.
  Status test_kernels();
  /// Opens cuBLASLt in the first mode that this GPU has and that passes the self-test. cublaslt_
  /// stays null if there is none.
  Status open_cublaslt();

  Result<Linear> do_place_linear(std::span<const LinearSource> blocks) override;
  Result<Experts> do_place_experts(const ExpertsSource& source) override;
  Status do_gather_input_ids(const BatchSlotRows& rows,
                             ConstTensorView given_ids,
                             ConstTensorView batch_slots,
                             const BatchSlotTables& tables) override;
  Status do_commit_sampled(TensorView ends,
                           const BatchSlotTables& tables,
                           ConstTensorView batch_slots,
                           ConstTensorView ids) override;
  Status do_set_entries(TensorView table, ConstTensorView pairs) override;
  Status do_embed(TensorView out, ConstTensorView ids, ConstTensorView table) override;
  Status do_gather_rows(TensorView out, ConstTensorView x, ConstTensorView rows) override;
  Status do_rms_norm(const Activation& out,
                     ConstTensorView x,
                     ConstTensorView weight,
                     float eps) override;
  Status do_add_rms_norm(const Activation& out,
                         TensorView residual,
                         ConstTensorView block_output,
                         ConstTensorView weight,
                         float eps) override;
  Status do_linear(TensorView out, const Activation& x, const Linear& weight) override;
  Status do_qk_norm_rope_store_kv(const Queries& q,
                                  const KvLayer& kv,
                                  const Activation& qkv,
                                  ConstTensorView positions,
                                  ConstTensorView slots,
                                  const QkNormRope& weights) override;
  Status do_attention(const Activation& out,
                      ConstTensorView q,
                      const KvLayer& kv,
                      const Batch& batch,
                      const HeadShape& heads) override;
  Status do_silu_mul(const Activation& out, ConstTensorView gate_up) override;
  Status do_route(const Routing& out,
                  ConstTensorView x,
                  ConstTensorView weight,
                  ConstTensorView bias,
                  const RouterSettings& settings) override;
  Status do_experts(TensorView out,
                    const Activation& x,
                    const Routing& routing,
                    const Experts& weights) override;
  Status do_copy_pages(const KvLayer& kv, ConstTensorView pairs) override;
  Status do_sample(const SamplingOutput& out,
                   ConstTensorView logits,
                   const SamplingBatch& batch) override;
  Status do_reset_counts(const TokenCounts& counts,
                         std::int64_t slot,
                         ConstTensorView prompt_ids,
                         ConstTensorView output_ids) override;
  Status do_count_sampled(const TokenCounts& counts,
                          ConstTensorView rows,
                          ConstTensorView ids) override;

  // ---- attention.cpp
  Attention attention_of(ConstTensorView q,
                         const KvLayer& kv,
                         const Batch& batch,
                         const HeadShape& heads) const;
  /// Assigns scratch memory to the intermediate tensors; `out` receives rows that need none.
  Status give_memory(Attention& attention, const AttentionPath& way, Bf16* out);

  // ---- place_weights.cpp
  cudaError_t draw(void* out, const ConstTensorView& view, const SyntheticAddressMap::Place& place);
  /// The device copy of a view of host memory; strided rows are packed. Staging memory: valid until
  /// the next call.
  Result<const std::uint8_t*> stage(const ConstTensorView& view);
  /// Device memory with a copy of `bytes`, which may go when this returns.
  Result<DeviceBlock> to_device(std::span<const std::byte> bytes, std::string_view purpose);
  /// `count` weights, all of one size but the last.
  Result<TiledWeights> make_tiles(TileType type,
                                  bool interleaved,
                                  std::int64_t count,
                                  const MatrixSize& each,
                                  const MatrixSize& last);
  Status put_rows(const TiledWeights& matrix,
                  const RowDestination& place,
                  const LinearSource& source);
  Status put_scales(TiledWeights& matrix, const TiledScales& scales);
  /// Hands a large matrix to the loader; false: it is too small.
  Result<bool> enqueue_large(const ConstTensorView& source,
                             const Repack& repack,
                             std::uint8_t* copy);
  /// Waits for what the loader has. Whatever reads placed weights begins with it.
  Status finish_loading();
  /// `twice`: row-major, too, where cuBLASLt takes the layer.
  Result<Linear> place_linear(std::span<const LinearSource> blocks, bool twice);
  Result<LinearSegment> place_segment(std::span<const LinearSource> blocks, bool twice);
  Result<ExpertGroup> place_group(std::span<const MlpSource* const> experts);
  Result<TiledWeights> place_gate_up(std::span<const MlpSource* const> experts);
  Result<TiledWeights> place_down(std::span<const MlpSource* const> experts);

  // ---- linear_experts.cpp
  Result<LinearExpert> place_linear_expert(const MlpSource& source);
  /// out = down(inner), inner = silu_mul(gate_up), gate_up = gate_up(x).
  Status run_linear_expert(TensorView out,
                           const Activation& x,
                           const LinearExpert& expert,
                           TensorView gate_up,
                           const Activation& inner);
  Status reserve_mixed_format(MixedFormatExperts& mixed_format, std::int64_t hidden);
  Status run_mixed_format(TensorView out,
                          const Activation& x,
                          const Routing& routing,
                          const Experts& weights);

  // ---- linear.cpp
  /// Returns at least `bytes` of scratch memory. It grows if reserve() did not foresee them, which
  /// fails while a captured graph is alive.
  Result<std::byte*> scratch(std::int64_t bytes);
  Status run_grouped_decode_gemm(const Gemm& parameters);
  Status run_decode_gemm(const Gemm& parameters);
  /// x has `rows` rows; token blocks have up to `columns` tokens.
  Status run_prefill_gemm(const Gemm& parameters,
                          std::int64_t rows,
                          int columns,
                          int multiprocessors);
  /// False: cuBLASLt does not take this GEMM.
  Result<bool> multiply_with_cublaslt(const Gemm& parameters, const LinearSegment& segment);
  Status multiply_segment(TensorView out, const Activation& x, const LinearSegment& segment);
  /// Copies the rows of x to scratch memory, where kernels can copy them 16 bytes at a time.
  Status pad_rows(Gemm& parameters, std::int64_t rows, std::int64_t width_bytes);

  // ---- experts.cpp
  /// The same, if they need it, at `scratch_at`, which it advances.
  Status align_rows(Activation& x, const TiledWeights& matrix, std::byte*& scratch_at);
  /// The kernels that are faster for such a call on this GPU.
  GroupKernels choose_group_kernels(const GroupCall& call) const;
  /// Permutes the token-expert pairs and lists the token blocks.
  Status permute_group(const GroupCall& call,
                       const GroupKernels& kernels,
                       const GroupScratch& scratch);
  /// Gathers the token rows in permuted order and lets `p` read them there.
  Status gather_group(const GroupCall& call, const GroupScratch& scratch, Gemm& p);
  Status run_group_gemm(const Gemm& p, const GroupCall& call, const GroupKernels& kernels);
  Status multiply_gate_up(const GroupCall& call,
                          const GroupKernels& kernels,
                          const GroupScratch& scratch);
  Status multiply_down(const GroupCall& call,
                       const GroupKernels& kernels,
                       const GroupScratch& scratch);
  /// Whether a group of `count` experts like `expert` takes a `shared` one that is narrower.
  bool takes_narrow(const MlpSource& expert, const MlpSource& shared, std::int64_t count) const;
  Status multiply_narrow(const GroupCall& call, const GroupScratch& scratch);
  Result<GroupRows> run_group(const GroupCall& call, std::byte*& scratch_at);

  /// Makes this GPU the calling thread's current one; the caller may be a new thread, or one that
  /// uses several GPUs. Every operator calls it before it enqueues anything.
  Status bind() const;
  /// Whether this GPU has Hopper's instructions and they are wanted.
  bool has_wgmma() const { return device_.hopper() && !options_.portable_only; }

  DeviceInfo device_;
  DeviceId device_id_;
  CudaOptions options_;
  bool wgmma_ = false;             // Hopper's GEMM kernels may be used
  bool wgmma_attention_ = false;   // and its prefill attention
  bool prefill_portable_ = false;  // where those do not run, the portable prefill GEMM may be used
  std::shared_ptr<DeviceMemory> memory_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<CublasLtGemm> cublaslt_;  // null: only our own kernels
  std::shared_ptr<std::int64_t> graphs_alive_ = std::make_shared<std::int64_t>(0);
  DeviceBlock staging_;
  std::unique_ptr<Loader> loader_;  // until reserve()
  bool loading_ = false;            // the loader may have something left to do
  DeviceBlock scratch_;
  bool reserved_ = false;  // and large enough
  bool kernels_loaded_ = false;
  TileOrderCache tile_orders_;  // of a prompt's attention
  DeviceBlock tile_counters_;   // of a prompt's attention on wgmma: two zeros between kernels
  std::int64_t chunk_tokens_ = kAttentionChunkTokens;  // of decode attention
  std::int64_t expert_row_bytes_ = 0;  // scratch of one permuted row of an expert layer, at most
};

}  // namespace koho::cuda
