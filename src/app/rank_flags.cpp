// SPDX-License-Identifier: Apache-2.0
#include "app/rank_flags.h"

#include <fmt/ranges.h>

#include "app/model_flags.h"
#include "base/log.h"

namespace koho::app {

void RankFlags::apply(RuntimeOptions& runtime) const {
  runtime.ranks = ranks;
  runtime.device.devices = devices;
  runtime.device.collectives = *choose_collectives(collectives);
  runtime.experts = expert_layout(experts);
  runtime.attention =
      attention == "dp" ? AttentionLayout::data_parallel : AttentionLayout::tensor_parallel;
  runtime.executor = executor_kind(executor);
  runtime.worker = kOwnProgram;
}

std::string RankFlags::text() const {
  const RankFlags usual;
  return (ranks == 0 ? "" : flag_text("ranks", ranks, usual.ranks)) +
         (devices.empty() ? "" : fmt::format(" --devices {}", fmt::join(devices, ","))) +
         flag_text("collectives", collectives, usual.collectives) +
         flag_text("experts", experts, usual.experts) +
         flag_text("attention", attention, usual.attention) +
         flag_text("executor", executor, usual.executor);
}

namespace {

void add_flags_of_cut(CommandLine& command, RankFlags& flags) {
  command
      .add_option("--devices", flags.devices,
                  "GPU of each rank, or one for all; left out: rank 0 on GPU 0, rank 1 on GPU 1")
      ->delimiter(',')
      ->check(at_least(0));
  command
      .add_option(
          "--collectives", flags.collectives,
          "What GPUs exchange data through: peer (each other's memory), nccl, or auto: peer "
          "where every GPU reaches every other")
      ->check(one_of({"auto", "peer", "nccl"}))
      ->capture_default_str();
  command
      .add_option(
          "--experts", flags.experts,
          "Experts over ranks: whole (each rank has some), sliced (a slice of all), or auto: "
          "on GPUs what was measured as faster, else whole")
      ->check(one_of({"auto", "whole", "sliced"}))
      ->capture_default_str();
}

}  // namespace

void add_cut_flags(CommandLine& command, RankFlags& flags) {
  command.add_option("--ranks", flags.ranks, "Ranks that share the model")
      ->check(between(1, static_cast<int>(kWorkerRanksMax)))
      ->capture_default_str();
  add_flags_of_cut(command, flags);
}

void add_rank_flags(CommandLine& command, RankFlags& flags) {
  flags.ranks = 0;
  command
      .add_option("--ranks", flags.ranks,
                  "Ranks that share the model; left out: one for each of --devices, or the "
                  "smallest number of GPUs that holds it, and one on the CPU")
      ->check(between(1, static_cast<int>(kWorkerRanksMax)));
  add_flags_of_cut(command, flags);
  command
      .add_option("--attention", flags.attention,
                  "Attention over ranks: tp (some heads of every request) or dp (all heads of some "
                  "requests)")
      ->check(one_of({"tp", "dp"}))
      ->capture_default_str();
  command
      .add_option("--executor", flags.executor,
                  "Ranks as processes, started anew when one fails, or as threads of this process; "
                  "auto: process on GPUs, thread on the CPU")
      ->check(one_of({"auto", "process", "thread"}))
      ->capture_default_str();
}

Status choose_ranks_and_log(const LoadedModel& model, RuntimeOptions& options) {
  KOHO_TRY_ASSIGN(const std::string chosen, choose_ranks(model, options));
  if (!chosen.empty()) log::info("{}", chosen);
  return {};
}

std::optional<ExpertLayout> expert_layout(const std::string& name) {
  if (name == "auto") return std::nullopt;
  return name == "whole" ? ExpertLayout::expert_parallel : ExpertLayout::tensor_parallel;
}

std::string experts_name(std::optional<ExpertLayout> experts) {
  if (!experts) return "auto";
  return *experts == ExpertLayout::expert_parallel ? "whole" : "sliced";
}

ExecutorKind executor_kind(const std::string& name) {
  if (name == "process") return ExecutorKind::process;
  return name == "thread" ? ExecutorKind::thread : ExecutorKind::automatic;
}

std::string executor_name(ExecutorKind kind) {
  if (kind == ExecutorKind::process) return "process";
  return kind == ExecutorKind::thread ? "thread" : "auto";
}

}  // namespace koho::app
