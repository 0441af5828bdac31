// SPDX-License-Identifier: Apache-2.0
// `koho bench latency`: the time of one step, no server and no engine: decode at some batch sizes,
// prefill of one prompt, and where the time goes, class by class beside what the memory allows.
#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "app/build_info.h"
#include "app/command.h"
#include "app/model_flags.h"
#include "app/rank_flags.h"
#include "base/log.h"
#include "bench/latency_bench.h"
#include "bench/result_file.h"
#include "comm/loopback_rank.h"
#include "comm/one_rank.h"
#include "comm/thread_rendezvous.h"
#include "model/choose_experts.h"
#include "worker/device.h"

namespace koho::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExamples =
    R"(Synthetic weights need a config only; a trained model's spread, generated on the device, every expert as likely.
Classes are timed one at a time from the host, replayed on the arrays of a whole step: each time holds a launch, a
wait and the gaps between its kernels. "bound" is the time in which the device could read a class's bytes, each once.
--kernels records the kernels' own times inside the whole step's graph (with CUPTI, part of the CUDA toolkit): how long
none runs (idle), and how long each kernel keeps the device busy after those before it have ended. Kernels wait inside
each other's launch, so their sum may exceed the step. CUPTI slows the device: the graph's time without it stands beside.
--ranks N --rank R measures rank R of N alone on one device: its cut of the weights, its kernels, its collectives with
what would go to other ranks kept in its own memory. What is missing is printed apart: the time between GPUs, as measured
where there were several, and the wait for the rank whose experts were chosen most. --ranks N without --rank runs all.

Examples:
  koho bench latency --config config.json --weights synthetic --device cuda --batch 1,16,64 --context 1024
  koho bench latency --config config.json --weights synthetic --device cuda --ranks 8 --rank 3 --experts sliced --batch 1
  koho bench latency --model models/tiny --device cpu --batch 1,4 --prefill 512)";

struct LatencyOptions {
  ModelFlags selected;
  bench::LatencySettings steps;
  std::string kv_dtype = "bf16";
  RankFlags cut;
  std::int64_t rank = -1;  // all of them
  std::string out;
  std::string commit;
  double bandwidth = 4.45e12;  // bytes a second that an H200 reads
  bool no_classes = false;

  std::int64_t ranks() const { return cut.ranks; }
  bool alone() const { return rank >= 0 && ranks() > 1; }
};

/// What measures the same again.
std::string command_of(const LatencyOptions& options) {
  const bench::LatencySettings& steps = options.steps;
  const LatencyOptions usual;
  std::string command = "koho bench latency" + model_flags(options.selected);
  command += options.cut.text() + flag_text("rank", options.rank, usual.rank);
  command += fmt::format(" --batch {} --context {} --prefill {}", fmt::join(steps.batches, ","),
                         steps.context, fmt::join(steps.prefill, ","));
  if (!steps.mixed.empty()) command += fmt::format(" --mixed {}", fmt::join(steps.mixed, ","));
  command += flag_text("steps", steps.steps, usual.steps.steps) +
             flag_text("kv-dtype", options.kv_dtype, usual.kv_dtype);
  if (options.no_classes) command += " --no-classes";
  if (steps.kernels) command += " --kernels";
  return command;
}

using Note = std::function<void(const bench::LatencyReport&)>;

/// All steps of one rank.
Status measure(bench::LatencyBench& bench,
               const bench::LatencySettings& steps,
               std::unique_ptr<Backend> backend,
               std::unique_ptr<Communicator> communicator,
               const Note& note) {
  KOHO_TRY(bench.start(std::move(backend), std::move(communicator)));
  if (note) std::cout << bench.started() << std::endl;
  for (const std::int64_t batch : steps.batches) {
    KOHO_TRY_ASSIGN(const bench::LatencyReport report, bench.decode(batch));
    if (note) note(report);
  }
  for (const std::int64_t tokens : steps.prefill) {
    if (tokens == 0) continue;
    KOHO_TRY_ASSIGN(const bench::LatencyReport report, bench.prefill(tokens));
    if (note) note(report);
  }
  for (const std::int64_t batch : steps.batches)
    for (const std::int64_t prompt : steps.mixed) {
      KOHO_TRY_ASSIGN(const bench::LatencyReport report, bench.mixed(batch, prompt));
      if (note) note(report);
    }
  return {};
}

