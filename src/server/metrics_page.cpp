// SPDX-License-Identifier: Apache-2.0
#include "server/metrics_page.h"

#include <fstream>
#include <iterator>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>

#include "server/batch_service.h"

namespace koho::server {
namespace {

/// A label's value: backslash, quote and newline escaped.
std::string escaped(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

/// A bucket's bound as vLLM writes it: "1.0".
std::string bound_text(double bound) {
  std::string text = fmt::format("{}", bound);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

class Page {
 public:
  explicit Page(std::string_view model)
      : labels_(fmt::format(R"(model_name="{}",engine="0")", escaped(model))) {}

  void begin(std::string_view name, std::string_view type, std::string_view help) {
    fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name,
                   type);
  }
  template <typename Number>
  void row(std::string_view name, Number value, std::string_view more_labels = {}) {
    fmt::format_to(std::back_inserter(text_), "{}{{{}{}{}}} {}\n", name, labels_,
                   more_labels.empty() ? "" : ",", more_labels, value);
  }
  template <typename Number>
  void gauge(std::string_view name, std::string_view help, Number value) {
    begin(name, "gauge", help);
    row(name, value);
  }
  template <typename Number>
  void counter(std::string_view name, std::string_view help, Number value) {
    begin(name, "counter", help);
    row(name, value);
  }
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram) {
    begin(name, "histogram", help);
    const std::string bucket = std::string(name) + "_bucket";
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < Histogram::kBounds; ++i) {
      sum += histogram.counts[i];
      row(bucket, sum,
          fmt::format(R"(le="{}")", static_cast<double>(Histogram::bound_us(i)) / 1e6));
    }
    end_histogram(name, histogram.count, histogram.sum_us / 1e6);
  }
  void histogram(std::string_view name, std::string_view help, const BoundedHistogram& histogram) {
    begin(name, "histogram", help);
    const std::string bucket = std::string(name) + "_bucket";
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < histogram.bounds.size(); ++i) {
      sum += histogram.counts[i];
      row(bucket, sum, fmt::format(R"(le="{}")", bound_text(histogram.bounds[i])));
    }
    end_histogram(name, histogram.count, histogram.sum);
  }
  std::string take() { return std::move(text_); }

 private:
  void end_histogram(std::string_view name, std::uint64_t count, double sum) {
    row(std::string(name) + "_bucket", count, R"(le="+Inf")");
    row(std::string(name) + "_sum", sum);
    row(std::string(name) + "_count", count);
  }

  std::string labels_;
  std::string text_;
};

std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

void engine_as_vllm(Page& page, const Statistics& now) {
  page.gauge("vllm:num_requests_running", "Running sequences.", now.running);
  page.gauge("vllm:num_requests_waiting", "Waiting sequences.", now.waiting);
  page.gauge("vllm:kv_cache_usage_perc", "Share of the KV pages in use, 0 to 1.", kv_usage(now));
  page.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
               now.prefix_queried_tokens);
  page.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
               now.prefix_hit_tokens);
  page.counter("vllm:num_preemptions_total",
               "Sequences whose KV pages were freed, to be recomputed later.", now.preempted);
  page.counter("vllm:prompt_tokens_total", "Prompt tokens of accepted requests.",
               now.prompt_tokens);
  page.counter("vllm:generation_tokens_total", "Generated tokens.", now.sampled_tokens);
  page.begin("vllm:request_success_total", "counter",
             "Ended sequences (n of a request), by finish reason.");
  page.row("vllm:request_success_total", now.choices_stopped, R"(finished_reason="stop")");
  page.row("vllm:request_success_total", now.choices_full, R"(finished_reason="length")");
  page.row("vllm:request_success_total", now.choices_cancelled, R"(finished_reason="abort")");
  page.row("vllm:request_success_total", now.choices_failed, R"(finished_reason="error")");
  page.histogram("vllm:time_to_first_token_seconds", "Time from submission to the first token.",
                 now.time_to_first_token);
  page.histogram("vllm:inter_token_latency_seconds", "Time between two tokens of a sequence.",
                 now.inter_token);
  page.histogram("vllm:e2e_request_latency_seconds",
                 "Time from submission to the end of a sequence; count: request_success.",
                 now.request_total);
  page.histogram("vllm:request_queue_time_seconds", "Time from submission to the first step.",
                 now.queued);
  page.histogram("vllm:request_prefill_time_seconds",
                 "Time from the first step to the first token.", now.prefill);
  page.histogram("vllm:request_decode_time_seconds", "Time from the first token to the last token.",
                 now.decode);
  page.histogram("vllm:request_inference_time_seconds",
                 "Time from the first step to the last token.", now.inference_s);
  page.histogram("vllm:request_time_per_output_token_seconds",
                 "Mean time per token after the first, of a request.", now.time_per_token_s);
  page.histogram("vllm:request_prompt_tokens", "Prompt tokens of an ended request.",
                 now.prompt_lengths);
  page.histogram("vllm:request_generation_tokens",
                 "Generated tokens of an ended sequence; count: request_success.",
                 now.answer_lengths);
  page.histogram("vllm:request_max_num_generation_tokens",
                 "Generated tokens of the longest sequence of a request.", now.longest_answers);
  page.histogram("vllm:request_params_n", "Parameter n of an ended request; sum: request_success.",
                 now.choices_asked);
  page.histogram("vllm:request_params_max_tokens",
                 "Parameter max_tokens of a request, or the room in the context.",
                 now.tokens_asked);
  page.histogram("koho_iteration_tokens", "Tokens computed in a step.", now.step_tokens);
}

