// SPDX-License-Identifier: Apache-2.0
// From a model directory and options to a running engine: `koho run`, `batch`, `bench`, the server
// and the C ABI all start here. A Runtime owns the model, the executor and the engine, and decides
// the sizes that the options leave open. It serves no request itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/executor.h"
#include "grammar/grammar_compiler.h"
#include "model/sharding.h"
#include "runtime/loaded_model.h"
#include "runtime/loaded_text.h"
#include "tensor/dtype.h"
#include "worker/device.h"
#include "worker/worker.h"

namespace koho {

/// Where the ranks run: as processes of their own, so that what happens to a device stays with
/// them, or as threads of this process. `automatic`: processes on CUDA, threads on the CPU.
enum class ExecutorKind : std::uint8_t { automatic, process, thread };

/// What a caller may choose. 0 leaves a size to the runtime.
struct RuntimeOptions {
  DeviceOptions device{};
  std::int64_t ranks = 1;
  ExecutorKind executor = ExecutorKind::automatic;
  std::string worker{};  // the program of worker processes; empty: find_worker()
  std::optional<ExpertLayout> experts = ExpertLayout::expert_parallel;  // none: choose_experts()
  AttentionLayout attention = AttentionLayout::tensor_parallel;
  std::int32_t sequences_max = 64;  // rows of a decode step
  std::int32_t context_max = 0;     // tokens of prompt and answer; 0 = what the model has
  std::int32_t kv_pages = 0;        // of 64 tokens; 0 = what is needed, within memory
  std::int64_t kv_bytes = 0;        // instead: what the cache takes on every rank
  double memory_share = 0.0;        // instead: of a GPU's memory, or of the host's on the CPU, what
                                    // weights and cache take
  std::int32_t prefill_chunk = 0;   // prompt tokens in one step; 0 = by device
  std::int32_t queue_max = 1024;    // requests accepted beside those that run
  /// Three times as many. The server gives two thirds away, half of these to one client alone: so
  /// whoever comes to a queue that another has filled finds places. The last third is for requests
  /// whose clients are told that they ended before the engine has counted it.
  bool clients_share = false;
  std::int64_t inter_token_ms_max = 0;   // EngineLimits::inter_token_us_max; 0 = no bound
  std::int64_t step_deadline_ms = 0;     // a step that takes longer is a hang; 0 = by device
  std::int32_t device_failures_max = 3;  // in ten minutes, before the engine gives up; 0 = any
  DType kv_dtype = DType::bf16;          // or f8_e4m3
  bool prefix_cache = true;
  std::string chat_template = "auto";
  GrammarLimits grammars{};
};

/// Whether at most one of kv_pages, kv_bytes and memory_share is given.
bool says_cache_size_once(const RuntimeOptions& options);

/// Why a request may not have more tokens.
enum class ContextBound : std::uint8_t { asked, model, cache };

/// What was decided (runtime/sizes.h).
struct RuntimeSizes {
  std::int64_t kv_bytes_per_token = 0;  // on every rank that holds the token
  std::int64_t kv_bytes = 0;            // on every rank
  std::int32_t kv_pages = 0;            // of all ranks: each holds a part of every page, or, under
                                        // data-parallel attention, as many pages as the others
  std::int32_t context_max = 0;         // tokens of one request: there are pages for so many
  ContextBound context_bound = ContextBound::model;
  std::int32_t prefill_chunk = 0;
  std::int32_t attention_tokens = 0;  // Limits::attention_tokens
};

/// What options and a model come to.
struct RuntimePlan {
  RuntimeSizes sizes;
  EngineLimits limits;
};

/// Sets `options.ranks` where it is 0: one on the CPU; one for each of options.device.devices; else
/// the smallest number of this machine's GPUs that holds the model. Returns what to tell the user
/// of a choice that there was, or "". Errors: those of the devices.
Result<std::string> choose_ranks(const LoadedModel& model, RuntimeOptions& options);

/// All that Runtime::start decides and refuses before weights are placed. Opens the devices, in
/// worker processes where Runtime::start would, and lets them go again. Errors: invalid_argument
/// (an option); unsupported (a split that does not come out even, a device this build lacks);
/// resource_exhausted (the cache); those of the device; not_found (no program for workers).
Result<RuntimePlan> plan_runtime(const LoadedModel& model, const RuntimeOptions& options);

/// Whether the ranks are processes.
bool uses_processes(const RuntimeOptions& options);

/// The program of worker processes: `koho` in the folder of the file that this code is part of,
/// engine.so or a program. Errors: not_found.
Result<std::string> find_worker();

class ProcessExecutor;

class Runtime {
 public:
  /// Opens the model, places its weights on every rank and starts the engine. Errors: those of the
  /// files; those of plan_runtime; those of the ranks; resource_exhausted.
  static Result<std::unique_ptr<Runtime>> start(const std::filesystem::path& model,
                                                const RuntimeOptions& options);
  /// The same with a model that is already open.
  static Result<std::unique_ptr<Runtime>> start(LoadedModel model,
                                                std::optional<LoadedText> text,
                                                const RuntimeOptions& options);
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  ~Runtime();

  Engine& engine() { return *engine_; }
  const LoadedModel& model() const { return model_; }
  /// Tokenizer and template; null if the directory has no tokenizer.json.
  const LoadedText* text() const { return text_ ? &*text_ : nullptr; }
  const RuntimeOptions& options() const { return options_; }
  const RuntimeSizes& sizes() const { return sizes_; }
  /// Makes Request::grammar for this engine's requests; started by the first call. Requires:
  /// text(). Threads: any.
  GrammarCompiler& grammars();
  /// The first rank's device: "NVIDIA H200", "cpu avx512 2 threads".
  const std::string& device_name() const { return device_name_; }
  /// The ranks' processes as of now; empty for threads. Threads: any.
  std::vector<std::int32_t> worker_processes() const;
  /// Opening, placing and starting together.
  double load_s() const { return load_s_; }

  /// A request with the model's own defaults: stop tokens, thinking's tokens, and the sampling of
  /// generation_config.json.
  Request default_request() const;

 private:
  Runtime(LoadedModel model, std::optional<LoadedText> text, const RuntimeOptions& options);
  Status start();
  WorkerSettings worker_settings(const EngineLimits& limits) const;
  Status start_threads(const EngineLimits& limits);

  LoadedModel model_;
  std::optional<LoadedText> text_;
  RuntimeOptions options_;
  RuntimeSizes sizes_;
  std::string device_name_;
  double load_s_ = 0.0;
  std::once_flag grammars_started_;
  std::unique_ptr<GrammarCompiler> grammars_;
  SteadyClock clock_;
  std::unique_ptr<Executor> executor_;
  const ProcessExecutor* processes_ = nullptr;  // executor_, if it is one
  std::unique_ptr<Engine> engine_;              // last: it stops first
};

/// The sampling that a model's generation_config.json advises; what it leaves out is at its
/// neutral value.
SamplingParameters default_sampling(const GenerationConfig& generation);

}  // namespace koho
