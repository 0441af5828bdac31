// SPDX-License-Identifier: Apache-2.0
// Weights that no checkpoint holds: random numbers of a trained model's spread at any config, for
// benchmarks. Which tensors there are, model/weights.h says; each is described by one rule, which
// whoever fills memory (this file on the host, a backend on its device) follows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/config.h"
#include "model/weights.h"
#include "ops/drawn.h"
#include "tensor/number.h"
#include "tensor/tensor_view.h"

namespace koho {

/// Fills host tensors. One thread at a time.
class SyntheticFiller {
 public:
  /// Elements first..first+count-1 of the tensor whose memory `target` is.
  void fill(std::byte* target, const DrawnTensor& tensor, std::int64_t first, std::int64_t count);

 private:
  /// The code of every bell, made once per rule: rounding to E4M3 costs more than the draw.
  std::vector<Float8E4M3> codes_;
  float factor_ = 0.0F;
  float offset_ = 0.0F;
};

/// Gives memory for one tensor, in a model's order; never null.
class SyntheticMemory {
 public:
  virtual ~SyntheticMemory() = default;
  virtual std::byte* place(const DrawnTensor& tensor) = 0;
};

/// The weights of `config` without its MTP layer. Linears are FP8 in the scheme that
/// config.quantization names (bf16 without one), the head and the router bf16, as zai-org's
/// checkpoints have them.
ModelSources synthetic_sources(const ModelConfig& config,
                               std::uint64_t seed,
                               SyntheticMemory& memory);

/// Gives mapped pages back.
struct UnmapPages {
  std::size_t size = 0;
  void operator()(std::byte* memory) const;
};

/// Synthetic weights in this process' memory (huge pages, where the system gives them).
class SyntheticWeights {
 public:
  /// Fills everything with as many threads as there are cores. Errors: resource_exhausted, before
  /// any is filled, if the machine has less memory available.
  static Result<SyntheticWeights> make(const ModelConfig& config, std::uint64_t seed);

  const ModelSources& sources() const { return sources_; }
  /// All of it, from the first tensor to the last.
  std::span<const std::byte> bytes() const { return {memory_.get(), memory_.get_deleter().size}; }

 private:
  SyntheticWeights() = default;

  std::unique_ptr<std::byte[], UnmapPages> memory_;
  ModelSources sources_;
};

/// Synthetic weights as addresses, for a backend that draws them on its device. What load reads
/// itself (scales, biases, norms, routers) is filled, the large tensors are not: their memory is
/// reserved and cannot be read.
class DrawnWeights final : public DrawnMemory {
 public:
  /// Errors: resource_exhausted.
  static Result<std::unique_ptr<DrawnWeights>> make(const ModelConfig& config, std::uint64_t seed);
  DrawnWeights(const DrawnWeights&) = delete;
  DrawnWeights& operator=(const DrawnWeights&) = delete;
  ~DrawnWeights() override;

  const ModelSources& sources() const { return sources_; }
  bool find(const std::byte* address, Place& place) const override;

 private:
  struct Placed {
    const std::byte* memory = nullptr;
    DrawnTensor tensor;
  };
  class Layout;

  DrawnWeights() = default;

  std::byte* memory_ = nullptr;
  std::size_t size_ = 0;
  std::vector<Placed> drawn_;  // by rising address
  ModelSources sources_;
};

}  // namespace koho
