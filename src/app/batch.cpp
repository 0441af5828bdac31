// SPDX-License-Identifier: Apache-2.0
// `koho batch`: reads a file of requests and writes a file of answers. It reads a line when the
// batch has room for it and writes an answer when it is complete. Formats and rules: docs/batch.md.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <unistd.h>

#include "api/batch_line.h"
#include "app/batch_answer.h"
#include "app/batch_progress.h"
#include "app/batch_request.h"
#include "app/command.h"
#include "app/constraint_flags.h"
#include "app/model_directory.h"
#include "app/model_flags.h"
#include "app/rank_flags.h"
#include "app/sampling_flags.h"
#include "base/json_writer.h"
#include "base/line_reader.h"
#include "base/log.h"
#include "runtime/runtime.h"
#include "server/batch_output.h"
#include "server/line_job.h"
#include "server/served_model.h"

namespace koho::app {
namespace {

using server::BatchOutput;
using server::IdHash;
using server::IdSet;

constexpr std::size_t kInputLineBytesMax = api::kBatchLineBytesMax;
// An answer with 20 alternatives for each of 200,000 tokens.
constexpr std::size_t kOutputLineBytesMax = std::size_t{256} << 20U;

struct BatchOptions {
  std::string words[3];  // MODEL, IN and OUT as they are given
  std::string input;
  std::string output;
  ModelFlags selected;
  RankFlags spread;
  std::string kv_dtype = "bf16";
  bool no_prefix_cache = false;
  bool restart = false;
  RuntimeOptions runtime;
  SamplingFlags sampling;
};

// Set by SIGINT and SIGTERM; global because signal handlers are.
std::atomic<bool> interrupted{false};

extern "C" void on_end_signal(int /*signal*/) {
  interrupted.store(true);
}

/// The first signal ends the run in order, the second ends the process. When the reader of standard
/// output goes away, the next write fails instead of raising SIGPIPE.
void listen_for_signals() {
  struct sigaction action {};
  action.sa_handler = on_end_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

/// Tasks whose streams have events to read. The engine's thread adds to it.
class ReadyList {
 public:
  void add(std::size_t task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(task);
    }
    arrived_.notify_one();
  }
  /// Swaps the list into `tasks`; waits up to `patience` for the first entry.
  void take(std::vector<std::size_t>& tasks, std::chrono::milliseconds patience) {
    tasks.clear();
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, patience, [this] { return !tasks_.empty(); });
    tasks_.swap(tasks);
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::size_t> tasks_;
};

server::ServerSettings quiet_settings() {
  server::ServerSettings settings;
  settings.log_requests = false;
  return settings;
}

/// Lines in OpenAI's format name any model: they get this one.
server::ServedModel served_model(Runtime& runtime,
                                 const std::string& name,
                                 const SamplingFlags& flags) {
  server::ServedModel serving = server::served_model_of(runtime, {name});
  serving.model.any_name = true;
  flags.apply(serving.model.defaults);
  serving.model.tokens_max_default = std::max(flags.tokens_max, 0);
  return serving;
}

/// Runs the batch: reads lines, submits requests, writes answers.
class BatchRun {
 public:
  BatchRun(Runtime& runtime,
           const std::string& model,
           const SamplingFlags& flags,
           LineReader input,
           BatchOutput output)
      : runtime_(runtime),
        serving_(served_model(runtime, model, flags)),
        core_(quiet_settings(), clock_),
        requests_(runtime, flags),
        input_(std::move(input)),
        output_(std::move(output)),
        progress_(runtime.load_s()),
        // As many requests again wait in the engine, so that a finished sequence is replaced at
        // once.
        tasks_(2 * static_cast<std::size_t>(runtime.options().sequences_max)) {
    for (std::size_t i = tasks_.size(); i > 0; --i) free_.push_back(i - 1);
    core_.set_serving(serving_);
  }

  /// Errors: io_error, unavailable, cancelled; invalid_argument if every line was refused. The
  /// error of one line is written as its answer.
  Status run() {
    Status status = work();
    progress_.finish(totals_);
    for (const auto& [name, lines] : requests_.unknown_fields())
      log::warning("unknown field \"{}\" ignored in {} lines", name, lines);
    if (!status.ok()) return status;
    KOHO_TRY(output_.close());
    if (totals_.answered + totals_.skipped == totals_.skipped_refused &&
        totals_.refused + totals_.skipped_refused > 0)
      return make_error(
          ErrorCode::invalid_argument,
          "every line was refused: OUT has the errors; --restart runs the lines again");
    return {};
  }

 private:
  struct Task {
    std::int64_t line = 0;
    // One of the two, or the place is free.
    std::shared_ptr<OutputStream> stream;
    std::optional<server::LineJob> job;  // of a line in OpenAI's format
    std::optional<BatchAnswer> answer;
  };

