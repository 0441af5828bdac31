// SPDX-License-Identifier: Apache-2.0
#include "model/synthetic.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <sys/mman.h>
#include <thread>

#include "base/arithmetic.h"
#include "base/check.h"
#include "base/host_memory.h"
#include "tensor/synthetic_values.h"

namespace koho {
namespace {

constexpr std::int64_t kAlignment = 64;
/// E4M3 values with deviation 129, the largest at 448: a channel scaled to its largest weight.
constexpr float kQuantizedFactor = 7.0F / 2048.0F;

float value_of(const SyntheticTensor& tensor, std::int32_t bell) {
  return tensor.offset + tensor.factor * static_cast<float>(bell);
}

/// Describes each row of the table and asks for its memory.
class Describer final : public WeightSupplier {
 public:
  Describer(const ModelConfig& config, std::uint64_t seed, SyntheticAllocator& memory)
      : seed_(seed),
        memory_(memory),
        residual_factor_(1.0F / std::sqrt(2.0F * static_cast<float>(config.num_hidden_layers))) {
    if (config.quantization && !config.quantization->schemes.empty())
      quant_ = config.quantization->schemes[0];
  }

  ConstTensorView tensor(const ExpectedWeight& row) override {
    switch (row.role) {
      case WeightRole::vector:  // norms: about 1
        return place(row.name, DType::bf16, row.shape, 0.1F, 1.0F);
      case WeightRole::embedding:
        return place(row.name, DType::bf16, row.shape, 1.0F, 0.0F);
      case WeightRole::correction_bias:
        return place(row.name, DType::f32, row.shape, 0.01F, 0.0F);
      default:
        return place(row.name, DType::bf16, row.shape, deviation(row), 0.0F);
    }
  }

  LinearSource linear(const ExpectedWeight& row) override {
    LinearSource source;
    const std::string module = row.name.substr(0, row.name.rfind('.'));
    source.quant = module == "lm_head" ? WeightQuant::none : quant_;
    if (source.quant == WeightQuant::none) {
      source.weight = tensor(row);
    } else {
      source.weight = add(row.name, DType::f8_e4m3, row.shape, kQuantizedFactor, 0.0F);
      // An E4M3 value's deviation is kQuantizedFactor * kBellDeviation; scales differ by some
      // tenths.
      const float scale = deviation(row) / (kQuantizedFactor * synthetic::kBellDeviation);
      source.scale =
          place(module + ".weight_scale", DType::f32, scale_shape(row.shape), 0.1F * scale, scale);
    }
    if (row.bias) source.bias = place(module + ".bias", DType::bf16, {row.shape[0]}, 0.1F, 0.0F);
    return source;
  }

 private:
  /// Keeps the size of what flows through the layer; what a layer adds to the residual stream is
  /// as small as all layers' together may be. Else attention, which averages over its context,
  /// makes the tokens of a batch alike from layer to layer, and they meet at the same experts.
  float deviation(const ExpectedWeight& row) const {
    const bool adds = row.name.find(".o_proj.") != std::string::npos ||
                      row.name.find(".down_proj.") != std::string::npos;
    return (adds ? residual_factor_ : 1.0F) / std::sqrt(static_cast<float>(row.shape[1]));
  }

  Shape scale_shape(const Shape& weight) const {
    switch (quant_) {
      case WeightQuant::fp8_tensor:
        return {1};
      case WeightQuant::fp8_block:
        return {ceil_div(weight[0], kQuantBlock), ceil_div(weight[1], kQuantBlock)};
      default:
        return {weight[0]};
    }
  }

  ConstTensorView place(
      const std::string& name, DType dtype, Shape shape, float spread, float offset) {
    return add(name, dtype, shape, spread / synthetic::kBellDeviation, offset);
  }

  ConstTensorView add(
      const std::string& name, DType dtype, Shape shape, float factor, float offset) {
    const SyntheticTensor tensor{dtype, synthetic::key(seed_, name), shape.elements(), factor,
                                 offset};
    return ConstTensorView(memory_.place(tensor), dtype, shape);
  }