/// The only rank, or one whose replica's other ranks are not there. Returns the machine's name.
Result<std::string> measure_one(const LatencyOptions& options,
                                const SelectedModel& selected,
                                const Note& note) {
  LoopbackRendezvous meeting(options.steps.shard.rank, options.ranks());
  bench::LatencyBench bench(options.steps, selected.config, selected.sources());
  KOHO_TRY(bench.check_lengths());
  KOHO_TRY_ASSIGN(std::unique_ptr<Backend> backend, make_backend(selected.device, 0, 1));
  std::unique_ptr<Communicator> communicator = std::make_unique<OneRank>();
  if (options.alone()) {
    KOHO_TRY_ASSIGN(communicator, make_loopback_communicator(selected.device, *backend, meeting));
  }
  KOHO_TRY(measure(bench, options.steps, std::move(backend), std::move(communicator), note));
  return bench.machine();
}

/// All ranks, each on a thread of its own; rank 0 tells what it found.
Result<std::string> measure_all(const LatencyOptions& options,
                                const SelectedModel& selected,
                                const Note& note) {
  constexpr std::chrono::minutes kRanksTimeout{2};  // until the slowest has loaded
  const std::int64_t ranks = options.ranks();
  KOHO_TRY(check_devices(selected.device, ranks));
  const std::vector<std::unique_ptr<Rendezvous>> meeting =
      make_thread_rendezvous(ranks, kRanksTimeout);
  std::vector<bench::LatencySettings> settings(static_cast<std::size_t>(ranks), options.steps);
  std::vector<std::unique_ptr<bench::LatencyBench>> benches;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    bench::LatencySettings& own = settings[static_cast<std::size_t>(rank)];
    own.shard.rank = rank;
    benches.push_back(
        std::make_unique<bench::LatencyBench>(own, selected.config, selected.sources()));
  }
  KOHO_TRY(benches[0]->check_lengths());
  std::vector<Status> statuses(benches.size());
  const auto run_rank = [&](std::size_t rank) -> Status {
    KOHO_TRY_ASSIGN(std::unique_ptr<Backend> backend,
                    make_backend(selected.device, static_cast<std::int64_t>(rank), ranks));
    KOHO_TRY_ASSIGN(std::unique_ptr<Communicator> communicator,
                    make_communicator(selected.device, *backend, *meeting[rank]));
    return measure(*benches[rank], settings[rank], std::move(backend), std::move(communicator),
                   rank == 0 ? note : Note());
  };
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < benches.size(); ++rank)
    threads.emplace_back([&, rank] {
      statuses[rank] = run_rank(rank);
      if (statuses[rank].ok()) return;
      meeting[rank]->give_up();
      benches[rank]->abort();
    });
  for (std::thread& thread : threads) thread.join();
  // What another rank's failure did to a rank is no cause.
  for (const Status& status : statuses)
    if (!status.ok() && status.error().code != ErrorCode::unavailable) return status.error();
  for (const Status& status : statuses) KOHO_TRY(Status(status));
  return benches[0]->machine();
}

/// Checks the flags of ranks and completes the settings.
Status complete(LatencyOptions& options, const SelectedModel& selected) {
  bench::LatencySettings& steps = options.steps;
  steps.kv_dtype = options.kv_dtype == "fp8" ? DType::f8_e4m3 : DType::bf16;
  steps.classes = !options.no_classes;
  steps.shard.ranks = options.ranks();
  const std::optional<ExpertLayout> asked = expert_layout(options.cut.experts);
  ExpertsChoice choice;
  if (!asked)
    choice = choose_experts(selected.config, selected.sources(), steps.shard,
                            *std::max_element(steps.batches.begin(), steps.batches.end()),
                            selected.device.kind == DeviceKind::cuda);
  steps.shard.experts = asked.value_or(choice.layout);
  steps.shard.rank = std::max<std::int64_t>(options.rank, 0);
  steps.random_tokens = options.alone();
  KOHO_TRY(check_shard(selected.config, steps.shard));
  if (options.ranks() == 1 || asked) return {};
  options.cut.experts = experts_name(choice.layout);  // what the file says
  std::cout << fmt::format("experts are {}: {}\n", options.cut.experts, choice.reason);
  return {};
}

