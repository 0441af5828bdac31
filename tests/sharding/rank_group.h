// SPDX-License-Identifier: Apache-2.0
// The ranks of one replica as threads of a test: each a worker with a CPU backend of one thread, or
// on the GPUs of KOHO_TEST_DEVICES. A step is given as whole prompts and gives back all their
// logits, whichever way the ranks share the work.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/sharding.h"

namespace koho::testing {

using Prompt = std::vector<std::int32_t>;

/// A communicator between the model and the real one, for tests that break something.
using Interposer =
    std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>, std::int64_t rank)>;

class RankGroup {
 public:
  /// `shard.rank` is filled in. The group can hold `tokens_max` tokens in a step and on every rank.
  static Result<RankGroup> load(const std::filesystem::path& directory,
                                const Shard& shard,
                                std::int64_t tokens_max,
                                const Interposer& interpose = {});
  RankGroup(RankGroup&&) noexcept;
  ~RankGroup();

  /// The logits of every token of every prompt, [T, V] each, computed in one step. Under
  /// data-parallel attention prompt i lives on rank owners[i]; else `owners` is empty, and each
  /// rank has the logits of its part of the rows. Errors: the first rank's.
  Result<std::vector<std::vector<float>>> prefill(std::span<const Prompt> prompts,
                                                  std::span<const std::int64_t> owners);

  std::int64_t vocabulary() const;

 private:
  struct Impl;
  explicit RankGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace koho::testing
