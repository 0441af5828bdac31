// SPDX-License-Identifier: Apache-2.0
#include "model/choose_experts.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "model/check_cut.h"

namespace koho {
namespace {

/// Up to how many sequences a decode step is faster with sliced experts, the wait for the slowest
/// rank counted: the most that was measured (docs/performance.md). tests/result_tables_test.py
/// holds this beside the ranks' recorded steps.
struct SlicedUpTo {
  std::int64_t ranks;
  std::int64_t sequences;
};
constexpr std::array kSlicedUpTo{SlicedUpTo{.ranks = 4, .sequences = 48},
                                 SlicedUpTo{.ranks = 8, .sequences = 32}};

/// Of the most ranks that are not more than `ranks`, or of the fewest.
const SlicedUpTo& measured(std::int64_t ranks) {
  const SlicedUpTo* found = kSlicedUpTo.data();
  for (const SlicedUpTo& entry : kSlicedUpTo)
    if (entry.ranks <= ranks) found = &entry;
  return *found;
}

}  // namespace

ExpertsChoice choose_experts(const ModelConfig& config,
                             const ModelSources& sources,
                             const Shard& shard,
                             std::int64_t sequences_max,
                             bool on_gpus) {
  constexpr ExpertLayout kWhole = ExpertLayout::expert_parallel;
  constexpr ExpertLayout kSliced = ExpertLayout::tensor_parallel;
  if (shard.ranks <= 1) return {kWhole, "one rank has all"};
  Shard sliced = shard;
  sliced.experts = kSliced;
  if (Status cut = check_cut(config, sources, sliced); !cut.ok())
    return {kWhole, "they cannot be sliced: " + cut.error().message};
  if (config.n_routed_experts % shard.ranks != 0)
    return {kSliced,
            fmt::format("{} ranks do not divide {} experts", shard.ranks, config.n_routed_experts)};
  if (!on_gpus) return {kWhole, "nothing was measured on CPUs"};
  if (shard.dispatches_tokens()) return {kWhole, "a token goes to the ranks of its experts alone"};
  const SlicedUpTo& entry = measured(shard.ranks);
  const bool slices = sequences_max <= entry.sequences;
  return {slices ? kSliced : kWhole,
          fmt::format("with {} sequences{}, as measured for a rank of {}",
                      slices ? "up to " + fmt::to_string(entry.sequences)
                             : "more than " + fmt::to_string(entry.sequences),
                      slices ? " decode is faster so"
                             : " and in prompts they are faster, for one sequence slower",
                      entry.ranks)};
}

}  // namespace koho
