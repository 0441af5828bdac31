// SPDX-License-Identifier: Apache-2.0
// `koho serve`: listens at once, loads the model, serves until a signal, then drains.
#include "app/serve.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "api/chat_completions.h"
#include "api/completions.h"
#include "app/build_info.h"
#include "app/command.h"
#include "app/number_format.h"
#include "app/periodic_look.h"
#include "app/progress_bar.h"
#include "app/rank_flags.h"
#include "app/sampling_markdown.h"
#include "app/serve_notes.h"
#include "app/serve_options.h"
#include "base/load_progress.h"
#include "base/log.h"
#include "chat/template_choice.h"
#include "sampling/parameter_table.h"
#include "server/host_check.h"
#include "server/served_model.h"
#include "server/server.h"
#include "worker/device.h"

namespace koho::app {
namespace {

constexpr std::int64_t kUsPerSecond = 1'000'000;
constexpr std::chrono::milliseconds kLook{50};

sigset_t served_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&set, signal);
  return set;
}

/// The next signal, or 0 after `ms`.
int wait_for_signal(std::int64_t ms) {
  const sigset_t set = served_signals();
  const timespec patience{.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1'000'000};
  const int signal = sigtimedwait(&set, nullptr, &patience);
  return signal > 0 ? signal : 0;
}

void log_steps(Runtime& runtime) {
  const Statistics now = runtime.engine().statistics();
  log::warning("running {} waiting {} pages free {} cached {} of {}", now.running, now.waiting,
               now.pages_free, now.pages_cached, now.pages_total);
  runtime.engine().log_recent_steps();
}

int exit_code_of(ErrorCode code) {
  return error_code_info(code).exit_code;
}

/// The device of --device. Where the ranks are threads it exists; worker processes look for
/// themselves. Errors: as choose_device, check_device_list and check_devices.
Result<DeviceKind> find_device(const ServeOptions& options) {
  RuntimeOptions runtime = options.runtime;
  KOHO_TRY_ASSIGN(runtime.device.kind, choose_device(options.device));
  if (runtime.ranks == 0) return runtime.device.kind;  // they are chosen among what there is
  KOHO_TRY(check_device_list(runtime.device, runtime.ranks));
  if (!uses_processes(runtime)) KOHO_TRY(check_devices(runtime.device, runtime.ranks));
  return runtime.device.kind;
}

int fail(const Error& error) {
  std::fprintf(stderr, "koho: error: %s\n", error.message.c_str());
  return exit_code_of(error.code);
}

/// Ends the process at once if a signal has come: nothing runs yet. Others wait until it serves.
void end_while_loading(const server::ServiceManager& manager) {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&ends, signal);
  const timespec now{};
  const int signal = sigtimedwait(&ends, nullptr, &now);
  if (signal < 0) return;
  log::info("{}: ended while loading", signal == SIGINT ? "SIGINT" : "SIGTERM");
  manager.tell("STOPPING=1");
  _exit(0);
}

/// Ends the server in order; a second signal meanwhile ends the process at once.
void drain(server::Server& server, std::int64_t seconds) {
  std::thread draining([&] { server.drain(seconds * kUsPerSecond); });
  std::atomic<bool> done{false};
  std::thread watching([&done] {
    while (!done.load()) {
      const int signal = wait_for_signal(50);
      if (signal == SIGINT || signal == SIGTERM) _exit(128 + signal);
    }
  });
  draining.join();
  done.store(true);
  watching.join();
}

/// SIGHUP: reads the key files again. If one cannot be read or has no key, the old keys stay, so
/// that a mistake in a file never leaves the server without keys.
void reload_keys(server::Core& core, const ServeOptions& options) {
  if (options.api_key_files.empty()) {
    log::info("SIGHUP: no --api-key-file to read again; other options need a restart");
    return;
  }
  Result<std::vector<server::ApiKeySettings>> keys = read_api_keys(options, true);
  if (!keys.ok()) {
    log::error("SIGHUP: the API keys are unchanged: {}", keys.error().message);
    return;
  }
  log::info("SIGHUP: {} API keys are in use now", keys->size());
  core.set_api_keys(std::move(*keys));
}

