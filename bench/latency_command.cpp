// SPDX-License-Identifier: Apache-2.0
// `koho bench latency`: the time of one step, no server and no engine: decode at some batch sizes,
// prefill of one prompt, and where the time goes, class by class beside what the memory allows.
#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
<<<<<<< HEAD
#include <thread>
=======
>>>>>>> kernels
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "app/build_info.h"
#include "app/command.h"
#include "app/model_flags.h"
#include "base/log.h"
#include "bench/latency_bench.h"
#include "bench/result_file.h"
#include "comm/loopback_rank.h"
#include "comm/one_rank.h"
#include "comm/thread_rendezvous.h"
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
  std::string experts = "whole";
  std::int64_t rank = -1;  // all of them
  std::string out;
  std::string commit;
  double bandwidth = 4.45e12;  // bytes a second that an H200 reads
  bool no_classes = false;

<<<<<<< HEAD
  std::int64_t ranks() const { return steps.shard.ranks; }
  bool alone() const { return rank >= 0 && ranks() > 1; }
=======
double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// A class of operators and the bytes it has to read.
struct OpClass {
  std::string name;
  Trace::Selection selects;
  double bytes = 0.0;
};

class Bench {
 public:
  Bench(const LatencyOptions& options, const SelectedModel& selected)
      : options_(options), config_(selected.config), sources_(selected.sources()) {}

  /// What is asked for has positions in the model: the cache of more would be taken all the same.
  Status check_lengths() const {
    const std::int64_t positions = config_.max_position_embeddings;
    for (const auto& [flag, prompts] :
         {std::pair("--prefill", &options_.prefill), std::pair("--mixed", &options_.mixed)})
      for (const std::int64_t tokens : *prompts)
        if (tokens > positions)
          return make_error(ErrorCode::invalid_argument, "{} ({}) exceeds the model's {} positions",
                            flag, tokens, positions);
    // As differences: a sum could overflow.
    if (options_.context > positions || options_.steps > positions - kStepsBefore ||
        options_.context > positions - kStepsBefore - options_.steps)
      return make_error(ErrorCode::invalid_argument,
                        "--context ({}), --steps ({}) and {} steps before them exceed the model's "
                        "{} positions",
                        options_.context, options_.steps, kStepsBefore, positions);
    return {};
  }

  Status start(std::unique_ptr<Backend> backend) {
    const std::int64_t decodes_max =
        *std::max_element(options_.batches.begin(), options_.batches.end());
    // A prompt beside decodes has the first batch slot.
    const std::int64_t batch_max = decodes_max + (options_.mixed.empty() ? 0 : 1);
    std::int64_t mixed_max = 0;
    for (const std::int64_t prompt : options_.mixed)
      mixed_max = std::max(mixed_max, decodes_max + prompt);
    // Contexts grow by the timed steps and some to get going.
    const std::int64_t decoded = options_.context + options_.steps + kStepsBefore;
    const std::int64_t context_max = std::max(decoded, prompt_max());
    const std::int64_t pages_each = ceil_div(decoded, kPageTokens);
    const std::int64_t pages_long = ceil_div(context_max, kPageTokens);  // of the first sequence
    // Room for contexts to be filled by more than a step's tokens at a time.
    tokens_max_ =
        std::max({prompt_max(), batch_max, mixed_max,
                  std::min<std::int64_t>(options_.context, kFillTokens), std::int64_t{1}});
    WorkerSettings settings;
    settings.load.limits = {.tokens_max = tokens_max_,
                            .sequences_max = batch_max,
                            .context_max = context_max,
                            .logit_rows_max = batch_max,
                            .vocabulary = 0};
    settings.load.kv_pages = std::max(batch_max * pages_each, pages_long);
    settings.load.kv_dtype = options_.kv_dtype == "fp8" ? DType::f8_e4m3 : DType::bf16;
    settings.tokenizer_tokens = config_.vocab_size;
    const Clock::time_point begin = Clock::now();
    KOHO_TRY_ASSIGN(Worker worker, Worker::create(config_, sources_, settings, std::move(backend),
                                                  std::make_unique<OneRank>()));
    worker_ = std::make_unique<Worker>(std::move(worker));
    steps_ = std::make_unique<bench::Steps>(*worker_, config_.vocab_size, batch_max, pages_each,
                                            pages_long);
    KOHO_TRY_ASSIGN(const MemoryUse use, worker_->backend().memory_use());
    std::printf("%s, start %.1f s, %.2f GB held, %.2f GB free\n",
                worker_->backend().description().c_str(), ms_since(begin) / 1e3,
                static_cast<double>(use.held_bytes) / 1e9,
                static_cast<double>(use.free_bytes) / 1e9);
    std::fflush(stdout);
    allocations_ = use.allocations;
    return {};
  }