  Status work() {
    std::vector<std::size_t> ready;
    while (!at_end_ || free_.size() < tasks_.size()) {
      KOHO_TRY(take_lines());
      progress_.show(totals_, tasks_.size() - free_.size(), input_);
      if (interrupted.load())
        return make_error(ErrorCode::cancelled,
                          "interrupted; run the same command again to resume");
      // Short waits while lines are expected: a pipe may have one at any time.
      const bool idle = free_.size() == tasks_.size();
      if (idle && at_end_) break;
      ready_->take(ready, std::chrono::milliseconds(at_end_ || free_.empty() ? 100
                                                    : idle                   ? 0
                                                                             : 20));
      for (const std::size_t index : ready) KOHO_TRY(read_events(index));
    }
    return {};
  }

  Status take_lines() {
    while (!at_end_ && !free_.empty() && !interrupted.load()) {
      std::string_view line;
      const bool idle = free_.size() == tasks_.size();
      KOHO_TRY_ASSIGN(const LineReader::State state, input_.next(line, idle ? 100 : 0));
      if (state == LineReader::State::nothing_yet) return {};
      if (state == LineReader::State::end) {
        at_end_ = true;
      } else if (state == LineReader::State::too_long) {
        KOHO_TRY(refuse_long_line());
      } else if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
        KOHO_TRY(take(line));
      }
    }
    return {};
  }

  Status take(std::string_view line) {
    openai_ = api::is_batch_line(line).value_or(openai_);
    if (openai_) return take_openai_line(line);
    BatchLine read = requests_.read(line);
    const bool known = read.id != "null";
    const IdHash hash = server::hash_of(read.id);
    // If an earlier run refused the line as a duplicate, the id still belongs to the other line.
    if (skip_refused(read.id)) return {};
    if (known && !seen_.insert(hash).second)
      return refuse(read.id, make_error(ErrorCode::invalid_argument,
                                        "an earlier line has the same id: ids must be unique"));
    if (known && output_.answered().contains(hash)) {
      ++totals_.skipped;
      return {};
    }
    if (!read.request.ok()) return refuse(read.id, read.request.error());

    const std::size_t index = free_.back();
    Task& task = tasks_[index];
    task.line = input_.number();
    task.answer.emplace(read.id, *read.request, read.parser);
    Result<std::shared_ptr<OutputStream>> stream = runtime_.engine().submit(
        std::move(read.request).value(), [ready = ready_, index] { ready->add(index); });
    if (!stream.ok()) {
      if (stream.error().code == ErrorCode::unavailable) return std::move(stream).error();
      return refuse(read.id, stream.error());
    }
    free_.pop_back();
    task.stream = std::move(stream).value();
    // Events that arrived before the task had its stream were not noticed: look now.
    ready_->add(index);
    return {};
  }

  Status take_openai_line(std::string_view line) {
    api::BatchLine read;
    api::Refusal refused = api::read_batch_line(line, input_.number(), read);
    const bool known = !read.custom_id.empty();
    const std::string id = known ? json_string(read.custom_id) : "null";
    if (skip_refused(id)) return {};
    if (known && !seen_.insert(server::hash_of(id)).second && !refused)
      refused = api::wrong_field("custom_id", "an earlier line has the same custom_id",
                                 "duplicate_custom_id");
    if (refused) {
      ++totals_.refused;
      return output_.write(api::batch_error_line(read, *refused));
    }
    if (output_.answered().contains(server::hash_of(id))) {
      ++totals_.skipped;
      return {};
    }
    const std::size_t index = free_.back();
    free_.pop_back();
    start_job(index, std::move(read));
    return {};
  }

  void start_job(std::size_t index, api::BatchLine line) {
    tasks_[index].job.emplace(
        core_, serving_, std::move(line),
        server::LineJob::Options{.wake = [ready = ready_, index] { ready->add(index); }});
    // Events that arrived before the task had its job were not noticed: look now.
    ready_->add(index);
  }

  Status read_job(std::size_t index) {
    Task& task = tasks_[index];
    if (!task.job->poll()) return {};
    if (task.job->retry_after_s() > 0 && !runtime_.engine().statistics().broken) {
      start_job(index, task.job->take_line());
      return {};
    }
    if (task.job->status() >= 500 && runtime_.engine().statistics().broken)
      return make_error(ErrorCode::device_error, "the engine has failed; see the log");
    if (task.job->status() == 200) {
      ++totals_.answered;
      const api::AnswerTotals& answer = task.job->totals();
      totals_.cut += task.job->is_cut() ? 1 : 0;
      totals_.prompt_tokens += answer.usage.prompt_tokens;
      totals_.cached_tokens += answer.usage.cached_tokens;
      totals_.generated_tokens += answer.usage.completion_tokens;
    } else {
      ++totals_.refused;
    }
    KOHO_TRY(output_.write(task.job->output()));
    task.job.reset();
    free_.push_back(index);
    return {};
  }