/// Serves until a signal or until the engine has failed. Returns the exit code.
int serve_until_signal(server::Server& server,
                       Runtime& runtime,
                       const ServeOptions& options,
                       server::ServiceManager& manager) {
  ThroughputLog throughput(options.log_stats_s);
  while (true) {
    throughput.look(runtime.engine().statistics());
    const int signal = wait_for_signal(std::min<std::int64_t>(500, manager.look_every_ms()));
    if (manager.has_watchdog()) manager.keep_alive(runtime.engine().takes_turns());
    if (signal == SIGUSR1) log_steps(runtime);
    if (signal == SIGHUP) reload_keys(server.core(), options);
    if (signal == SIGINT || signal == SIGTERM) {
      log::info("{}: draining, at most {} s", signal == SIGINT ? "SIGINT" : "SIGTERM",
                options.shutdown_timeout_s);
      manager.tell("STOPPING=1");
      drain(server, options.shutdown_timeout_s);
      return 0;
    }
    if (runtime.engine().statistics().broken) {
      server.core().set_failed("a restart: the engine has failed");
      log::error("the engine has failed; ending");
      drain(server, 0);
      return exit_code_of(ErrorCode::device_error);
    }
  }
}

std::string default_name(const std::string& model) {
  const std::filesystem::path path = std::filesystem::path(model).lexically_normal();
  const std::string name = path.has_filename() ? path.filename() : path.parent_path().filename();
  return name.empty() ? model : name;
}

/// The largest request, what limits it, and the size of the KV cache.
std::string cache_text(const RuntimeSizes& sizes, const ServeOptions& options) {
  const std::string_view bound = sizes.context_bound == ContextBound::asked ? "--max-model-len"
                                 : sizes.context_bound == ContextBound::model
                                     ? "the model's limit"
                                     : "the KV cache's limit";
  return fmt::format(
      "max_model_len {} tokens ({}); KV cache {} pages of {} tokens, {} per rank, shared by up to "
      "{} "
      "sequences",
      sizes.context_max, bound, sizes.kv_pages, kPageTokens,
      bytes_text(static_cast<std::uint64_t>(sizes.kv_bytes)), options.runtime.sequences_max);
}

struct OpenedModel {
  LoadedModel model;
  std::optional<LoadedText> text;
};

/// Reads the model directory. `device` chooses the random weights of --load-format dummy.
Result<OpenedModel> open_model(const ServeOptions& options, DeviceKind device) {
  OpenedModel opened;
  KOHO_TRY_ASSIGN(opened.model, options.random_weights
                                    ? load_model_without_weights(options.directory, device)
                                    : load_model(options.directory));
  if (has_tokenizer(options.directory)) {
    KOHO_TRY_ASSIGN(opened.text, load_text(options.directory, options.runtime.chat_template));
  }
  return opened;
}

/// What a server of this model and these flags will refuse or do otherwise than its user may think.
std::vector<std::string> what_will_not_work(const ServeOptions& options,
                                            const OpenedModel& opened,
                                            const RuntimeSizes& sizes) {
  std::vector<std::string> told;
  const std::filesystem::path directory = options.directory;
  if (!opened.text) {
    told.emplace_back(
        "no tokenizer.json: /v1/chat/completions, /v1/messages, /v1/responses, text prompts, stop "
        "strings and structured output will be refused; token ids work");
  } else if (const Result<std::optional<std::string>> text = chat::read_template_text(directory);
             text.ok() && !*text && options.runtime.chat_template == "auto") {
    told.push_back(fmt::format("no chat template: chats will have the built-in {}",
                               chat::template_style_name(opened.text->style)));
  }
  std::error_code ignored;
  if (!std::filesystem::exists(directory / "generation_config.json", ignored))
    told.emplace_back(
        "no generation_config.json: requests without temperature and top_p sample at 1");
  if (options.random_weights)
    told.emplace_back("--load-format dummy: the weights are random, the answers meaningless");
  if (sizes.context_bound == ContextBound::cache)
    told.push_back(
        fmt::format("requests above {} tokens will be refused: the KV cache holds no more; "
                    "the model has {}",
                    sizes.context_max, opened.model.config.max_position_embeddings));
  const std::int64_t tokens = std::int64_t{sizes.kv_pages} * kPageTokens;
  if (tokens / options.runtime.sequences_max < 1024)
    told.push_back(
        fmt::format("--max-num-seqs {} sequences have {} tokens of KV cache each: "
                    "requests will be preempted",
                    options.runtime.sequences_max, tokens / options.runtime.sequences_max));
  return told;
}

