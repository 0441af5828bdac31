// SPDX-License-Identifier: Apache-2.0
// The flags that say how a model is spread: how many ranks, on which devices, cut how, and whether
// the ranks are processes. `koho serve` has the same in its own table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/command_line.h"
#include "base/error.h"
#include "runtime/runtime.h"
#include "worker/rank_memory.h"

namespace koho::app {

struct RankFlags {
  std::int64_t ranks = 1;
  std::vector<std::int32_t> devices;  // empty: the ranks' numbers
  std::string experts = "auto";
  std::string attention = "tp";
  std::string executor = "auto";
  std::string collectives = "auto";

  /// Sets what the flags say.
  void apply(RuntimeOptions& runtime) const;
  /// The flags that give these values, each after a blank.
  std::string text() const;
};

/// All of them; without --ranks `flags.ranks` is 0, for choose_ranks().
void add_rank_flags(CommandLine& command, RankFlags& flags);
/// Only --ranks, --devices, --collectives and --experts.
void add_cut_flags(CommandLine& command, RankFlags& flags);

/// choose_ranks(), with a line of log where it says something. Errors: its.
Status choose_ranks_and_log(const LoadedModel& model, RuntimeOptions& options);

/// The program of worker processes: this one, even if its file has been replaced since.
inline constexpr const char* kOwnProgram = "/proc/self/exe";

/// How experts are cut: "whole", "sliced", or none for "auto". Requires: one of these.
std::optional<ExpertLayout> expert_layout(const std::string& name);
std::string experts_name(std::optional<ExpertLayout> experts);
/// "auto", "process" or "thread". Requires: one of these.
ExecutorKind executor_kind(const std::string& name);
std::string executor_name(ExecutorKind kind);

}  // namespace koho::app
