// SPDX-License-Identifier: Apache-2.0
#include "ops/recorded_backend.h"

namespace koho::testing {
namespace {

class RecordedBackend final : public Backend {
 public:
  explicit RecordedBackend(Backend& backend) : backend_(backend) {}

  DeviceId device() const override { return backend_.device(); }
  std::string description() const override { return backend_.description() + ", recorded"; }
  Result<Tensor> allocate(DType dtype, Shape shape, std::string_view purpose) override {
    return backend_.allocate(dtype, shape, purpose);
  }
  Status upload(TensorView destination, std::span<const std::byte> source) override {
    return backend_.upload(destination, source);
  }
  Status download(std::span<std::byte> destination, ConstTensorView source) override {
    return backend_.download(destination, source);
  }
  Status synchronize() override { return backend_.synchronize(); }
  Result<Tensor> allocate_host(std::int64_t bytes) override {
    return backend_.allocate_host(bytes);
  }
  Status enqueue_upload(TensorView destination, std::span<const std::byte> source) override {
    return backend_.enqueue_upload(destination, source);
  }
  Status enqueue_download(std::span<std::byte> destination, ConstTensorView source) override {
    return backend_.enqueue_download(destination, source);
  }
  Result<std::unique_ptr<Mark>> make_mark() override { return backend_.make_mark(); }
  Result<MemoryUse> memory_use() const override { return backend_.memory_use(); }
  bool replays_cheaply() const override { return backend_.replays_cheaply(); }
  Result<std::unique_ptr<Recording>> record(std::function<Status()> operators) override {
    return backend_.record(std::move(operators));
  }
  Result<Tensor> place(ConstTensorView source) override { return backend_.place(source); }
  Status reserve(const StepLimits& limits) override { return backend_.reserve(limits); }

 private:
  /// The recording is gone when the next operator is recorded: all of it has run by then.
  Status replayed(std::function<Status()> operators) {
    KOHO_TRY_ASSIGN(const std::unique_ptr<Recording> recording,
                    backend_.record(std::move(operators)));
    KOHO_TRY(recording->replay());
    return backend_.synchronize();
  }

  Result<Linear> do_place_linear(std::span<const LinearSource> blocks) override {
    return backend_.place_linear(blocks);
  }
  Result<Experts> do_place_experts(const ExpertsSource& source) override {
    return backend_.place_experts(source);
  }
  Status do_take_from_seats(TensorView token_ids,
                            TensorView page_tables,
                            const SeatRows& rows) override {
    return replayed([&] { return backend_.take_from_seats(token_ids, page_tables, rows); });
  }
  Status do_keep_sampled(TensorView last_sampled,
                         ConstTensorView seats,
                         ConstTensorView ids) override {
    return replayed([&] { return backend_.keep_sampled(last_sampled, seats, ids); });
  }
  Status do_set_entries(TensorView table, ConstTensorView pairs) override {
    return replayed([&] { return backend_.set_entries(table, pairs); });
  }
  Status do_embed(TensorView out, ConstTensorView ids, ConstTensorView table) override {
    return replayed([&] { return backend_.embed(out, ids, table); });
  }
  Status do_gather_rows(TensorView out, ConstTensorView x, ConstTensorView rows) override {
    return replayed([&] { return backend_.gather_rows(out, x, rows); });
  }
  Status do_rms_norm(const Activation& out,
                     ConstTensorView x,
                     ConstTensorView weight,
                     float eps) override {
    return replayed([&] { return backend_.rms_norm(out, x, weight, eps); });
  }
  Status do_add_rms_norm(const Activation& out,
                         TensorView residual,
                         ConstTensorView branch,
                         ConstTensorView weight,
                         float eps) override {
    return replayed([&] { return backend_.add_rms_norm(out, residual, branch, weight, eps); });
  }
  Status do_linear(TensorView out, const Activation& x, const Linear& weight) override {
    return replayed([&] { return backend_.linear(out, x, weight); });
  }
  Status do_qk_norm_rope_store_kv(TensorView q,
                                  const KvLayer& kv,
                                  ConstTensorView qkv,
                                  ConstTensorView positions,
                                  ConstTensorView slots,
                                  const QkNormRope& weights) override {
    return replayed(
        [&] { return backend_.qk_norm_rope_store_kv(q, kv, qkv, positions, slots, weights); });
  }
  Status do_attention(const Activation& out,
                      ConstTensorView q,
                      const KvLayer& kv,
                      const Batch& batch,
                      const HeadShape& heads) override {
    return replayed([&] { return backend_.attention(out, q, kv, batch, heads); });
  }
  Status do_silu_mul(const Activation& out, ConstTensorView gate_up) override {
    return replayed([&] { return backend_.silu_mul(out, gate_up); });
  }
  Status do_route(const Routing& out,
                  ConstTensorView x,
                  ConstTensorView weight,
                  ConstTensorView bias,
                  const RouterSettings& settings) override {
    return replayed([&] { return backend_.route(out, x, weight, bias, settings); });
  }
  Status do_experts(TensorView out,
                    const Activation& x,
                    const Routing& routing,
                    const Experts& weights) override {
    return replayed([&] { return backend_.experts(out, x, routing, weights); });
  }
  Status do_copy_pages(const KvLayer& kv, ConstTensorView pairs) override {
    return replayed([&] { return backend_.copy_pages(kv, pairs); });
  }
  Status do_sample(const SamplingOutput& out,
                   ConstTensorView logits,
                   const SamplingBatch& batch) override {
    return replayed([&] { return backend_.sample(out, logits, batch); });
  }
  Status do_reset_counts(TensorView counts,
                         std::int64_t slot,
                         ConstTensorView prompt_ids,
                         ConstTensorView output_ids) override {
    return replayed([&] { return backend_.reset_counts(counts, slot, prompt_ids, output_ids); });
  }

  Backend& backend_;
};

}  // namespace

std::unique_ptr<Backend> make_recorded_backend(Backend& backend) {
  return std::make_unique<RecordedBackend>(backend);
}

}  // namespace koho::testing