  Result<Report> prefill(std::int64_t tokens) {
    Report report;
    report.step = "prefill";
    report.batch = 1;
    report.tokens = tokens;
    report.context = tokens;
    const bench::Sequences prompt{.length = tokens};
    KOHO_TRY(time_alone(report, {&prompt, 1}));
    return report;
  }

  /// Decodes of `batch` sequences and a prompt of `prompt` tokens in one step.
  Result<Report> mixed(std::int64_t batch, std::int64_t prompt) {
    Report report;
    report.step = "mixed";
    report.batch = batch + 1;
    report.tokens = batch + prompt;
    report.context = options_.context;
    KOHO_TRY(steps_->fill(1, batch, options_.context, tokens_max_));
    const bench::Sequences sequences[] = {
        {.batch_slot = 1, .count = batch, .first = options_.context}, {.length = prompt}};
    KOHO_TRY(time_alone(report, sequences));
    return report;
  }

  Result<Report> decode(std::int64_t batch) {
    Report report;
    report.step = "decode";
    report.batch = batch;
    report.tokens = batch;
    KOHO_TRY(steps_->fill(0, batch, options_.context, tokens_max_));
    std::int64_t at = options_.context;
    const auto decodes = [batch](std::int64_t first) {
      return bench::Sequences{.count = batch, .first = first, .follows = true};
    };
    for (int i = 0; i < kStepsBefore; ++i) {
      KOHO_TRY(steps_->enqueue(decodes(at++)));
      KOHO_TRY(steps_->finish());
    }
    // Each step is enqueued before the one before it has ended, as the engine does.
    const Clock::time_point begin = Clock::now();
    KOHO_TRY(steps_->enqueue(decodes(at++)));
    for (std::int64_t i = 1; i < options_.steps; ++i) {
      const Clock::time_point host = Clock::now();
      KOHO_TRY(steps_->enqueue(decodes(at++)));
      report.host_ms += ms_since(host) / static_cast<double>(options_.steps - 1);
      KOHO_TRY(steps_->finish());
    }
    report.traffic = worker_->last_traffic();
    KOHO_TRY(steps_->finish());
    report.ms = ms_since(begin) / static_cast<double>(options_.steps);
    report.context = at;
    KOHO_TRY(classify(report, 10));
    record_kernels(report, 9);
    KOHO_TRY_ASSIGN(const MemoryUse use, worker_->backend().memory_use());
    if (use.allocations != allocations_)
      return make_error(ErrorCode::internal, "steps allocated device memory: {} times",
                        use.allocations - allocations_);
    return report;
  }

  const std::string machine() const { return worker_->backend().description(); }

 private:
  static constexpr int kStepsBefore = 4;
  static constexpr std::int64_t kFillTokens = 2048;  // at once

  /// Tokens of the longest prompt.
  std::int64_t prompt_max() const {
    std::int64_t most = 0;
    for (const std::int64_t tokens : options_.prefill) most = std::max(most, tokens);
    for (const std::int64_t tokens : options_.mixed) most = std::max(most, tokens);
    return most;
  }

  /// Times a step that begins when the one before it has ended, and where its time goes.
  Status time_alone(Report& report, std::span<const bench::Sequences> sequences) {
    std::vector<double> times;
    for (int round = 0; round < 4; ++round) {
      const Clock::time_point begin = Clock::now();
      KOHO_TRY(steps_->enqueue(sequences));
      report.host_ms = ms_since(begin);
      report.traffic = worker_->last_traffic();
      KOHO_TRY(steps_->finish());
      if (round > 0) times.push_back(ms_since(begin));
    }
    report.ms = bench::median(times);
    KOHO_TRY(classify(report, 2));
    record_kernels(report, 3);
    return {};
  }