  std::uint64_t seed_;
  SyntheticAllocator& memory_;
  float residual_factor_;
  WeightQuant quant_ = WeightQuant::none;
};

std::int64_t placed_bytes(const SyntheticTensor& tensor) {
  return round_up<std::int64_t>(tensor.elements * dtype_bytes(tensor.dtype), kAlignment);
}

/// Adds up what a model needs; gives no memory that may be written.
class Sizer final : public SyntheticAllocator {
 public:
  std::byte* place(const SyntheticTensor& tensor) override {
    bytes += placed_bytes(tensor);
    return &nowhere_;
  }

  std::int64_t bytes = 0;

 private:
  std::byte nowhere_{};
};

/// A tensor and its memory.
struct Placement {
  SyntheticTensor tensor;
  std::byte* memory = nullptr;
};

/// Lays tensors out one after the other.
class Layout final : public SyntheticAllocator {
 public:
  explicit Layout(std::byte* memory) : next_(memory) {}

  std::byte* place(const SyntheticTensor& tensor) override {
    std::byte* at = next_;
    placements.push_back({tensor, at});
    next_ += placed_bytes(tensor);
    return at;
  }

  std::vector<Placement> placements;

 private:
  std::byte* next_;
};

void fill_all(const std::vector<Placement>& placements) {
  struct Piece {
    const Placement* placement;
    std::int64_t first;
  };
  constexpr std::int64_t kPieceElements = 1 << 20;
  std::vector<Piece> pieces;
  for (const Placement& placement : placements)
    for (std::int64_t first = 0; first < placement.tensor.elements; first += kPieceElements)
      pieces.push_back({&placement, first});
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    SyntheticFiller filler;
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      const SyntheticTensor& tensor = pieces[i].placement->tensor;
      filler.fill(pieces[i].placement->memory, tensor, pieces[i].first,
                  std::min(kPieceElements, tensor.elements - pieces[i].first));
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

void SyntheticFiller::fill(std::byte* target,
                           const SyntheticTensor& tensor,
                           std::int64_t first,
                           std::int64_t count) {
  const auto bell = [&](std::int64_t i) {
    return synthetic::bell(synthetic::word(tensor.key, static_cast<std::uint64_t>(i)));
  };
  switch (tensor.dtype) {
    case DType::f8_e4m3: {
      if (quantized_.empty() || tensor.factor != factor_ || tensor.offset != offset_) {
        quantized_.clear();
        for (std::int32_t b = -synthetic::kBellMax; b <= synthetic::kBellMax; ++b)
          quantized_.push_back(to_e4m3(value_of(tensor, b)));
        factor_ = tensor.factor;
        offset_ = tensor.offset;
      }
      auto* out = reinterpret_cast<Float8E4M3*>(target);
      for (std::int64_t i = first; i < first + count; ++i)
        out[i] = quantized_[static_cast<std::size_t>(bell(i) + synthetic::kBellMax)];
      return;
    }
    case DType::bf16:
      for (std::int64_t i = first; i < first + count; ++i)
        reinterpret_cast<BFloat16*>(target)[i] = to_bf16(value_of(tensor, bell(i)));
      return;
    default:
      KOHO_CHECK(tensor.dtype == DType::f32);
      for (std::int64_t i = first; i < first + count; ++i)
        reinterpret_cast<float*>(target)[i] = value_of(tensor, bell(i));
  }
}

ModelSources synthetic_sources(const ModelConfig& config,
                               std::uint64_t seed,
                               SyntheticAllocator& memory) {
  Describer describer(config, seed, memory);
  return supplied_weights(config, describer);
}

void UnmapPages::operator()(std::byte* memory) const {
  munmap(memory, size);
}

Result<HostSyntheticWeights> HostSyntheticWeights::make(const ModelConfig& config,
                                                        std::uint64_t seed) {
  Sizer sizer;
  static_cast<void>(synthetic_sources(config, seed, sizer));
  // Before pages are touched: the mapping itself costs nothing, and the system ends who fills too
  // much of it.
  if (const std::optional<std::int64_t> available = available_memory_bytes();
      available && sizer.bytes > *available)
    return make_error(ErrorCode::resource_exhausted,
                      "synthetic weights take {:.2f} GB, and {:.2f} GB of memory are available",
                      static_cast<double>(sizer.bytes) / 1e9,
                      static_cast<double>(*available) / 1e9);
  const auto size = static_cast<std::size_t>(sizer.bytes);
  void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED)
    return make_error(ErrorCode::resource_exhausted, "no memory for {} bytes of synthetic weights",
                      size);
  HostSyntheticWeights weights;
  weights.memory_ =
      std::unique_ptr<std::byte[], UnmapPages>(static_cast<std::byte*>(mapped), UnmapPages{size});
  // Only a hint: without huge pages everything is as right, and slower.
  static_cast<void>(madvise(mapped, size, MADV_HUGEPAGE));
  Layout layout(weights.memory_.get());
  weights.sources_ = synthetic_sources(config, seed, layout);
  fill_all(layout.placements);
  return weights;
}

/// Two runs of addresses: first what is filled, then, from a page's boundary on, what is not.
class DeviceSyntheticWeights::Layout final : public SyntheticAllocator {
 public:
  Layout(std::byte* filled_at, std::byte* synthetic_at)
      : filled_next_(filled_at), synthetic_next_(synthetic_at) {}

