// SPDX-License-Identifier: Apache-2.0
// koho's model on any backend, driven as a test wants it: one prompt, one step, all logits; or
// greedy tokens. The only place of tests/golden that knows the worker's interface.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "ops/backend.h"

namespace koho::testing {

class KohoModel {
 public:
  /// Loads the checkpoint for sequences of up to `context_max` tokens.
  static Result<KohoModel> load(const std::filesystem::path& directory,
                                std::int64_t context_max,
                                Result<std::unique_ptr<Backend>> backend);
  KohoModel(KohoModel&&) noexcept;
  ~KohoModel();

  /// The logits of one prefill step, [T, V].
  Result<std::vector<float>> prefill(std::span<const std::int32_t> ids);

  /// `count` greedy tokens after `ids`, whatever they are: a prefill, then decode steps. Equal
  /// logits go to the lower id.
  Result<std::vector<std::int32_t>> greedy(std::span<const std::int32_t> ids, std::int64_t count);

  std::int64_t vocabulary() const;

 private:
  struct Impl;
  explicit KohoModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace koho::testing