void engine_as_koho(Page& page, const Statistics& now) {
  page.gauge("koho_device_up", "1 while the device works, 0 while it recovers.",
             now.device_up ? 1 : 0);
  page.gauge("koho_pages", "KV pages.", now.pages_total);
  page.gauge("koho_pages_used", "KV pages of running sequences.",
             now.pages_total - now.pages_free - now.pages_cached);
  page.gauge("koho_pages_cached", "KV pages that only the prefix cache holds.", now.pages_cached);
  page.gauge("koho_engine_requests_live", "Requests in the engine, running and waiting.",
             now.requests_live);
  page.gauge("koho_decode_rows_max", "Largest number of decoded rows of a step.",
             now.decode_rows_max);
  page.counter("koho_steps_total", "Steps of the engine.", now.steps);
  page.counter("koho_decode_steps_total", "Steps that decoded at least one row.", now.decode_steps);
  page.counter("koho_decode_rows_total", "Decoded rows.", now.decode_rows);
  page.counter("koho_computed_tokens_total", "Computed tokens of prompts and answers.",
               now.computed_tokens);
  page.counter("koho_requests_accepted_total", "Requests that the engine accepted.",
               now.requests_accepted);
  page.counter("koho_cached_tokens_total", "Prompt tokens taken from the prefix cache.",
               now.cached_tokens);
  page.counter("koho_device_failures_total", "Failures of the device.", now.device_failures);
  page.counter("koho_recoveries_total", "Recoveries of the device.", now.recoveries);
  page.counter("koho_reader_pauses_total", "Requests paused for a slow reader.", now.pauses);
  page.counter("koho_evicted_pages_total", "KV pages evicted from the prefix cache.",
               now.evicted_pages);
}

void usage_of_keys(Page& page, const ApiKeys& keys) {
  struct Row {
    std::string labels;
    ApiKey::Usage usage;
  };
  std::vector<Row> rows;
  for (const std::shared_ptr<ApiKey>& key : keys.all())
    rows.push_back(
        {fmt::format(R"(key="{}",key_name="{}")", key->hash(), escaped(key->settings().name)),
         key->usage()});
  page.begin("koho_key_requests_live", "gauge", "Requests in the server, by API key (hashed).");
  for (const Row& row : rows) page.row("koho_key_requests_live", row.usage.live, row.labels);
  page.begin("koho_key_requests_total", "counter", "Requests, by API key and result.");
  for (const Row& row : rows) {
    page.row("koho_key_requests_total", row.usage.requests, row.labels + R"(,result="begun")");
    page.row("koho_key_requests_total", row.usage.refused, row.labels + R"(,result="refused")");
  }
  page.begin("koho_key_tokens_total", "counter",
             "Tokens, by API key and kind, read by the client or not.");
  for (const Row& row : rows) {
    page.row("koho_key_tokens_total", row.usage.prompt_tokens, row.labels + R"(,kind="prompt")");
    page.row("koho_key_tokens_total", row.usage.generated_tokens,
             row.labels + R"(,kind="generation")");
  }
}