  std::byte* place(const SyntheticTensor& tensor) override {
    const bool is_synthetic =
        tensor.dtype != DType::f32 && tensor.elements >= kSyntheticElementsMin;
    std::byte*& next = is_synthetic ? synthetic_next_ : filled_next_;
    std::byte* at = next;
    next += placed_bytes(tensor);
    if (is_synthetic) {
      synthetic.push_back({at, tensor});
    } else {
      filled.push_back({tensor, at});
    }
    return at;
  }

  std::int64_t filled_bytes(const std::byte* from) const { return filled_next_ - from; }
  std::int64_t synthetic_bytes(const std::byte* from) const { return synthetic_next_ - from; }

  std::vector<Placement> filled;
  std::vector<Placed> synthetic;

 private:
  static constexpr std::int64_t kSyntheticElementsMin = 1 << 20;

  std::byte* filled_next_;
  std::byte* synthetic_next_;
};

Result<std::unique_ptr<DeviceSyntheticWeights>> DeviceSyntheticWeights::make(
    const ModelConfig& config, std::uint64_t seed) {
  constexpr std::int64_t kPageBoundary = 1 << 21;  // a multiple of every page size
  std::byte nowhere{};
  Layout sizes(&nowhere, &nowhere);
  static_cast<void>(synthetic_sources(config, seed, sizes));
  const std::int64_t filled_bytes = round_up(sizes.filled_bytes(&nowhere), kPageBoundary);
  std::unique_ptr<DeviceSyntheticWeights> weights(new DeviceSyntheticWeights());
  weights->size_ = static_cast<std::size_t>(filled_bytes + sizes.synthetic_bytes(&nowhere));
  void* mapped =
      mmap(nullptr, weights->size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED ||
      mprotect(mapped, static_cast<std::size_t>(filled_bytes), PROT_READ | PROT_WRITE) != 0) {
    if (mapped != MAP_FAILED) munmap(mapped, weights->size_);
    return make_error(ErrorCode::resource_exhausted, "no addresses for {} bytes of weights",
                      weights->size_);
  }
  weights->memory_ = static_cast<std::byte*>(mapped);
  Layout layout(weights->memory_, weights->memory_ + filled_bytes);
  weights->sources_ = synthetic_sources(config, seed, layout);
  fill_all(layout.filled);
  weights->synthetic_ = std::move(layout.synthetic);
  return weights;
}

DeviceSyntheticWeights::~DeviceSyntheticWeights() {
  if (memory_ != nullptr) munmap(memory_, size_);
}

bool DeviceSyntheticWeights::find(const std::byte* address, Place& place) const {
  auto next = std::upper_bound(
      synthetic_.begin(), synthetic_.end(), address,
      [](const std::byte* wanted, const Placed& placed) { return wanted < placed.memory; });
  if (next == synthetic_.begin()) return false;
  const Placed& placed = *--next;
  if (address >= placed.memory + placed_bytes(placed.tensor)) return false;
  place = {placed.tensor, (address - placed.memory) / dtype_bytes(placed.tensor.dtype)};
  return true;
}

}  // namespace koho
