// SPDX-License-Identifier: Apache-2.0
// The CPU backend's memory, events, graphs and placement of weights.
#include <algorithm>
#include <cstring>
#include <unistd.h>
#include <utility>

#include "base/arithmetic.h"
#include "base/processors.h"
#include "cpu/cpu_backend_impl.h"
#include "cpu/experts.h"

namespace koho {
namespace cpu {
namespace {

constexpr int kThreadsMax = 1024;

const Kernels* kernels_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::scalar:
      return &scalar_kernels();
    case CpuIsa::avx2:
      return avx2_kernels();
    case CpuIsa::avx512:
      return avx512_kernels();
    case CpuIsa::avx512_bf16:
      return avx512_bf16_kernels();
    case CpuIsa::amx:
      return amx_kernels();
    case CpuIsa::automatic:
      break;
  }
  return kernels_of(supported_cpu_isas().back());
}

/// Operators run when they are called, so every event has completed.
class CompletedEvent final : public Event {
 public:
  Status record() override { return {}; }
  Status wait() override { return {}; }
  bool completed() override { return true; }
};

/// A captured graph: keeps the function and calls it at every replay.
class UncapturedOperators final : public CapturedGraph {
 public:
  explicit UncapturedOperators(std::function<Status()> operators)
      : operators_(std::move(operators)) {}
  Status replay() override { return operators_(); }

 private:
  std::function<Status()> operators_;
};

/// A Tensor that does not own its memory.
Tensor borrowed(ConstTensorView view) {
  return {const_cast<std::byte*>(view.data), [](std::byte*) {}, view.dtype, view.shape,
          view.device};
}

}  // namespace

CpuBackend::CpuBackend(const Kernels& kernels, int threads) : kernels_(kernels), pool_(threads) {}

std::string CpuBackend::description() const {
  return fmt::format("cpu {} {} thread{}", kernels_.name, pool_.threads(),
                     pool_.threads() == 1 ? "" : "s");
}

Result<Tensor> CpuBackend::allocate(DType dtype, Shape shape, std::string_view purpose) {
  Result<Tensor> tensor = Tensor::host(dtype, shape);
  if (!tensor.ok()) return std::move(tensor).error().with_context(purpose);
  allocated_bytes_ += tensor->view().bytes();
  ++allocations_;
  return tensor;
}

Result<Tensor> CpuBackend::allocate_host(std::int64_t bytes) {
  return Tensor::host(DType::u8, {bytes});
}

Result<std::unique_ptr<Event>> CpuBackend::make_event() {
  return std::unique_ptr<Event>(std::make_unique<CompletedEvent>());
}

Result<std::unique_ptr<CapturedGraph>> CpuBackend::capture(std::function<Status()> operators) {
  return std::unique_ptr<CapturedGraph>(
      std::make_unique<UncapturedOperators>(std::move(operators)));
}

Result<MemoryUse> CpuBackend::memory_use() const {
  return MemoryUse{.held_bytes = allocated_bytes_ + scratch_.bytes() + worker_scratch_.bytes(),
                   .free_bytes = static_cast<std::int64_t>(sysconf(_SC_AVPHYS_PAGES)) *
                                 static_cast<std::int64_t>(sysconf(_SC_PAGESIZE)),
                   .allocations = allocations_,
                   .purposes = {}};
}

Status CpuBackend::upload(TensorView destination, std::span<const std::byte> source) {
  if (!destination.packed() || static_cast<std::size_t>(destination.bytes()) != source.size())
    return make_error(ErrorCode::invalid_argument, "upload: {} bytes into {}", source.size(),
                      describe(destination));
  if (!source.empty()) std::memcpy(destination.data, source.data(), source.size());
  return {};
}

Status CpuBackend::download(std::span<std::byte> destination, ConstTensorView source) {
  if (!source.packed() || static_cast<std::size_t>(source.bytes()) != destination.size())
    return make_error(ErrorCode::invalid_argument, "download: {} into {} bytes", describe(source),
                      destination.size());
  if (!destination.empty()) std::memcpy(destination.data(), source.data, destination.size());
  return {};
}

Result<Tensor> CpuBackend::place(ConstTensorView source) {
  if (!source.packed())
    return make_error(ErrorCode::invalid_argument, "place: expected a packed tensor, found {}",
                      describe(source));
  if (source.shape.rank() > 0)
    columns_max_ = std::max(columns_max_, source.size(source.shape.rank() - 1));
  return borrowed(source);
}

