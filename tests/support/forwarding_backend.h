// SPDX-License-Identifier: Apache-2.0
// A backend that hands everything to another one, for tests that put something between.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "ops/backend.h"

namespace koho::testing {

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> real) : real_(std::move(real)) {}

  DeviceId device() const override { return real_->device(); }
  std::string description() const override { return real_->description(); }
  Result<Tensor> allocate(DType dtype, Shape shape, std::string_view purpose) override {
    return real_->allocate(dtype, shape, purpose);
  }
  Status upload(TensorView destination, std::span<const std::byte> source) override {
    return real_->upload(destination, source);
  }
  Status download(std::span<std::byte> destination, ConstTensorView source) override {
    return real_->download(destination, source);
  }
  Status synchronize() override { return real_->synchronize(); }
  Result<Tensor> allocate_host(std::int64_t bytes) override { return real_->allocate_host(bytes); }
  Status enqueue_upload(TensorView destination, std::span<const std::byte> source) override {
    return real_->enqueue_upload(destination, source);
  }
  Status enqueue_download(std::span<std::byte> destination, ConstTensorView source) override {
    return real_->enqueue_download(destination, source);
  }
  Result<std::unique_ptr<Event>> make_event() override { return real_->make_event(); }
  Result<MemoryUse> memory_use() const override { return real_->memory_use(); }
  bool supports_graphs() const override { return real_->supports_graphs(); }
  Result<std::unique_ptr<CapturedGraph>> capture(std::function<Status()> operators) override {
    return real_->capture(std::move(operators));
  }
  Result<Tensor> place(ConstTensorView source) override { return real_->place(source); }
  Status reserve(const StepLimits& limits) override { return real_->reserve(limits); }

 protected:
  Backend& real() { return *real_; }

  /// Does an operator: what every one that is handed on goes through.
  virtual Status run(const std::function<Status()>& operators) { return operators(); }

  Result<Linear> do_place_linear(std::span<const LinearSource> blocks) override {
    return real_->place_linear(blocks);
  }
  Result<Experts> do_place_experts(const ExpertsSource& source) override {
    return real_->place_experts(source);
  }
  Status do_gather_input_ids(const BatchSlotRows& rows,
                             ConstTensorView given_ids,
                             ConstTensorView batch_slots,
                             const BatchSlotTables& tables) override {
    return forward([&] { return real_->gather_input_ids(rows, given_ids, batch_slots, tables); });
  }
  Status do_commit_sampled(TensorView ends,
                           const BatchSlotTables& tables,
                           ConstTensorView batch_slots,
                           ConstTensorView ids) override {
    return forward([&] { return real_->commit_sampled(ends, tables, batch_slots, ids); });
  }
  Status do_set_entries(TensorView table, ConstTensorView pairs) override {
    return forward([&] { return real_->set_entries(table, pairs); });
  }
  Status do_embed(TensorView out, ConstTensorView ids, ConstTensorView table) override {
    return forward([&] { return real_->embed(out, ids, table); });
  }
  Status do_gather_rows(TensorView out, ConstTensorView x, ConstTensorView rows) override {
    return forward([&] { return real_->gather_rows(out, x, rows); });
  }
  Status do_rms_norm(const Activation& out,
                     ConstTensorView x,
                     ConstTensorView weight,
                     float eps) override {
    return forward([&] { return real_->rms_norm(out, x, weight, eps); });
  }
  Status do_add_rms_norm(const Activation& out,
                         TensorView residual,
                         ConstTensorView block_output,
                         ConstTensorView weight,
                         float eps) override {
    return forward([&] { return real_->add_rms_norm(out, residual, block_output, weight, eps); });
  }
  Status do_linear(TensorView out, const Activation& x, const Linear& weight) override {
    return forward([&] { return real_->linear(out, x, weight); });
  }
  Status do_qk_norm_rope_store_kv(const Queries& q,
                                  const KvLayer& kv,
                                  const Activation& qkv,
                                  ConstTensorView positions,
                                  ConstTensorView slots,
                                  const QkNormRope& weights) override {
    return forward(
        [&] { return real_->qk_norm_rope_store_kv(q, kv, qkv, positions, slots, weights); });
  }
  Status do_attention(const Activation& out,
                      ConstTensorView q,
                      const KvLayer& kv,
                      const Batch& batch,
                      const HeadShape& heads) override {
    return forward([&] { return real_->attention(out, q, kv, batch, heads); });
  }
  Status do_silu_mul(const Activation& out, ConstTensorView gate_up) override {
    return forward([&] { return real_->silu_mul(out, gate_up); });
  }
  Status do_route(const Routing& out,
                  ConstTensorView x,
                  ConstTensorView weight,
                  ConstTensorView bias,
                  const RouterSettings& settings) override {
    return forward([&] { return real_->route(out, x, weight, bias, settings); });
  }
  Status do_experts(TensorView out,
                    const Activation& x,
                    const Routing& routing,
                    const Experts& weights) override {
    return forward([&] { return real_->experts(out, x, routing, weights); });
  }
  Status do_copy_pages(const KvLayer& kv, ConstTensorView pairs) override {
    return forward([&] { return real_->copy_pages(kv, pairs); });
  }
  Status do_sample(const SamplingOutput& out,
                   ConstTensorView logits,
                   const SamplingBatch& batch) override {
    return forward([&] { return real_->sample(out, logits, batch); });
  }
  Status do_reset_counts(const TokenCounts& counts,
                         std::int64_t slot,
                         ConstTensorView prompt_ids,
                         ConstTensorView output_ids) override {
    return forward([&] { return real_->reset_counts(counts, slot, prompt_ids, output_ids); });
  }
  Status do_count_sampled(const TokenCounts& counts,
                          ConstTensorView rows,
                          ConstTensorView ids) override {
    return forward([&] { return real_->count_sampled(counts, rows, ids); });
  }

 private:
  template <typename Operators>
  Status forward(Operators operators) {
    return run(std::ref(operators));  // a reference: steps that are counted allocate nothing
  }

  std::unique_ptr<Backend> real_;
};

}  // namespace koho::testing
