// SPDX-License-Identifier: Apache-2.0
#include "model/synthetic.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <sys/mman.h>
#include <thread>

#include "base/arithmetic.h"
#include "base/check.h"
#include "model/synthetic_draw.h"

namespace koho {
namespace {

constexpr std::int64_t kAlignment = 64;
/// E4M3 codes with deviation 129, the largest at 448: a channel scaled to its largest weight.
constexpr float kCodeFactor = 7.0F / 2048.0F;

float value_of(const SyntheticTensor& tensor, std::int32_t bell) {
  return tensor.offset + tensor.factor * static_cast<float>(bell);
}

/// Describes each row of the table and asks for its memory.
class Describer final : public WeightSupplier {
 public:
  Describer(const ModelConfig& config, std::uint64_t seed, SyntheticMemory& memory)
      : seed_(seed), memory_(memory) {
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
      source.weight = add(row.name, DType::f8_e4m3, row.shape, kCodeFactor, 0.0F);
      // A code's deviation is kCodeFactor * kBellDeviation; scales differ by some tenths.
      const float scale = deviation(row) / (kCodeFactor * synthetic::kBellDeviation);
      source.scale =
          place(module + ".weight_scale", DType::f32, scale_shape(row.shape), 0.1F * scale, scale);
    }
    if (row.bias) source.bias = place(module + ".bias", DType::bf16, {row.shape[0]}, 0.1F, 0.0F);
    return source;
  }

 private:
  /// Keeps the size of what flows through the layer.
  static float deviation(const ExpectedWeight& row) {
    return 1.0F / std::sqrt(static_cast<float>(row.shape[1]));
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
  SyntheticMemory& memory_;
  WeightQuant quant_ = WeightQuant::none;
};

std::int64_t placed_bytes(const SyntheticTensor& tensor) {
  return round_up<std::int64_t>(tensor.elements * dtype_bytes(tensor.dtype), kAlignment);
}

/// Adds up what a model needs; gives no memory that may be written.
class Sizer final : public SyntheticMemory {
 public:
  std::byte* place(const SyntheticTensor& tensor) override {
    bytes += placed_bytes(tensor);
    return &nowhere_;
  }

  std::int64_t bytes = 0;

 private:
  std::byte nowhere_{};
};

/// Lays tensors out one after the other.
class Layout final : public SyntheticMemory {
 public:
  explicit Layout(std::byte* memory) : next_(memory) {}

  std::byte* place(const SyntheticTensor& tensor) override {
    std::byte* at = next_;
    placements.push_back({tensor, at});
    next_ += placed_bytes(tensor);
    return at;
  }

  struct Placement {
    SyntheticTensor tensor;
    std::byte* memory = nullptr;
  };
  std::vector<Placement> placements;

 private:
  std::byte* next_;
};

void fill_all(const std::vector<Layout::Placement>& placements) {
  struct Piece {
    const Layout::Placement* placement;
    std::int64_t first;
  };
  constexpr std::int64_t kPieceElements = 1 << 20;
  std::vector<Piece> pieces;
  for (const Layout::Placement& placement : placements)
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
      if (codes_.empty() || tensor.factor != factor_ || tensor.offset != offset_) {
        codes_.clear();
        for (std::int32_t b = -synthetic::kBellMax; b <= synthetic::kBellMax; ++b)
          codes_.push_back(to_e4m3(value_of(tensor, b)));
        factor_ = tensor.factor;
        offset_ = tensor.offset;
      }
      auto* out = reinterpret_cast<Float8E4M3*>(target);
      for (std::int64_t i = first; i < first + count; ++i)
        out[i] = codes_[static_cast<std::size_t>(bell(i) + synthetic::kBellMax)];
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
                               SyntheticMemory& memory) {
  Describer describer(config, seed, memory);
  return supplied_weights(config, describer);
}

void UnmapPages::operator()(std::byte* memory) const {
  munmap(memory, size);
}

Result<SyntheticWeights> SyntheticWeights::make(const ModelConfig& config, std::uint64_t seed) {
  Sizer sizer;
  static_cast<void>(synthetic_sources(config, seed, sizer));
  const auto size = static_cast<std::size_t>(sizer.bytes);
  void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED)
    return make_error(ErrorCode::resource_exhausted, "no memory for {} bytes of synthetic weights",
                      size);
  SyntheticWeights weights;
  weights.memory_ =
      std::unique_ptr<std::byte[], UnmapPages>(static_cast<std::byte*>(mapped), UnmapPages{size});
  // Only a hint: without huge pages everything is as right, and slower.
  static_cast<void>(madvise(mapped, size, MADV_HUGEPAGE));
  Layout layout(weights.memory_.get());
  weights.sources_ = synthetic_sources(config, seed, layout);
  fill_all(layout.placements);
  return weights;
}

}  // namespace koho