  /// Mean over the sparse layers of how many different experts the last step's rows chose.
  Result<double> distinct_experts(std::int64_t rows) {
    if (config_.num_moe_layers() == 0) return 0.0;
    double sum = 0.0;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(rows * config_.num_experts_per_tok));
    for (std::int64_t layer = 0; layer < config_.num_moe_layers(); ++layer) {
      // The step again, up to this layer's router.
      std::int64_t routers = 0;
      worker_->backend().trace().select([&routers, layer](Op op, std::int64_t) {
        if (routers > layer) return false;
        if (op == Op::route) ++routers;
        return true;
      });
      KOHO_TRY(worker_->repeat());
      KOHO_TRY(worker_->backend().download(std::as_writable_bytes(std::span<std::int32_t>(ids)),
                                           worker_->model().chosen_experts(rows)));
      sum += static_cast<double>(std::set<std::int32_t>(ids.begin(), ids.end()).size());
    }
    worker_->backend().trace().select({});
    return sum / static_cast<double>(config_.num_moe_layers());
  }

  /// The classes and what each has to read in a step of `report`.
  std::vector<OpClass> classes(const Report& report) const {
    const auto is = [](Op wanted) {
      return [wanted](Op op, std::int64_t) { return op == wanted; };
    };
    const std::int64_t qkv = config_.query_width() + 2 * config_.key_value_width();
    const auto linear = [](std::int64_t wanted) {
      return
          [wanted](Op op, std::int64_t columns) { return op == Op::linear && columns == wanted; };
    };
    const double hidden = static_cast<double>(config_.hidden_size);
    const double layers = static_cast<double>(config_.num_hidden_layers);
    const double moe_layers = static_cast<double>(config_.num_moe_layers());
    const double dense_layers = layers - moe_layers;
    const double element = config_.quantization ? 1.0 : 2.0;
    const double query = static_cast<double>(config_.query_width());
    const double dense = static_cast<double>(config_.intermediate_size);
    const double expert = 3.0 * hidden * static_cast<double>(config_.moe_intermediate_size);
    const double shared = 3.0 * hidden * static_cast<double>(config_.shared_intermediate_size());
    const double kv_bytes = static_cast<double>(
        kv_bytes_per_token(config_, options_.kv_dtype == "fp8" ? DType::f8_e4m3 : DType::bf16));
    const bool decodes = report.step == "decode";
    double cached = static_cast<double>(report.tokens);
    if (decodes) cached = static_cast<double>(report.batch * report.context);
    if (report.step == "mixed")
      cached += static_cast<double>((report.batch - 1) * (report.context - 1));
    return {
        {"qkv", linear(qkv), layers * static_cast<double>(qkv) * hidden * element},
        {"rope, kv write", is(Op::qk_norm_rope_store_kv), 0.0},
        {"attention", is(Op::attention), cached * kv_bytes},
        {"o (and dense down)", linear(config_.hidden_size),
         layers * query * hidden * element + dense_layers * hidden * dense * element},
        {"dense gate_up", linear(2 * config_.intermediate_size),
         dense_layers * 2.0 * hidden * dense * element},
        {"norms", [](Op op, std::int64_t) { return op == Op::rms_norm || op == Op::add_rms_norm; },
         0.0},
        {"router", is(Op::route),
         moe_layers * static_cast<double>(config_.n_routed_experts) * hidden * 2.0},
        {"experts", is(Op::experts),
         moe_layers * (report.distinct_experts.value_or(0.0) * expert + shared) * element},
        {"head", linear(config_.vocab_size),
         static_cast<double>(config_.vocab_size) * hidden * 2.0},
        {"sampling", is(Op::sample), static_cast<double>(report.batch * config_.vocab_size) * 4.0},
        {"the rest",
         [](Op op, std::int64_t) {
           return op == Op::embed || op == Op::gather_rows || op == Op::silu_mul ||
                  op == Op::gather_input_ids || op == Op::commit_sampled;
         },
         0.0},
    };
  }

  Status classify(Report& report, int rounds) {
    if (options_.no_classes) return {};
    KOHO_TRY_ASSIGN(report.distinct_experts, distinct_experts(report.tokens));
    for (const OpClass& op_class : classes(report)) {
      // The whole step first: a class run for itself leaves odd arrays behind.
      worker_->backend().trace().select({});
      KOHO_TRY(worker_->repeat());
      worker_->backend().trace().select(op_class.selects);
      KOHO_TRY_ASSIGN(const std::unique_ptr<CapturedGraph> graph, worker_->capture_repeat());
      std::vector<double> times;
      for (int round = 0; round <= rounds; ++round) {
        const Clock::time_point begin = Clock::now();
        KOHO_TRY(graph->replay());
        KOHO_TRY(worker_->backend().synchronize());
        if (round > 0) times.push_back(ms_since(begin));
      }
      report.classes.push_back({op_class.name, bench::median(times), op_class.bytes});
    }
    worker_->backend().trace().select({});
    return {};
  }

  /// The kernels' own times in the step's graph and in each class's. A system that cannot record
  /// them is told once, and all else is measured as ever; an error of the device itself comes back
  /// with the next step.
  void record_kernels(Report& report, int rounds) {
    if (!options_.kernels || kernels_refused_) return;
    const Status status = try_record_kernels(report, rounds);
    worker_->backend().trace().select({});
    if (status.ok()) return;
    log::warning("kernels are not recorded: {}", status.error().message);
    kernels_refused_ = true;
    report.kernels = {};
  }

  Status try_record_kernels(Report& report, int rounds) {
    Worker& worker = *worker_;
    Backend& backend = worker.backend();
    {
      KOHO_TRY_ASSIGN(const std::unique_ptr<CapturedGraph> graph, worker.capture_repeat());
      KOHO_TRY(graph->replay());
      KOHO_TRY(backend.synchronize());
      const Clock::time_point begin = Clock::now();
      for (int round = 0; round < rounds; ++round) KOHO_TRY(graph->replay());
      KOHO_TRY(backend.synchronize());
      report.kernels.graph_ms = ms_since(begin) / rounds;
    }
    KOHO_TRY_ASSIGN(const std::unique_ptr<KernelProfiler> recorder, make_kernel_profiler());
    const auto record = [&]() -> Result<KernelSummary> {
      KOHO_TRY_ASSIGN(const std::unique_ptr<CapturedGraph> graph, worker.capture_repeat());
      std::vector<KernelSummary> replays;
      for (int round = 0; round <= rounds; ++round) {
        KOHO_TRY(graph->replay());
        KOHO_TRY(backend.synchronize());
        KOHO_TRY_ASSIGN(const std::vector<KernelTime> kernels, recorder->take());
        if (round > 0) replays.push_back(summarise(kernels));
      }
      return bench::median_replay(std::move(replays));
    };
    KOHO_TRY_ASSIGN(report.kernels.step, record());
    if (report.kernels.empty())
      return make_error(ErrorCode::unsupported, "CUPTI saw none on {}", backend.description());
    if (options_.no_classes) return {};
    for (const OpClass& op_class : classes(report)) {
      // As in classify().
      backend.trace().select({});
      KOHO_TRY(worker.repeat());
      KOHO_TRY(backend.synchronize());
      KOHO_TRY(recorder->take());
      backend.trace().select(op_class.selects);
      KOHO_TRY_ASSIGN(const KernelSummary alone, record());
      report.kernels.classes.push_back({op_class.name, static_cast<double>(alone.busy_ns) / 1e6});
    }
    return {};
  }

  const LatencyOptions& options_;
  const ModelConfig& config_;
  const ModelSources& sources_;
  std::int64_t tokens_max_ = 0;
  std::int64_t allocations_ = 0;
  bool kernels_refused_ = false;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<bench::Steps> steps_;