/// --check: calls every function of serve() that can refuse, without loading weights or listening.
int check(ServeOptions options) {
  if (const Status good = server::Server::check(options.server); !good.ok())
    return fail(good.error());
  // Random weights for a GPU take no host memory.
  const Result<OpenedModel> opened = open_model(options, DeviceKind::cuda);
  if (!opened.ok()) return fail(opened.error());
  const Result<DeviceKind> device = find_device(options);
  if (!device.ok()) return fail(device.error());
  options.runtime.device.kind = *device;
  const Result<std::string> chosen = choose_ranks(opened->model, options.runtime);
  if (!chosen.ok()) return fail(chosen.error());
  const Result<RuntimePlan> plan = plan_runtime(opened->model, options.runtime);
  if (!plan.ok()) return fail(plan.error());
  std::printf("koho serve: the flags and the model directory are valid: %s\n",
              cache_text(plan->sizes, options).c_str());
  if (!chosen->empty()) std::printf("koho serve: %s\n", chosen->c_str());
  for (const std::string& warning : what_will_not_work(options, *opened, plan->sizes))
    std::printf("koho serve: warning: %s\n", warning.c_str());
  // No error: this may be the configuration of the server that has the port.
  if (const Status free = server::Server::try_port(options.server); !free.ok())
    std::printf("koho serve: warning: %s; the server starts once the port is free\n",
                free.error().message.c_str());
  return 0;
}

int serve(ServeOptions options) {
  if (options.names.empty()) options.names.push_back(default_name(options.model));
  options.server.model_name = options.names.front();
  options.server.build_info = build_json();
  // Only this thread takes signals: all threads started after this have them blocked.
  const sigset_t set = served_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  SteadyClock clock;
  server::ServiceManager manager(options.service_manager, clock);
  LoadProgress progress(clock);
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<server::ServedModel> serving;  // outlives the server
  Result<std::unique_ptr<server::Server>> server = server::Server::start(options.server, clock);
  if (!server.ok()) return fail(server.error());
  server::Core& core = (*server)->core();
  log::info("listening on {}:{}{}, loading {}", options.server.host, (*server)->port(),
            options.server.tls_cert.empty() ? "" : " (HTTPS)", options.model);
  if (const std::string warning = server::host_warning(options.server); !warning.empty())
    log::warning("{}", warning);
  manager.tell("STATUS=loading");
  core.set_loading("the model files");
  std::optional<PeriodicLook> signals(std::in_place, kLook, [&] { end_while_loading(manager); });
  if (options.random_weights)
    log::warning("--load-format dummy: the weights are random, the answers are meaningless");
  const Result<DeviceKind> device = find_device(options);
  if (!device.ok()) return fail(device.error());
  options.runtime.device.kind = *device;
  Result<OpenedModel> opened = open_model(options, *device);
  if (!opened.ok()) return fail(opened.error());
  if (const Status good = choose_ranks_and_log(opened->model, options.runtime); !good.ok())
    return fail(good.error());
  core.set_loading("the weights", &progress);
  options.runtime.device.progress = &progress;
  options.runtime.clients_share = true;
  std::optional<LoadWatch> watch(progress);
  Result<std::unique_ptr<Runtime>> started =
      Runtime::start(std::move(opened->model), std::move(opened->text), options.runtime);
  watch.reset();
  if (!started.ok()) return fail(started.error());
  runtime = std::move(*started);
  serving = std::make_unique<server::ServedModel>(server::served_model_of(*runtime, options.names));
  serving->model.any_name = options.any_name;
  serving->model.strict_fields = options.strict_fields;
  serving->model.preserve_thinking = options.preserve_thinking;
  serving->model.enable_thinking = options.enable_thinking;
  SamplingParameters& sampling = serving->model.defaults.sampling;
  if (options.temperature) sampling.temperature = *options.temperature;
  if (options.top_p) sampling.top_p = *options.top_p;
  if (options.min_p) sampling.min_p = *options.min_p;
  if (options.top_k) sampling.top_k = *options.top_k;
  if (options.seed) sampling.seed = *options.seed;
  signals.reset();
  core.set_serving(*serving);
  log::info("{}", cache_text(runtime->sizes(), options));
  log::info("ready: \"{}\" on {}:{}, context {} tokens, batch of {} sequences, loaded in {:.1f} s",
            options.names.front(), options.server.host, (*server)->port(),
            serving->model.context_max(), runtime->options().sequences_max, runtime->load_s());
  tell_ready(options, (*server)->port());
  manager.tell("READY=1\nSTATUS=serving");
  const int code = serve_until_signal(**server, *runtime, options, manager);
  server->reset();
  log::info("ended");
  return code;
}

