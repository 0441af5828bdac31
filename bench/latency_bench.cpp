// SPDX-License-Identifier: Apache-2.0
#include "bench/latency_bench.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/arithmetic.h"
#include "base/log.h"
#include "bench/median.h"
#include "cuda/profile/kernel_profiler.h"
#include "plan/step_plan.h"

namespace koho::bench {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

Status LatencyBench::check_lengths() const {
  const std::int64_t positions = config_.max_position_embeddings;
  for (const auto& [flag, prompts] :
       {std::pair("--prefill", &settings_.prefill), std::pair("--mixed", &settings_.mixed)})
    for (const std::int64_t tokens : *prompts)
      if (tokens > positions)
        return make_error(ErrorCode::invalid_argument, "{} ({}) exceeds the model's {} positions",
                          flag, tokens, positions);
  // As differences: a sum could overflow.
  if (settings_.context > positions || settings_.steps > positions - kStepsBefore ||
      settings_.context > positions - kStepsBefore - settings_.steps)
    return make_error(ErrorCode::invalid_argument,
                      "--context ({}), --steps ({}) and {} steps before them exceed the model's "
                      "{} positions",
                      settings_.context, settings_.steps, kStepsBefore, positions);
  return {};
}

std::int64_t LatencyBench::prompt_max() const {
  std::int64_t most = 0;
  for (const std::int64_t tokens : settings_.prefill) most = std::max(most, tokens);
  for (const std::int64_t tokens : settings_.mixed) most = std::max(most, tokens);
  return most;
}

Status LatencyBench::start(std::unique_ptr<Backend> backend,
                           std::unique_ptr<Communicator> communicator) {
  const std::int64_t decodes_max =
      *std::max_element(settings_.batches.begin(), settings_.batches.end());
  // A prompt beside decodes has the first batch slot.
  const std::int64_t batch_max = decodes_max + (settings_.mixed.empty() ? 0 : 1);
  std::int64_t mixed_max = 0;
  for (const std::int64_t prompt : settings_.mixed)
    mixed_max = std::max(mixed_max, decodes_max + prompt);
  // Contexts grow by the timed steps and some to get going.
  const std::int64_t decoded = settings_.context + settings_.steps + kStepsBefore;
  const std::int64_t context_max = std::max(decoded, prompt_max());
  const std::int64_t pages_each = ceil_div(decoded, kPageTokens);
  const std::int64_t pages_long = ceil_div(context_max, kPageTokens);  // of the first sequence
  // Room for contexts to be filled by more than a step's tokens at a time.
  tokens_max_ = std::max({prompt_max(), batch_max, mixed_max,
                          std::min<std::int64_t>(settings_.context, kFillTokens), std::int64_t{1}});
  WorkerSettings settings;
  settings.load.shard = settings_.shard;
  settings.load.limits = {.tokens_max = tokens_max_,
                          .sequences_max = batch_max,
                          .context_max = context_max,
                          .logit_rows_max = batch_max,
                          .vocabulary = 0};
  settings.load.kv_pages = std::max(batch_max * pages_each, pages_long);
  settings.load.kv_dtype = settings_.kv_dtype;
  settings.tokenizer_tokens = config_.vocab_size;
  const Clock::time_point begin = Clock::now();
  KOHO_TRY_ASSIGN(Worker worker, Worker::create(config_, sources_, settings, std::move(backend),
                                                std::move(communicator)));
  worker_ = std::make_unique<Worker>(std::move(worker));
  steps_ = std::make_unique<Steps>(*worker_, config_.vocab_size, batch_max, pages_each, pages_long);
  KOHO_TRY_ASSIGN(const MemoryUse use, worker_->backend().memory_use());
  started_ = fmt::format("{}, start {:.1f} s, {:.2f} GB held, {:.2f} GB free",
                         worker_->backend().description(), ms_since(begin) / 1e3,
                         static_cast<double>(use.held_bytes) / 1e9,
                         static_cast<double>(use.free_bytes) / 1e9);
  allocations_ = use.allocations;
  return {};
}

Status LatencyBench::time_alone(LatencyReport& report, std::span<const Sequences> sequences) {
  std::vector<double> times;
  for (int round = 0; round < 4; ++round) {
    const Clock::time_point begin = Clock::now();
    KOHO_TRY(steps_->enqueue(sequences));
    report.host_ms = ms_since(begin);
    report.traffic = worker_->last_traffic();
    KOHO_TRY(steps_->finish());
    if (round > 0) times.push_back(ms_since(begin));
  }
  report.ms = median(times);
  KOHO_TRY(classify(report, 2));
  record_kernels(report, 3);
  return {};
}

Result<LatencyReport> LatencyBench::prefill(std::int64_t tokens) {
  LatencyReport report;
  report.step = "prefill";
  report.batch = 1;
  report.tokens = tokens;
  report.context = tokens;
  const Sequences prompt{.length = tokens};
  KOHO_TRY(time_alone(report, {&prompt, 1}));
  return report;
}

Result<LatencyReport> LatencyBench::mixed(std::int64_t batch, std::int64_t prompt) {
  LatencyReport report;
  report.step = "mixed";
  report.batch = batch + 1;
  report.tokens = batch + prompt;
  report.context = settings_.context;
  KOHO_TRY(steps_->fill(1, batch, settings_.context, tokens_max_));
  const Sequences sequences[] = {{.batch_slot = 1, .count = batch, .first = settings_.context},
                                 {.length = prompt}};
  KOHO_TRY(time_alone(report, sequences));
  return report;
}

Result<LatencyReport> LatencyBench::decode(std::int64_t batch) {
  LatencyReport report;
  report.step = "decode";
  report.batch = batch;
  report.tokens = batch;
  KOHO_TRY(steps_->fill(0, batch, settings_.context, tokens_max_));
  const auto decodes = [&](std::int64_t first) {
    return Sequences{.count = batch, .first = first, .follows = !settings_.random_tokens};
  };
  std::int64_t at = settings_.context;
  for (int i = 0; i < kStepsBefore; ++i) {
    KOHO_TRY(steps_->enqueue(decodes(at++)));
    KOHO_TRY(steps_->finish());
  }
  // Each step is enqueued before the one before it has ended, as the engine does.
  std::vector<double> times;  // from the end of a step to the next one's
  Clock::time_point last = Clock::now();
  const auto finish = [&]() -> Status {
    KOHO_TRY(steps_->finish());
    times.push_back(ms_since(std::exchange(last, Clock::now())));
    return {};
  };
  KOHO_TRY(steps_->enqueue(decodes(at++)));
  for (std::int64_t i = 1; i < settings_.steps; ++i) {
    const Clock::time_point host = Clock::now();
    KOHO_TRY(steps_->enqueue(decodes(at++)));
    report.host_ms += ms_since(host) / static_cast<double>(settings_.steps - 1);
    KOHO_TRY(finish());
  }
  report.traffic = worker_->last_traffic();
  KOHO_TRY(finish());
  report.ms = median(times);
  report.context = at;
  KOHO_TRY(classify(report, 10));
  record_kernels(report, 9);
  KOHO_TRY_ASSIGN(const MemoryUse use, worker_->backend().memory_use());
  if (use.allocations != allocations_)
    return make_error(ErrorCode::internal, "steps allocated device memory: {} times",
                      use.allocations - allocations_);
  return report;
}

Result<ExpertLoad> LatencyBench::expert_load(std::int64_t rows) {
  const bool whole = settings_.shard.experts == ExpertLayout::expert_parallel;
  const std::int64_t layers = config_.num_moe_layers();
  const std::int64_t experts_each = config_.n_routed_experts / settings_.shard.ranks;
  ExpertLoad load;
  if (whole) load.of_rank.assign(static_cast<std::size_t>(settings_.shard.ranks), 0.0);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows * config_.num_experts_per_tok));
  for (std::int64_t layer = 0; layer < layers; ++layer) {
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
    const std::set<std::int32_t> chosen(ids.begin(), ids.end());
    load.distinct += static_cast<double>(chosen.size()) / static_cast<double>(layers);
    if (!whole) continue;
    std::vector<double> of_rank(load.of_rank.size());
    for (const std::int32_t expert : chosen)
      of_rank[static_cast<std::size_t>(expert / experts_each)] += 1.0 / static_cast<double>(layers);
    for (std::size_t rank = 0; rank < of_rank.size(); ++rank) load.of_rank[rank] += of_rank[rank];
    load.slowest += *std::max_element(of_rank.begin(), of_rank.end());
  }
  worker_->backend().trace().select({});
  return load;
}