  Status read_events(std::size_t index) {
    Task& task = tasks_[index];
    if (task.job) return read_job(index);
    if (!task.stream) return {};
    while (true) {
      const OutputStream::Read read = task.stream->poll(event_);
      if (read == OutputStream::Read::nothing) return {};
      if (read == OutputStream::Read::done) break;
      totals_.generated_tokens += event_.token >= 0 ? 1 : 0;
      task.answer->add(event_);
    }
    const Summary& summary = task.stream->summary();
    if (summary.ending == Ending::completed) {
      ++totals_.answered;
      totals_.cut += task.answer->is_cut() ? 1 : 0;
      totals_.prompt_tokens += summary.usage.prompt_tokens;
      totals_.cached_tokens += summary.usage.cached_tokens;
      KOHO_TRY(output_.write(task.answer->line(summary)));
    } else {
      // An error of the machine, not of the line, ends the run; the next run repeats the line.
      if (runtime_.engine().statistics().broken) return summary.error;
      ++totals_.refused;
      KOHO_TRY(output_.write(error_line(task.answer->id(), task.line, summary.error)));
    }
    task.stream.reset();
    task.answer.reset();
    free_.push_back(index);
    return {};
  }

  /// Whether an earlier run refused this line, which is then counted.
  bool skip_refused(std::string_view id) {
    if (!output_.refused(input_.number(), id)) return false;
    ++totals_.skipped;
    ++totals_.skipped_refused;
    return true;
  }

  Status refuse_long_line() {
    const Error error =
        make_error(ErrorCode::resource_exhausted, "the line is longer than {} bytes, the limit",
                   kInputLineBytesMax);
    if (skip_refused("null")) return {};
    if (!openai_) return refuse("null", error);
    ++totals_.refused;
    return output_.write(api::batch_error_line(
        {.number = input_.number()}, api::wrong_field("", error.message, "invalid_json_line")));
  }

  Status refuse(std::string_view id, const Error& error) {
    ++totals_.refused;
    return output_.write(error_line(id, input_.number(), error));
  }

  Runtime& runtime_;
  SteadyClock clock_;
  server::ServedModel serving_;
  server::Core core_;
  BatchRequestReader requests_;
  LineReader input_;
  BatchOutput output_;
  BatchProgress progress_;
  BatchTotals totals_;
  // Shared: the engine's thread may use it after this object has gone.
  std::shared_ptr<ReadyList> ready_ = std::make_shared<ReadyList>();
  std::vector<Task> tasks_;
  std::vector<std::size_t> free_;  // indices
  IdSet seen_;
  OutputEvent event_;
  bool at_end_ = false;
  bool openai_ = false;  // the format of the last line that told
};

RuntimeOptions runtime_options(const BatchOptions& options) {
  RuntimeOptions runtime = options.runtime;
  options.spread.apply(runtime);
  runtime.kv_dtype = options.kv_dtype == "fp8" ? DType::f8_e4m3 : DType::bf16;
  runtime.prefix_cache = !options.no_prefix_cache;
  runtime.grammars.compile_us_max = kCompileUsMax;
  // The queue is never full: this command has at most 2 * sequences_max requests under way, the
  // engine counts a finished one a moment longer, and a request may have 128 choices.
  runtime.queue_max = 4 * runtime.sequences_max + 256;
  return runtime;
}

Status run_batch(const BatchOptions& options) {
  KOHO_TRY_ASSIGN(LineReader input, LineReader::open(options.input, kInputLineBytesMax));
  // Everything that can be refused is refused before OUT is opened.
  KOHO_TRY_ASSIGN(SelectedModel selected, load_selected_model(options.selected));
  KOHO_TRY(options.sampling.validate(static_cast<std::int32_t>(selected.config.vocab_size)));
  KOHO_TRY_ASSIGN(BatchOutput output,
                  BatchOutput::open(options.output, {.line_bytes_max = kOutputLineBytesMax,
                                                     .restart = options.restart}));
  if (output.lines_found() > 0 || output.bytes_dropped() > 0)
    log::info("{}: resuming after {} lines; dropped {} bytes of an incomplete last line",
              options.output, output.lines_found(), output.bytes_dropped());
  KOHO_TRY_ASSIGN(const std::unique_ptr<Runtime> runtime,
                  start_runtime(selected, runtime_options(options)));
  listen_for_signals();
  return BatchRun(*runtime, options.selected.model, options.sampling, std::move(input),
                  std::move(output))
      .run();
}

/// Gives the words their meaning. A model of synthetic weights is named by --config.
Status take_words(BatchOptions& options) {
  std::string& model = options.selected.model;
  std::string named = options.selected.config.empty() ? model : options.selected.config;
  if (options.input.empty() && options.output.empty()) {
    KOHO_TRY(take_model_word(named, {&options.words[0], &options.words[1], &options.words[2]}));
    options.input = options.words[1];
    options.output = options.words[2];
  } else {
    if (!options.words[1].empty())
      return make_error(ErrorCode::invalid_argument,
                        "'{}' is one word too many: --input-file and --output-file name the files",
                        options.words[1]);
    KOHO_TRY(take_model_word(named, {&options.words[0]}));
  }
  if (options.selected.config.empty()) model = named;
  if (options.input.empty() || options.output.empty())
    return make_error(ErrorCode::invalid_argument,
                      "the {} is missing: koho batch MODEL IN.jsonl OUT.jsonl, or -m MODEL IN OUT",
                      options.input.empty() ? "input" : "output");
  return {};
}

constexpr const char* kFormat =
    R"(IN has one JSON object per line: a line of OpenAI's batch files ("custom_id", "method", "url",
"body"), or "id" (a string or an integer) and one of "prompt", "prompt_ids" and "messages" (with
"tools", "enable_thinking", "clear_thinking", "add_generation_prompt"). These fields override the flags (docs/sampling-parameters.md):
)";