/// The tables of request fields in docs/server.md.
std::string fields_markdown() {
  std::string out = "| field | takes |\n|---|---|\n";
  const auto add = [&out](std::span<const api::RequestField> fields, std::string_view where) {
    for (const api::RequestField& field : fields)
      out += fmt::format("| `{}`{} | {} |\n", field.name, where, field.takes);
  };
  add(api::chat_completion_fields(), " (chat)");
  add(api::completion_fields(), " (completions)");
  std::vector<api::RequestField> others;  // docs/sampling-parameters.md has the rest
  for (const api::RequestField& field : api::shared_fields())
    if (find_parameter(field.name) == nullptr) others.push_back(field);
  add(others, "");
  return out;
}

log::Level level_of(const std::string& name) {
  if (name == "debug") return log::Level::debug;
  if (name == "warning") return log::Level::warning;
  return name == "error" ? log::Level::error : log::Level::info;
}

}  // namespace

Runner add_serve(CommandLine& /*command*/) {
  return [] { return Status(); };
}

int run_serve(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") {
      std::fputs(serve_help().c_str(), stdout);
      return 0;
    }
    if (argument == "--version") {
      std::puts(version_text().c_str());
      return 0;
    }
    if (argument == "--help-sampling") {
      std::fputs(sampling_parameters_markdown().c_str(), stdout);
      return 0;
    }
    if (argument == "--help-markdown") {
      std::fputs(fields_markdown().c_str(), stdout);
      return 0;
    }
  }
  Result<ServeOptions> options = read_serve_options(arguments);
  if (!options.ok()) {
    const bool usage = options.error().code == ErrorCode::invalid_argument;
    std::fprintf(stderr, "koho: error: %s%s\n", options.error().message.c_str(),
                 usage ? " (see koho serve --help)" : "");
    return exit_code_of(options.error().code);
  }
  log::configure(level_of(options->log_level), options->log_format == "json" ? log::Format::json
                                               : options->log_format == "text"
                                                   ? log::Format::text
                                                   : log::Format::automatic);
  for (const std::string& warning : options->warnings) log::warning("{}", warning);
  if (options->print_config) {
    std::fputs(print_serve_config(*options).c_str(), stdout);
    return 0;
  }
  options->runtime.worker = kOwnProgram;
  if (options->check) return check(std::move(*options));
  return serve(std::move(*options));
}

}  // namespace koho::app