Status LatencyBench::classify(LatencyReport& report, int rounds) {
  if (!settings_.classes) return {};
  if (config_.num_moe_layers() > 0) {
    KOHO_TRY_ASSIGN(report.experts, expert_load(report.tokens));
  }
  for (const OpClass& op_class : op_classes(config_, settings_.shard, settings_.kv_dtype, report)) {
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
    report.classes.push_back({op_class.name, median(times), op_class.bytes});
  }
  worker_->backend().trace().select({});
  return {};
}

void LatencyBench::record_kernels(LatencyReport& report, int rounds) {
  if (!settings_.kernels || kernels_refused_) return;
  const Status status = try_record_kernels(report, rounds);
  worker_->backend().trace().select({});
  if (status.ok()) return;
  log::warning("kernels are not recorded: {}", status.error().message);
  kernels_refused_ = true;
  report.kernels = {};
}

Status LatencyBench::try_record_kernels(LatencyReport& report, int rounds) {
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
    return median_replay(std::move(replays));
  };
  KOHO_TRY_ASSIGN(report.kernels.step, record());
  if (report.kernels.empty())
    return make_error(ErrorCode::unsupported, "CUPTI saw none on {}", backend.description());
  if (!settings_.classes) return {};
  for (const OpClass& op_class : op_classes(config_, settings_.shard, settings_.kv_dtype, report)) {
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

}  // namespace koho::bench