constexpr const char* kExamples =
    R"(OUT gets one line per request, in the order in which requests finish:
  {"id","ids","text","finish_reason","logprobs","usage","timings"}, a chat's text without its
"reasoning" and "tool_calls", which stand beside it; or {"id","line","error"} for a line that is
refused, which does not stop the others. A line of OpenAI's format gets one of OpenAI's:
{"id","custom_id","response","error"}. The same command resumes an interrupted run. Exit code: 0
when every line has an answer or an error, 2 when every line was refused.
Details: docs/batch.md.

Examples:
  koho batch models/tiny in.jsonl out.jsonl --concurrency 16
  koho batch models/tiny in.jsonl out.jsonl --temperature 0 --max-tokens 64
  echo '{"id":1,"messages":[{"role":"user","content":"What is 2 + 3?"}]}' |
    koho batch models/tiny - -)";

}  // namespace

Runner add_batch(CommandLine& command) {
  const auto options = std::make_shared<BatchOptions>();
  RuntimeOptions& runtime = options->runtime;
  command.add_option("MODEL", options->words[0], "Model directory, where -m does not name it");
  command.add_option("IN", options->words[1],
                     "File with one request per line; - is standard input");
  command.add_option("OUT", options->words[2],
                     "File for one answer per line; - is standard output");
  command.add_option("--input-file", options->input, "The same as IN, with --output-file");
  command.add_option("--output-file", options->output, "The same as OUT, with --input-file");
  add_model_flags(command, options->selected, ModelWord::of_command);
  command.add_flag("--restart", options->restart, "Empty OUT and start again instead of resuming");
  command
      .add_option("--concurrency", runtime.sequences_max, "Largest number of sequences in a batch")
      ->check(at_least(1))
      ->capture_default_str();
  command
      .add_option(
          "--context", runtime.context_max,
          "Largest number of tokens of prompt and answer together; 0 = as many as the model and "
          "the KV cache allow")
      ->check(at_least(0))
      ->capture_default_str();
  command
      .add_option("--prefill-chunk", runtime.prefill_chunk,
                  "Largest number of prompt tokens in one step; 0 = chosen for the device")
      ->check(at_least(0))
      ->capture_default_str();
  command
      .add_option("--kv-pages", runtime.kv_pages,
                  "Size of the KV cache in pages of 64 tokens; 0 = chosen to fit the memory")
      ->check(at_least(0))
      ->capture_default_str();
  command.add_option("--kv-dtype", options->kv_dtype, "Data type of the KV cache")
      ->check(one_of({"bf16", "fp8"}))
      ->capture_default_str();
  command.add_flag("--no-prefix-cache", options->no_prefix_cache,
                   "Compute every prompt from its beginning");
  add_rank_flags(command, options->spread);
  command
      .add_option("--chat-template", runtime.chat_template,
                  "Chat template: auto, glm-4.7, glm-4.6 or glm-4.5")
      ->capture_default_str();
  add_sampling_flags(command, options->sampling);
  command.footer(kFormat + batch_sampling_fields() + kExamples);
  return [options]() -> Status {
    KOHO_TRY(take_words(*options));
    return run_batch(*options);
  };
}

}  // namespace koho::app
