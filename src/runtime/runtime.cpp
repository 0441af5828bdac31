// SPDX-License-Identifier: Apache-2.0
// Checks the options, turns them into the engine's limits, then starts executor and engine in that
// order.
#include "runtime/runtime.h"

#include <algorithm>
#include <chrono>
#include <dlfcn.h>
#include <filesystem>
#include <unistd.h>
#include <utility>

#include "base/in_range.h"
#include "base/log.h"
#include "base/log_settings.h"
#include "engine/local_executor.h"
#include "engine/plan_writer.h"
#include "engine/process_executor.h"
#include "model/check_cut.h"
#include "model/kv_cache.h"
#include "runtime/detokenizing_decoder.h"
#include "runtime/sizes.h"
#include "runtime/worker_model.h"
#include "worker/rank_memory.h"

namespace koho {
namespace {

// A step of the largest prompt takes seconds on a GPU, also where ranks share it. On a slow CPU a
// step of a large model takes long and is no hang.
constexpr std::int64_t kStepDeadlineMsCuda = 30'000;
constexpr std::int64_t kStepDeadlineMsCpu = 600'000;

Status validate(const RuntimeOptions& options, const ModelConfig& config) {
  KOHO_TRY(in_range("ranks", options.ranks, 1, 64));
  KOHO_TRY(in_range("the number of sequences", options.sequences_max, 1, 1 << 14));
  KOHO_TRY(in_range("the context", options.context_max, 0, config.max_position_embeddings));
  KOHO_TRY(in_range("the number of cache pages", options.kv_pages, 0, (1 << 30) / kPageTokens));
  KOHO_TRY(in_range("the bytes of keys and values", options.kv_bytes, 0, std::int64_t{1} << 50));
  if (!(options.memory_share >= 0.0 && options.memory_share <= 1.0))
    return make_error(ErrorCode::invalid_argument,
                      "the share of memory must be above 0 and at most 1, found {}",
                      options.memory_share);
  if (!says_cache_size_once(options))
    return make_error(ErrorCode::invalid_argument,
                      "the cache's size is said once: in pages, in bytes, or by a share of memory");
  KOHO_TRY(in_range("the prefill chunk", options.prefill_chunk, 0, 1 << 20));
  KOHO_TRY(in_range("the queue", options.queue_max, 0, 1 << 19));
  KOHO_TRY(
      in_range("the deadline of a step in ms", options.step_deadline_ms, 0, std::int64_t{1} << 30));
  KOHO_TRY(in_range("the failures of the device", options.device_failures_max, 0, 1 << 10));
  return in_range("the time between tokens in ms", options.inter_token_ms_max, 0, 1 << 30);
}

EngineLimits engine_limits(const RuntimeOptions& options,
                           const RuntimeSizes& sizes,
                           std::int64_t vocabulary) {
  EngineLimits limits;
  limits.scheduler.tokens_per_page = static_cast<std::int32_t>(kPageTokens);
  limits.scheduler.pages = sizes.kv_pages;
  limits.scheduler.partitions =
      static_cast<std::int32_t>(options.ranks / shard_of(options).of_tokens().ranks);
  limits.scheduler.context_max = sizes.context_max;
  limits.scheduler.sequences_max = options.sequences_max;
  const std::int32_t queues = options.clients_share ? 3 : 1;
  constexpr std::int32_t kLiveMax = 1 << 20;  // the scheduler's
  limits.scheduler.live_max =
      std::min(queues * (2 * options.sequences_max + options.queue_max), kLiveMax);
  limits.scheduler.step_tokens_max = options.sequences_max + sizes.prefill_chunk;
  limits.scheduler.mixed_prefill_tokens_max = sizes.prefill_chunk;
  limits.scheduler.prefill_tokens_max = sizes.prefill_chunk;
  limits.scheduler.attention_tokens = sizes.attention_tokens;
  limits.scheduler.prefix_cache = options.prefix_cache;
  limits.vocabulary = static_cast<std::int32_t>(vocabulary);
  limits.requests_max = std::min(queues * (options.sequences_max + options.queue_max), kLiveMax);
  limits.choices_max = std::min(limits.choices_max, limits.scheduler.live_max / queues);
  limits.inter_token_us_max = options.inter_token_ms_max * 1000;
  limits.step_deadline_us = 1000 * (options.step_deadline_ms > 0 ? options.step_deadline_ms
                                    : options.device.kind == DeviceKind::cuda ? kStepDeadlineMsCuda
                                                                              : kStepDeadlineMsCpu);
  limits.failures_in_window_max = options.device_failures_max;
  return limits;
}

}  // namespace

bool says_cache_size_once(const RuntimeOptions& options) {
  return (options.kv_pages > 0 ? 1 : 0) + (options.kv_bytes > 0 ? 1 : 0) +
             (options.memory_share > 0.0 ? 1 : 0) <=
         1;
}

bool uses_processes(const RuntimeOptions& options) {
  if (options.executor == ExecutorKind::automatic) return options.device.kind == DeviceKind::cuda;
  return options.executor == ExecutorKind::process;
}

Result<std::string> find_worker() {
  namespace fs = std::filesystem;
  std::error_code failed;
  Dl_info info{};
  fs::path mine;
  if (dladdr(reinterpret_cast<void*>(&find_worker), &info) != 0)
    mine = fs::canonical(info.dli_fname, failed);
  if (mine.empty()) mine = fs::read_symlink("/proc/self/exe", failed);
  const fs::path beside = mine.parent_path() / "koho";
  if (access(beside.c_str(), X_OK) == 0) return beside.string();
  return make_error(ErrorCode::not_found,
                    "the program of worker processes is missing: expected it at {}; name it, or "
                    "let the ranks be threads",
                    beside.string());
}

namespace {

/// The options with the experts' cut decided.
RuntimeOptions decide_experts(const LoadedModel& model, RuntimeOptions options) {
  if (options.experts) return options;
  const ExpertsChoice choice = choose_experts(model.config, model.sources, options);
  options.experts = choice.layout;
  if (options.ranks > 1 && options.device.kind == DeviceKind::cuda)
    log::info("experts are {}: {} (--experts says otherwise)",
              choice.layout == ExpertLayout::expert_parallel ? "whole" : "sliced", choice.reason);
  return options;
}

/// What can be refused without a device.
Status check_options(const LoadedModel& model, const RuntimeOptions& options) {
  KOHO_TRY(validate(options, model.config));
  KOHO_TRY(check_cut(model.config, model.sources, shard_of(options)));
  KOHO_TRY(check_device_list(options.device, options.ranks));
  if (!uses_processes(options)) return check_devices(options.device, options.ranks);
  return {};
}

/// A CPU's cache takes memory as it is used, so nothing else refuses one that can never be filled.
Status check_host_holds(const RuntimeSizes& sizes, const RuntimeOptions& options) {
  KOHO_TRY_ASSIGN(const std::int64_t memory, device_memory_bytes(options.device));
  const std::int64_t wanted = sizes.kv_bytes * options.ranks;
  if (wanted <= memory) return {};
  return make_error(ErrorCode::resource_exhausted,
                    "{} cache pages take {:.1f} GB, this machine has {:.1f} GB of memory in all: "
                    "{} pages are the most",
                    sizes.kv_pages, static_cast<double>(wanted) / 1e9,
                    static_cast<double>(memory) / 1e9, memory / (wanted / sizes.kv_pages));
}

Result<RuntimePlan> decide(const LoadedModel& model,
                           const RuntimeOptions& options,
                           std::span<const RankMemory> devices,
                           const ProcessExecutor* processes) {
  CacheMemory memory;
  if (options.kv_pages == 0) {
    KOHO_TRY_ASSIGN(memory, cache_memory(model.config, model.sources, options, devices));
  }
  RuntimePlan plan;
  plan.sizes = decide_sizes(model.config, options, memory);
  if (options.device.kind == DeviceKind::cpu) KOHO_TRY(check_host_holds(plan.sizes, options));
  plan.limits = engine_limits(options, plan.sizes, model.config.vocab_size);
  bool& redecodes = plan.limits.scheduler.redecodes_output;
  if (processes != nullptr) {
    redecodes = processes->devices().front().redecodes_output != 0;  // its workers have the GPUs
  } else {
    KOHO_TRY_ASSIGN(redecodes, redecodes_output(options.device));
  }
  KOHO_TRY(validate(plan.limits));
  return plan;
}

/// Starts the worker processes; each opens its device and the model.
Result<std::unique_ptr<ProcessExecutor>> open_processes(const LoadedModel& model,
                                                        const RuntimeOptions& options) {
  ProcessExecutorSettings settings;
  settings.progress = options.device.progress;
  settings.group.ranks = options.ranks;
  settings.group.program = options.worker;
  if (settings.group.program.empty()) {
    KOHO_TRY_ASSIGN(settings.group.program, find_worker());
  }
  WorkerTask& task = settings.group.task;
  KOHO_TRY_ASSIGN(task.model, flat_model(model));
  KOHO_TRY(task.set_device(options.device));
  task.shard = shard_of(options);
  task.log_level = static_cast<std::uint32_t>(log::lowest());
  task.log_format = static_cast<std::uint32_t>(log::format());
  return ProcessExecutor::open(std::move(settings));
}

std::vector<RankMemory> memory_of(const ProcessExecutor& executor) {
  std::vector<RankMemory> devices;
  for (const DeviceReport& device : executor.devices())
    devices.push_back({.total = device.total_bytes, .free = device.free_bytes});
  return devices;
}

}  // namespace

Result<std::string> choose_ranks(const LoadedModel& model, RuntimeOptions& options) {
  if (options.ranks != 0) return std::string();
  options.ranks = std::max<std::int64_t>(std::ssize(options.device.devices), 1);
  if (options.device.kind == DeviceKind::cpu || !options.device.devices.empty())
    return std::string();
  std::vector<std::int64_t> gpus;
  while (std::ssize(gpus) < kWorkerRanksMax) {
    DeviceOptions one = options.device;
    one.devices = {static_cast<int>(gpus.size())};
    const Result<std::int64_t> bytes = device_memory_bytes(one);
    if (!bytes.ok() && gpus.empty()) return bytes.error();
    if (!bytes.ok()) break;
    gpus.push_back(*bytes);
  }
  options.ranks = fewest_ranks(model.config, model.sources, options, gpus);
  if (gpus.size() == 1) return std::string();
  return fmt::format(
      "ranks {}: the smallest number of this machine's {} GPUs that holds the model "
      "(--ranks N for another)",
      options.ranks, gpus.size());
}

Result<RuntimePlan> plan_runtime(const LoadedModel& model, const RuntimeOptions& given) {
  const RuntimeOptions options = decide_experts(model, given);
  KOHO_TRY(check_options(model, options));
  std::unique_ptr<ProcessExecutor> processes;
  std::vector<RankMemory> devices;
  if (uses_processes(options)) {
    KOHO_TRY_ASSIGN(processes, open_processes(model, options));
    devices = memory_of(*processes);
  } else {
    KOHO_TRY_ASSIGN(devices, open_devices(options));
  }
  return decide(model, options, devices, processes.get());
}

SamplingParameters default_sampling(const GenerationConfig& generation) {
  SamplingParameters sampling = generation.sampling;
  if (!generation.do_sample.value_or(true)) sampling.temperature = 0.0;
  return sampling;
}

Result<std::unique_ptr<Runtime>> Runtime::start(const std::filesystem::path& model,
                                                const RuntimeOptions& options) {
  KOHO_TRY_ASSIGN(LoadedModel loaded, load_model(model));
  std::optional<LoadedText> text;
  if (has_tokenizer(model)) {
    KOHO_TRY_ASSIGN(text, load_text(model, options.chat_template));
  }
  return start(std::move(loaded), std::move(text), options);
}

Result<std::unique_ptr<Runtime>> Runtime::start(LoadedModel model,
                                                std::optional<LoadedText> text,
                                                const RuntimeOptions& options) {
  std::unique_ptr<Runtime> runtime(new Runtime(std::move(model), std::move(text), options));
  KOHO_TRY(runtime->start());
  return runtime;
}

Runtime::Runtime(LoadedModel model, std::optional<LoadedText> text, const RuntimeOptions& options)
    : model_(std::move(model)), text_(std::move(text)), options_(decide_experts(model_, options)) {}

Runtime::~Runtime() = default;

Status Runtime::start() {
  const auto start = std::chrono::steady_clock::now();
  if (model_.synthetic) options_.device.synthetic = model_.synthetic.get();
  KOHO_TRY(check_options(model_, options_));
  std::unique_ptr<ProcessExecutor> processes;
  std::vector<RankMemory> devices;
  if (uses_processes(options_)) {
    KOHO_TRY_ASSIGN(processes, open_processes(model_, options_));
    devices = memory_of(*processes);
  } else if (options_.kv_pages == 0) {
    KOHO_TRY_ASSIGN(devices, open_devices(options_));
  }
  KOHO_TRY_ASSIGN(const RuntimePlan plan, decide(model_, options_, devices, processes.get()));
  sizes_ = plan.sizes;
  const EngineLimits& limits = plan.limits;
  if (sizes_.context_max < options_.context_max)
    log::warning("a context of {} tokens was asked for; the cache holds {} of one request",
                 options_.context_max, sizes_.context_max);
  if (processes) {
    KOHO_TRY(processes->load({.worker = worker_settings(limits), .bounds = plan_bounds(limits)}));
    device_name_ = processes->devices().front().name.view();
    processes_ = processes.get();
    executor_ = std::move(processes);
  } else {
    KOHO_TRY(start_threads(limits));
  }

  TextDecoderFactory decoders;
  if (text_) decoders = detokenizing_decoders(text_->tokenizer);
  KOHO_TRY_ASSIGN(engine_, Engine::start(limits, *executor_, clock_, std::move(decoders)));
  load_s_ = model_.load_s +
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {};
}

WorkerSettings Runtime::worker_settings(const EngineLimits& limits) const {
  return {.load = {.shard = shard_of(options_),
                   .limits = {.tokens_max = limits.scheduler.step_tokens_max,
                              .sequences_max = limits.scheduler.sequences_max,
                              .context_max = limits.scheduler.context_max,
                              .logit_rows_max = limits.scheduler.sequences_max,
                              .vocabulary = 0},
                   .kv_pages = sizes_.kv_pages,
                   .kv_dtype = options_.kv_dtype},
          .counts_slots = limits.scheduler.sequences_max,
          .mask_rows_max = limits.scheduler.sequences_max,
          .tokenizer_tokens = text_ ? text_->tokenizer.vocab_size() : model_.config.vocab_size};
}

Status Runtime::start_threads(const EngineLimits& limits) {
  LocalExecutorSettings settings;
  settings.worker = worker_settings(limits);
  settings.ranks = options_.ranks;
  settings.bounds = plan_bounds(limits);
  settings.device = options_.device;
  settings.make_backend = [device = options_.device, ranks = options_.ranks](std::int64_t rank) {
    return make_backend(device, rank, ranks);
  };
  KOHO_TRY_ASSIGN(executor_, LocalExecutor::create(model_.config, model_.sources, settings));
  KOHO_TRY_ASSIGN(device_name_, koho::device_name(options_.device));
  return {};
}

std::vector<std::int32_t> Runtime::worker_processes() const {
  if (processes_ == nullptr) return {};
  return processes_->processes();
}

GrammarCompiler& Runtime::grammars() {
  KOHO_CHECK(text_.has_value());
  std::call_once(grammars_started_, [this] {
    grammars_ = std::make_unique<GrammarCompiler>(text_->tokenizer, model_.config.vocab_size,
                                                  options_.grammars);
  });
  return *grammars_;
}

Request Runtime::default_request() const {
  Request request;
  request.sampling = default_sampling(model_.generation);
  request.stop_tokens = model_.stop_ids();
  if (text_) {
    request.reasoning_begin = text_->tokenizer.id_of("<think>").value_or(-1);
    request.reasoning_end = text_->tokenizer.id_of("</think>").value_or(-1);
  }
  return request;
}

}  // namespace koho