Result<Linear> CpuBackend::do_place_linear(std::span<const LinearSource> blocks) {
  Linear linear;
  linear.in_features = blocks[0].in_features();
  for (const LinearSource& block : blocks) {
    linear.out_features += block.out_features();
    linear.needs = linear.needs | activation_needs(block.quant);
  }
  columns_max_ = std::max({columns_max_, linear.in_features, linear.out_features});
  linear.placed = std::make_unique<PlacedLinear>(blocks);
  return linear;
}

Result<Experts> CpuBackend::do_place_experts(const ExpertsSource& source) {
  Experts experts;
  experts.first = source.first;
  experts.count = static_cast<std::int64_t>(source.experts.size());
  const auto visit = [&](const MlpSource& mlp) {
    experts.hidden = mlp.gate.in_features();
    experts.needs =
        experts.needs | activation_needs(mlp.gate.quant) | activation_needs(mlp.up.quant);
  };
  if (!source.experts.empty()) experts.ffn = source.experts[0].gate.out_features();
  for (const MlpSource& mlp : source.experts) visit(mlp);
  if (source.shared) {
    visit(*source.shared);
    experts.shared_ffn = source.shared->gate.out_features();
  }
  auto placed = std::make_unique<PlacedExperts>(source);
  columns_max_ = std::max({columns_max_, experts.hidden, experts.ffn, experts.shared_ffn});
  expert_widths_.cover({kernels_, *placed, experts.hidden});
  experts.placed = std::move(placed);
  return experts;
}

Status CpuBackend::reserve(const StepLimits& limits) {
  const std::int64_t slice = std::min(limits.tokens_max, kSliceTokens);
  ScratchPlan linear;
  linear.add<std::byte>(ceil_div(slice, kPanelTokens) *
                        std::max(kernels_.panel_bytes(Format::e4m3, columns_max_),
                                 kernels_.panel_bytes(Format::bf16, columns_max_)));
  linear.add<float>(slice * ceil_div(columns_max_, kScaleBlock));
  ScratchPlan attention;
  attention.add<std::byte>(limits.tokens_max * (columns_max_ * 2 + 64));
  const std::int64_t experts =
      experts_scratch_bytes(expert_widths_, slice, limits.experts_per_token);
  KOHO_TRY(scratch_.ensure(std::max({linear.bytes(), attention.bytes(), experts})));
  return ensure_worker_scratch(columns_max_);
}

Status CpuBackend::ensure_worker_scratch(std::int64_t columns) {
  if (columns <= worker_columns_) return {};
  ScratchPlan plan;
  // A panel of an expert's inner rows: bf16 values, quantised values, scales.
  row_offset_ = plan.add<std::byte>(kPanelTokens * (4 * columns + 128));
  sums_offset_ = plan.add<float>(kSliceTokens * kRowsMax);
  kernel_offset_ = plan.add<std::byte>(
      std::max(kernels_.multiply_scratch_bytes(columns), kernels_.attend_scratch_bytes(columns)));
  KOHO_TRY(worker_scratch_.ensure(plan.bytes() * pool_.threads()));
  worker_bytes_ = plan.bytes();
  worker_columns_ = columns;
  return {};
}

std::byte* CpuBackend::worker_memory(int worker) const {
  return worker_scratch_.at<std::byte>(worker * worker_bytes_);
}

}  // namespace cpu

std::vector<CpuIsa> supported_cpu_isas() {
  std::vector<CpuIsa> isas{CpuIsa::scalar};
  if (cpu::avx2_kernels() != nullptr) isas.push_back(CpuIsa::avx2);
  if (cpu::avx512_kernels() != nullptr) isas.push_back(CpuIsa::avx512);
  if (cpu::avx512_bf16_kernels() != nullptr) isas.push_back(CpuIsa::avx512_bf16);
  if (cpu::amx_kernels() != nullptr) isas.push_back(CpuIsa::amx);
  return isas;
}

Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options) {
  if (options.threads < 0 || options.threads > cpu::kThreadsMax)
    return make_error(ErrorCode::invalid_argument,
                      "threads must be 1..{}, or 0 for one a core; found {}", cpu::kThreadsMax,
                      options.threads);
  const int threads = options.threads > 0 ? options.threads : available_processors();
  const cpu::Kernels* kernels = cpu::kernels_of(options.isa);
  if (kernels == nullptr)
    return make_error(ErrorCode::unsupported,
                      "this machine (or this build) lacks the instruction set asked for; leave it "
                      "to choose its best");
  return std::unique_ptr<Backend>(std::make_unique<cpu::CpuBackend>(*kernels, threads));
}

}  // namespace koho