>>>>>>> kernels
};

/// What measures the same again.
std::string command_of(const LatencyOptions& options) {
  const bench::LatencySettings& steps = options.steps;
  const LatencyOptions usual;
  std::string command = "koho bench latency" + model_flags(options.selected);
  command += flag_text("ranks", options.ranks(), usual.ranks()) +
             flag_text("rank", options.rank, usual.rank) +
             flag_text("experts", options.experts, usual.experts);
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
Status complete(LatencyOptions& options, const ModelConfig& config) {
  bench::LatencySettings& steps = options.steps;
  steps.kv_dtype = options.kv_dtype == "fp8" ? DType::f8_e4m3 : DType::bf16;
  steps.classes = !options.no_classes;
  steps.shard.experts =
      options.experts == "whole" ? ExpertLayout::expert_parallel : ExpertLayout::tensor_parallel;
  steps.shard.rank = std::max<std::int64_t>(options.rank, 0);
  steps.random_tokens = options.alone();
  return check_shard(config, steps.shard);
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
                                 {"experts", log::quoted(options.experts)},
                                 {"links", options.alone() ? "\"excluded\"" : "\"measured\""}});
  return members;
}

Status run(LatencyOptions options) {
  KOHO_TRY_ASSIGN(const SelectedModel selected, load_selected_model(options.selected));
  KOHO_TRY(complete(options, selected.config));
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
  command
      .add_option("--ranks", options->steps.shard.ranks,
                  "Tensor-parallel ranks: groups of CPU threads, or GPUs")
      ->check(at_least(1))
      ->capture_default_str();
  command
      .add_option("--rank", options->rank, "Measure this one alone, on one device; all if left out")
      ->check(at_least(0));
  command
      .add_option("--experts", options->experts,
                  "Experts over ranks: whole (each rank has some) or sliced (a slice of all)")
      ->check(one_of({"whole", "sliced"}))
      ->capture_default_str();
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
