// SPDX-License-Identifier: Apache-2.0
// The CPU backend's class. Its operators are defined by theme: rows.cpp (embedding, norms,
// activations, pages, sampling), linear.cpp (linear, router), experts.cpp, attention.cpp;
// cpu_backend.cpp owns memory and placement.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/arithmetic.h"
#include "cpu/cpu_backend.h"
#include "cpu/experts.h"
#include "cpu/kernels.h"
#include "cpu/placed.h"
#include "cpu/scratch.h"
#include "cpu/thread_pool.h"
#include "sampling/output_record.h"
#include "sampling/sampler.h"

namespace koho::cpu {

/// Tokens that linear and experts stage at once. They cut more tokens into slices, which bounds
/// scratch memory.
inline constexpr std::int64_t kSliceTokens = kTokensMax;

/// The format of an activation that a matrix reads.
struct Form {
  Format format = Format::bf16;
  bool block_scales = false;
  friend bool operator==(const Form&, const Form&) = default;
};
inline Form form_of(const Matrix& matrix) {
  return {matrix.format(), matrix.block_scales()};
}

/// Tokens laid out for a kernel's multiply().
struct Staged {
  Form form;
  std::int64_t tokens = 0;
  std::int64_t columns = 0;
  std::byte* panels = nullptr;  // ceil(tokens / 16) panels
  std::int64_t panel_bytes = 0;
  float* scales = nullptr;  // [T]; [T, ceil(K/128)] for block scales; unused for bf16
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Kernels& kernels, int threads);

  DeviceId device() const override { return {}; }
  std::string description() const override;
  Result<Tensor> allocate(DType dtype, Shape shape, std::string_view purpose) override;
  Status upload(TensorView destination, std::span<const std::byte> source) override;
  Status download(std::span<std::byte> destination, ConstTensorView source) override;
  Status synchronize() override { return {}; }
  Result<Tensor> allocate_host(std::int64_t bytes) override;
  Status enqueue_upload(TensorView destination, std::span<const std::byte> source) override {
    return upload(destination, source);
  }
  Status enqueue_download(std::span<std::byte> destination, ConstTensorView source) override {
    return download(destination, source);
  }
  Result<std::unique_ptr<Event>> make_event() override;
  Result<MemoryUse> memory_use() const override;
  bool supports_graphs() const override { return false; }
  Result<std::unique_ptr<CapturedGraph>> capture(std::function<Status()> operators) override;
  Result<Tensor> place(ConstTensorView source) override;
  Status reserve(const StepLimits& limits) override;

 private:
  friend class ExpertsSlice;

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

  // ---- shared by the operators

  /// Calls body(row, worker) for rows 0..rows-1, a few rows a task.
  template <typename Body>
  void for_rows(std::int64_t rows, const Body& body) {
    constexpr std::int64_t kRowsPerTask = 4;
    pool_.run(ceil_div(rows, kRowsPerTask), [&](std::int64_t task, int worker) {
      const std::int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
      for (std::int64_t row = task * kRowsPerTask; row < end; ++row) body(row, worker);
    });
  }

  /// Fills every format of row `row` of `out` from its bf16 values, which may already lie there.
  void write_activation(const Activation& out, std::int64_t row, const BFloat16* values);

  /// Lays out tokens of `x` in `staged`, panel by panel, as its fields say. `rows` lists the token
  /// rows; null means first, first + 1, ….
  void stage(const Staged& staged,
             const Activation& x,
             const std::int32_t* rows,
             std::int64_t first);
  void stage_panel(const Staged& staged,
                   const Activation& x,
                   const std::int32_t* rows,
                   std::int64_t first,
                   std::int64_t panel);
  /// A chunk's rows times staged tokens, into out [T, …], which begins at the chunk's columns.
  /// `next` is what this thread probably reads after them.
  void multiply(const RowChunk& chunk,
                const std::byte* next,
                const Staged& staged,
                TensorView out,
                int worker);

  /// This thread's memory, planned by reserve() and grown by ensure_worker_scratch().
  Status ensure_worker_scratch(std::int64_t columns);
  std::byte* worker_memory(int worker) const;
  BFloat16* row_scratch(int worker) const {
    return reinterpret_cast<BFloat16*>(worker_memory(worker) + row_offset_);
  }
  float* sums_scratch(int worker) const {
    return reinterpret_cast<float*>(worker_memory(worker) + sums_offset_);
  }
  std::byte* kernel_scratch(int worker) const { return worker_memory(worker) + kernel_offset_; }

  const Kernels& kernels_;
  ThreadPool pool_;
  Scratch scratch_;         // the operator's
  Scratch worker_scratch_;  // the threads'
  std::int64_t worker_bytes_ = 0;
  std::int64_t row_offset_ = 0;  // within a thread's share
  std::int64_t sums_offset_ = 0;
  std::int64_t kernel_offset_ = 0;
  std::int64_t worker_columns_ = 0;
  std::int64_t columns_max_ = 0;      // widest row of any placed weight
  ExpertWidths expert_widths_;        // that suffice for all placed experts
  std::int64_t allocated_bytes_ = 0;  // by allocate(), so far
  std::int64_t allocations_ = 0;      // calls of allocate() so far
  std::vector<Sampler> samplers_;     // one a thread
  std::vector<SamplerOutput> samples_;
};

}  // namespace koho::cpu
