// SPDX-License-Identifier: Apache-2.0
// Hashes config, tensor names and a sample of each tensor's bytes. The text that is hashed must not
// change: clients compare fingerprints across releases.
#include "runtime/fingerprint.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <xxhash.h>

#include <fmt/format.h>

#include "checkpoint/checkpoint.h"

namespace koho {

namespace {

/// Appends the names and forms of all tensors and the first bytes of some.
void append_tensors(std::string& text, std::span<const CheckpointTensor> tensors) {
  constexpr std::size_t kSamples = 64;
  constexpr std::size_t kSampleBytes = 256;
  const std::size_t stride = std::max<std::size_t>(1, tensors.size() / kSamples);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    fmt::format_to(std::back_inserter(text), "|{} {}", tensors[i].name, describe(tensors[i]));
    if (i % stride != 0) continue;
    const auto sample = tensors[i].bytes.first(std::min(kSampleBytes, tensors[i].bytes.size()));
    text.append(reinterpret_cast<const char*>(sample.data()), sample.size());
  }
}

std::span<const CheckpointTensor> tensors_of(const LoadedModel& model) {
  if (model.checkpoint) return model.checkpoint->tensors();
  return {};
}

}  // namespace

std::string fingerprint_of(const Runtime& runtime) {
  const std::span<const CheckpointTensor> tensors = tensors_of(runtime.model());
  const RuntimeOptions& options = runtime.options();
  std::string text = fmt::format(
      "{}|{}|{}|{}|{}|{}", options.ranks, static_cast<int>(*options.experts),
      static_cast<int>(options.attention), static_cast<int>(options.kv_dtype),
      static_cast<int>(options.device.kind),
      options.device.deterministic ? static_cast<int>(*options.device.deterministic) : 2);
  if (tensors.empty()) {
    const ModelConfig& config = runtime.model().config;
    fmt::format_to(std::back_inserter(text), "|drawn {} {} {} {}", config.num_hidden_layers,
                   config.hidden_size, config.n_routed_experts, config.vocab_size);
  }
  append_tensors(text, tensors);
  return fmt::format("fp_{:016x}", XXH3_64bits(text.data(), text.size()));
}

std::uint64_t identity_of(const LoadedModel& model) {
  const ModelConfig& config = model.config;
  std::string text =
      fmt::format("{}|{}|{}|{}|{}|{}|{}|{}", config.num_hidden_layers, config.hidden_size,
                  config.n_routed_experts, config.vocab_size, config.rms_norm_eps,
                  config.rope_theta, config.routed_scaling_factor, config.partial_rotary_factor);
  append_tensors(text, tensors_of(model));
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace koho