void server_as_koho(Page& page, const Core& core) {
  const Counters& now = core.counters();
  page.gauge("koho_ready", "1 when the server is ready, else 0.",
             core.phase() == Phase::ready ? 1 : 0);
  page.gauge("koho_connections_live", "Open connections.", now.connections_live.load());
  page.gauge("koho_requests_live", "Generation requests in the server.", now.requests_live.load());
  page.counter("koho_connections_accepted_total", "Accepted connections.",
               now.connections_accepted.load());
  page.counter("koho_connections_refused_total", "Connections without a free place.",
               now.connections_refused.load());
  page.counter("koho_disconnects_total", "Clients that left before the end of their answer.",
               now.disconnects.load());
  page.counter("koho_write_stalls_total", "Connections of clients that did not read.",
               now.write_stalls.load());
  page.counter("koho_request_timeouts_total", "Requests that arrived too slowly (408).",
               now.head_timeouts.load());
  page.counter("koho_deadlines_passed_total", "Requests that reached their timeout.",
               now.deadlines_passed.load());
  page.counter("koho_stream_pings_total", "Keep-alive comments sent in streams.", now.pings.load());
  page.counter("koho_unknown_fields_total", "Unknown fields in requests.",
               now.unknown_fields.load());
  page.gauge("koho_batch_requests_running", "Requests of batches that run.",
             core.batches() == nullptr ? 0 : core.batches()->running());
  page.counter("koho_sent_bytes_total", "Bytes sent to clients.", now.bytes_sent.load());
  page.begin("koho_admission_rejections_total", "counter", "Requests refused, by reason.");
  page.row("koho_admission_rejections_total", now.rejected_full.load(), R"(reason="queue_full")");
  page.row("koho_admission_rejections_total", now.rejected_not_ready.load(),
           R"(reason="not_ready")");
  usage_of_keys(page, *core.api_keys());
  page.begin("koho_tool_parse_errors_total", "counter",
             "Tool calls with an unknown name, malformed, or repaired (mended).");
  page.row("koho_tool_parse_errors_total", now.tool_calls_unknown.load(), R"(kind="unknown_tool")");
  page.row("koho_tool_parse_errors_total", now.tool_calls_malformed.load(), R"(kind="malformed")");
  page.row("koho_tool_parse_errors_total", now.tool_calls_mended.load(), R"(kind="mended")");
  page.counter("koho_reasoning_unclosed_total", "Answers that ended within their reasoning.",
               now.reasoning_unclosed.load());
  page.begin("koho_http_responses_total", "counter",
             "HTTP responses, by path and class of status.");
  constexpr std::string_view kKinds[] = {"2xx", "3xx", "4xx", "5xx"};
  for (const auto& [path, counts] : core.responses())
    for (std::size_t i = 0; i < counts.size(); ++i)
      page.row("koho_http_responses_total", counts[i],
               fmt::format(R"(path="{}",status="{}")", escaped(path), kKinds[i]));
  page.gauge("koho_resident_memory_bytes", "Resident memory of the process.", resident_bytes());
  page.gauge("koho_uptime_seconds", "Time since the server started.",
             static_cast<double>(core.uptime_us()) / 1e6);
}

}  // namespace

double kv_usage(const Statistics& statistics) {
  if (statistics.pages_total == 0) return 0.0;
  const std::int32_t used =
      statistics.pages_total - statistics.pages_free - statistics.pages_cached;
  return static_cast<double>(used) / static_cast<double>(statistics.pages_total);
}

std::string metrics_page(const Core& core) {
  Page page(core.settings().model_name);
  const ServedModel* serving = core.serving();
  const Statistics now = serving != nullptr ? serving->engine.statistics() : Statistics{};
  engine_as_vllm(page, now);
  const Limits limits = serving != nullptr ? serving->model.limits.scheduler : Limits{};
  page.begin("vllm:cache_config_info", "gauge", "Sizes of the KV cache, as labels.");
  page.row("vllm:cache_config_info", 1,
           fmt::format(R"(block_size="{}",num_gpu_blocks="{}",enable_prefix_caching="{}")",
                       limits.tokens_per_page, limits.pages, limits.prefix_cache));
  engine_as_koho(page, now);
  const bool replays = serving != nullptr && serving->model.turns != nullptr;
  const api::TurnMemory::Counts turns =
      replays ? serving->model.turns->counts() : api::TurnMemory::Counts{};
  page.counter("koho_turns_remembered_total", "Answers kept for replay.", turns.remembered);
  page.counter("koho_turns_replayed_total", "Kept answers that became part of a later prompt.",
               turns.replayed);
  page.gauge("koho_turns_kept_bytes", "Memory of the answers kept for replay.",
             turns.tokens * sizeof(Token));
  server_as_koho(page, core);
  return page.take();
}

}  // namespace koho::server
