// SPDX-License-Identifier: Apache-2.0
// Weights without a checkpoint: pseudo-random numbers with a trained model's spread, for benchmarks
// at any config. model/weights.h says which tensors there are. Each tensor has one rule; whoever
// fills its memory (this file on the host, a backend on its device) follows the rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/config.h"
#include "model/weights.h"
#include "ops/synthetic_tensor.h"
#include "tensor/number.h"
#include "tensor/tensor_view.h"

namespace koho {

/// Fills host tensors. One thread at a time.
class SyntheticFiller {
 public:
  /// Elements first..first+count-1 of the tensor whose memory `target` is.
  void fill(std::byte* target,
            const SyntheticTensor& tensor,
            std::int64_t first,
            std::int64_t count);

 private:
  /// The E4M3 value of every bell, made once per rule: rounding to E4M3 costs more than the draw.
  std::vector<Float8E4M3> quantized_;
  float factor_ = 0.0F;
  float offset_ = 0.0F;
};

/// Gives memory for one tensor, in a model's order; never null.
class SyntheticAllocator {
 public:
  virtual ~SyntheticAllocator() = default;
  virtual std::byte* place(const SyntheticTensor& tensor) = 0;
};

/// The weights of `config` without its MTP layer. Linears are FP8 in the scheme that
/// config.quantization names (bf16 without one), the head and the router bf16, as zai-org's
/// checkpoints have them.
ModelSources synthetic_sources(const ModelConfig& config,
                               std::uint64_t seed,
                               SyntheticAllocator& memory);

/// Gives mapped pages back.
struct UnmapPages {
  std::size_t size = 0;
  void operator()(std::byte* memory) const;
};

/// Synthetic weights in this process' memory (huge pages, where the system gives them).
class HostSyntheticWeights {
 public:
  /// Fills everything with as many threads as there are cores. Errors: resource_exhausted, before
  /// any is filled, if the machine has less memory available.
  static Result<HostSyntheticWeights> make(const ModelConfig& config, std::uint64_t seed);

  const ModelSources& sources() const { return sources_; }
  /// All of it, from the first tensor to the last.
  std::span<const std::byte> bytes() const { return {memory_.get(), memory_.get_deleter().size}; }

 private:
  HostSyntheticWeights() = default;

  std::unique_ptr<std::byte[], UnmapPages> memory_;
  ModelSources sources_;
};

/// Synthetic weights as addresses, for a backend that draws them on its device. What load reads
/// itself (scales, biases, norms, routers) is filled, the large tensors are not: their memory is
/// reserved and cannot be read.
class DeviceSyntheticWeights final : public SyntheticAddressMap {
 public:
  /// Errors: resource_exhausted.
  static Result<std::unique_ptr<DeviceSyntheticWeights>> make(const ModelConfig& config,
                                                              std::uint64_t seed);
  DeviceSyntheticWeights(const DeviceSyntheticWeights&) = delete;
  DeviceSyntheticWeights& operator=(const DeviceSyntheticWeights&) = delete;
  ~DeviceSyntheticWeights() override;

  const ModelSources& sources() const { return sources_; }
  bool find(const std::byte* address, Place& place) const override;

 private:
  struct Placed {
    const std::byte* memory = nullptr;
    SyntheticTensor tensor;
  };
  class Layout;

  DeviceSyntheticWeights() = default;

  std::byte* memory_ = nullptr;
  std::size_t size_ = 0;
  std::vector<Placed> synthetic_;  // by ascending address
  ModelSources sources_;
};

}  // namespace koho