/// How the file says what the steps were, beside the command.
std::vector<std::pair<std::string, std::string>> file_members(const LatencyOptions& options,
                                                              const SelectedModel& selected) {
  std::vector<std::pair<std::string, std::string>> members{
      {"config", log::quoted(selected.name)},
      {"layers", fmt::to_string(selected.config.num_hidden_layers)}};
  if (options.ranks() == 1) return members;
  members.insert(members.end(), {{"ranks", fmt::to_string(options.ranks())},
                                 {"rank", fmt::to_string(options.steps.shard.rank)},
                                 {"experts", log::quoted(options.cut.experts)},
                                 {"links", options.alone() ? "\"excluded\"" : "\"measured\""}});
  return members;
}

Status run(LatencyOptions options) {
  KOHO_TRY_ASSIGN(SelectedModel selected, load_selected_model(options.selected));
  selected.device.devices = options.cut.devices;
  KOHO_TRY_ASSIGN(selected.device.collectives, choose_collectives(options.cut.collectives));
  KOHO_TRY(complete(options, selected));
  const bench::LatencyConditions conditions{.config = selected.config,
                                            .shard = options.steps.shard,
                                            .alone = options.alone(),
                                            .bandwidth = options.bandwidth};
  Json rows = Json::array();
  const Note note = [&](const bench::LatencyReport& report) {
    std::cout << text_of(report, conditions) << std::flush;
    rows.push_back(json_of(report, conditions));
  };
  const bool all = options.ranks() > 1 && !options.alone();
  KOHO_TRY_ASSIGN(const std::string machine, all ? measure_all(options, selected, note)
                                                 : measure_one(options, selected, note));
  if (options.out.empty()) return {};
  std::string lines;
  for (const Json& row : rows) lines += (lines.empty() ? "" : ",\n") + row.dump();
  return bench::write_result_file(
      options.out,
      {.machine = machine,
       .commit = options.commit.empty() ? build_info().commit : options.commit,
       .command = command_of(options),
       .more = file_members(options, selected)},
      lines);
}

}  // namespace

Runner add_bench_latency(CommandLine& command) {
  auto options = std::make_shared<LatencyOptions>();
  add_model_flags(command, options->selected);
  command.add_option("--batch", options->steps.batches, "Decode batch sizes")
      ->delimiter(',')
      ->check(at_least(1))
      ->capture_default_str();
  command.add_option("--context", options->steps.context, "Cached tokens of each sequence")
      ->check(at_least(1))
      ->capture_default_str();
  command
      .add_option("--prefill", options->steps.prefill, "Tokens of prompts, each a step; 0 = none")
      ->delimiter(',')
      ->check(at_least(0))
      ->capture_default_str();
  command
      .add_option("--mixed", options->steps.mixed,
                  "Tokens of prompts, each in one step with each of --batch's decodes")
      ->delimiter(',')
      ->check(at_least(1));
  command.add_option("--steps", options->steps.steps, "Timed decode steps")
      ->check(at_least(1))
      ->capture_default_str();
  command.add_option("--kv-dtype", options->kv_dtype, "bf16 or fp8")
      ->check(one_of({"bf16", "fp8"}))
      ->capture_default_str();
  command.add_option("--bandwidth", options->bandwidth, "Bytes a second that the device reads")
      ->check(positive())
      ->capture_default_str();
  add_cut_flags(command, options->cut);
  command
      .add_option("--rank", options->rank, "Measure this one alone, on one device; all if left out")
      ->check(at_least(0));
  command.add_flag("--no-classes", options->no_classes, "Only whole steps");
  command.add_flag("--kernels", options->steps.kernels,
                   "The kernels' own times, by CUPTI (CUDA only)");
  command.add_option("--out", options->out, "A JSON file to write");
  command.add_option("--commit", options->commit,
                     "What is measured, for the file; the build's if left out");
  command.footer(kExamples);
  return [options] { return run(*options); };
}

}  // namespace koho::app
