// SPDX-License-Identifier: Apache-2.0
#include "app/serve_options.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <sstream>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "base/mapped_file.h"
#include "base/text.h"
#include "chat/json.h"

namespace koho::app {
namespace {

using Takes = ServeOption::Takes;

constexpr std::size_t kFileBytesMax = 8U << 20U;

/// "4096", "32k" (1024 each), "1m".
Result<std::int64_t> number_of(const std::string& text, std::int64_t least, std::int64_t most) {
  std::string_view digits = text;
  std::int64_t unit = 1;
  if (text.ends_with('k') || text.ends_with('K')) unit = 1024;
  if (text.ends_with('m') || text.ends_with('M')) unit = 1024 * 1024;
  if (unit > 1) digits.remove_suffix(1);
  const auto value = parse_integer<std::int64_t>(digits);
  if (!value || *value > most / unit || *value < least / unit || *value * unit < least)
    return make_error(ErrorCode::invalid_argument, "expected an integer in {}..{}, found '{}'",
                      least, most, text);
  return *value * unit;
}

template <typename Integer>
Status set_number(Integer& target, const std::string& text, std::int64_t least, std::int64_t most) {
  KOHO_TRY_ASSIGN(const std::int64_t value, number_of(text, least, most));
  target = static_cast<Integer>(value);
  return {};
}

/// "1073741824", "400G", "400GiB": K, M, G and T are powers of 1024.
Status set_bytes(std::int64_t& target, const std::string& text) {
  constexpr std::string_view kUnits = "KMGT";
  std::string_view digits = text;
  if (digits.size() > 2 && digits.ends_with("iB")) digits.remove_suffix(2);
  const bool named = digits.size() != text.size();
  std::int64_t unit = 1;
  if (!digits.empty())
    if (const std::size_t at = kUnits.find(static_cast<char>(digits.back() & ~0x20));
        at != std::string_view::npos) {
      unit = std::int64_t{1} << (10 * (at + 1));
      digits.remove_suffix(1);
    }
  const auto value = parse_integer<std::int64_t>(digits);
  if (!value || (named && unit == 1) || *value < 1 || *value > (std::int64_t{1} << 50) / unit)
    return make_error(ErrorCode::invalid_argument,
                      "expected bytes, as 68719476736, 64G or 64GiB, found '{}'", text);
  target = *value * unit;
  return {};
}

Status set_share(double& target, const std::string& text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0.0 && value <= 1.0))
    return make_error(ErrorCode::invalid_argument,
                      "expected a number above 0 and at most 1, found '{}'", text);
  target = value;
  return {};
}

/// A flag alone is true; a config file or the environment may say false.
Status set_boolean(bool& target, const std::string& text) {
  const bool on = text.empty() || text == "true" || text == "1" || text == "yes" || text == "on";
  const bool off = text == "false" || text == "0" || text == "no" || text == "off";
  if (!on && !off)
    return make_error(ErrorCode::invalid_argument, "expected true or false, found '{}'", text);
  target = on;
  return {};
}

Status set_word(std::string& target,
                const std::string& text,
                std::initializer_list<std::string_view> words) {
  if (std::ranges::find(words, text) == words.end())
    return make_error(ErrorCode::invalid_argument, "expected one of {}, found '{}'",
                      fmt::join(words, ", "), text);
  target = text;
  return {};
}

/// A flag that sets `target` to `on` where it is on, and else leaves it.
template <typename Value>
Status set_if_on(Value& target, Value on, const std::string& text) {
  bool is_on = false;
  KOHO_TRY(set_boolean(is_on, text));
  if (is_on) target = on;
  return {};
}

std::string shown_boolean(bool value) {
  return value ? "true" : "false";
}

Status read_template_defaults(ServeOptions& options, const std::string& text) {
  KOHO_TRY_ASSIGN(const chat::Json json, chat::parse_json(text));
  for (std::size_t i = 0; i < json.keys.size(); ++i) {
    const std::string& key = json.keys[i];
    const bool value = json.items[i].boolean;
    if (key == "enable_thinking" || key == "thinking") {
      options.enable_thinking = value;
    } else if (key == "clear_thinking") {
      options.preserve_thinking =
          value ? api::PreserveThinking::never : api::PreserveThinking::always;
    } else {
      return make_error(ErrorCode::invalid_argument,
                        "'{}' is none of enable_thinking, clear_thinking", key);
    }
  }
  return {};
}

constexpr std::string_view kWithoutEffect = "Accepted from other engines' guides, without effect";

/// What other engines' guides set and koho does not have: refused, with what to do. A name that
/// ends in a hyphen stands for all that begin so.
constexpr std::pair<std::string_view, std::string_view> kRefused[] = {
    {"--kv-cache-free-gpu-memory-fraction",
     "--gpu-memory-utilization says what weights and cache take together"},
    {"--max-num-queued-tokens", "--max-num-queued-reqs bounds the queue"},
    {"--speculative-", "koho has no speculative decoding yet"},
    {"--mtp", "koho has no speculative decoding yet"},
    {"--model-draft", "koho has no speculative decoding yet"},
    {"--n-gpu-layers", "all layers are on the --device"},
    {"-ngl", "all layers are on the --device"},
};

Status refuse_by_name(std::string_view flag) {
  for (const auto& [name, reason] : kRefused)
    if (flag == name || (name.ends_with('-') && flag.starts_with(name)))
      return make_error(ErrorCode::invalid_argument, "{} is not supported: {}", flag, reason);
  return {};
}

Status nothing(ServeOptions& /*options*/, const std::string& /*value*/) {
  return {};
}

using O = ServeOptions;
using S = const std::string&;

std::vector<ServeOption> make_table() {
  constexpr std::int64_t kMany = std::int64_t{1} << 30;
  return {
      {"Model", "--model,-m,--model-path", "DIR", "Model directory; also without the flag",
       Takes::value,
       [](O& o, S v) {
         o.model = v;
         return Status();
       },
       [](const O& o) { return o.model; }},
      {"Model", "--served-model-name,--alias,-a", "NAME",
       "Name in the API, several times for several; * serves any name", Takes::list,
       [](O& o, S v) -> Status {
         if (v.empty()) return make_error(ErrorCode::invalid_argument, "expected a name");
         if (v == "*") {
           o.any_name = true;
         } else {
           o.names.push_back(v);
         }
         return Status();
       },
       [](const O& o) { return fmt::format("{}", fmt::join(o.names, ",")); }},
      {"Model", "--load-format", "FORMAT",
       "auto or safetensors: the directory's weights; dummy: random ones, of its config.json",
       Takes::value,
       [](O& o, S v) -> Status {
         std::string word;
         KOHO_TRY(set_word(word, v, {"auto", "safetensors", "dummy"}));
         o.random_weights = word == "dummy";
         return {};
       },
       [](const O& o) -> std::string { return o.random_weights ? "dummy" : "auto"; }},
      {"Model", "--chat-template", "NAME", "auto, glm-4.7, glm-4.6 or glm-4.5", Takes::value,
       [](O& o, S v) {
         o.runtime.chat_template = v;
         return Status();
       },
       [](const O& o) { return o.runtime.chat_template; }},
      {"Model", "--preserve-thinking,--reasoning-preserve", "WHEN",
       "Keep reasoning of earlier turns: auto (with tools), always or never", Takes::value,
       [](O& o, S v) -> Status {
         std::string word;
         KOHO_TRY(set_word(word, v, {"auto", "always", "never"}));
         o.preserve_thinking = word == "auto"     ? api::PreserveThinking::automatic
                               : word == "always" ? api::PreserveThinking::always
                                                  : api::PreserveThinking::never;
         return {};
       },
       [](const O& o) -> std::string {
         return o.preserve_thinking == api::PreserveThinking::automatic ? "auto"
                : o.preserve_thinking == api::PreserveThinking::always  ? "always"
                                                                        : "never";
       }},
      {"Model", "--default-chat-template-kwargs,--chat-template-kwargs", "JSON",
       "enable_thinking, clear_thinking for requests that do not say", Takes::value,
       read_template_defaults,
       [](const O& o) { return fmt::format(R"({{"enable_thinking": {}}})", o.enable_thinking); }},
      {"Compute", "--device", "DEVICE", "auto, cpu or cuda", Takes::value,
       [](O& o, S v) {
         return set_word(o.device, v, {"auto", "cpu", "cuda"});
       },
       [](const O& o) { return o.device; }},
      {"Compute", "--tensor-parallel-size,-tp,--tp,--tp-size,--ranks", "N",
       "Parts the model is split into: threads of the CPU; on CUDA 1, as koho runs on one GPU",
       Takes::value, [](O& o, S v) { return set_number(o.runtime.ranks, v, 1, 64); },
       [](const O& o) { return fmt::to_string(o.runtime.ranks); }},
      {"Compute", "--experts", "HOW", "How experts are split over ranks: whole or sliced",
       Takes::value,
       [](O& o, S v) -> Status {
         std::string word;
         KOHO_TRY(set_word(word, v, {"whole", "sliced"}));
         o.runtime.experts =
             word == "whole" ? ExpertLayout::expert_parallel : ExpertLayout::tensor_parallel;
         return {};
       },
       [](const O& o) -> std::string {
         return o.runtime.experts == ExpertLayout::expert_parallel ? "whole" : "sliced";
       }},
      {"Compute", "--attention", "HOW",
       "How attention is split over ranks: tp shares every request, dp divides requests",
       Takes::value,
       [](O& o, S v) -> Status {
         std::string word;
         KOHO_TRY(set_word(word, v, {"tp", "dp"}));
         o.runtime.attention =
             word == "tp" ? AttentionLayout::tensor_parallel : AttentionLayout::data_parallel;
         return {};
       },
       [](const O& o) -> std::string {
         return o.runtime.attention == AttentionLayout::tensor_parallel ? "tp" : "dp";
       }},
      {"Compute", "--expert-parallel-size,--ep-size,--ep", "N",
       "As other engines say --experts: the number of ranks is whole, 1 is sliced", Takes::value,
       [](O& o, S v) -> Status {
         KOHO_TRY_ASSIGN(o.expert_parallel_size, number_of(v, 1, 64));
         return {};
       },
       nullptr},
      {"Compute", "--enable-expert-parallel", "", "The same as --experts whole", Takes::nothing,
       [](O& o, S v) { return set_if_on(o.runtime.experts, ExpertLayout::expert_parallel, v); },
       nullptr},
      {"Compute", "--enable-dp-attention", "", "The same as --attention dp", Takes::nothing,
       [](O& o, S v) { return set_if_on(o.runtime.attention, AttentionLayout::data_parallel, v); },
       nullptr},
      {"Compute", "--data-parallel-size,--dp-size,--dp", "N",
       "1, or with --attention dp the number of ranks; for more copies of a model, more servers",
       Takes::value,
       [](O& o, S v) -> Status {
         KOHO_TRY_ASSIGN(o.data_parallel_size, number_of(v, 1, 64));
         return {};
       },
       nullptr},
      {"Compute", "--threads", "N", "CPU threads; 0 = all cores", Takes::value,
       [](O& o, S v) { return set_number(o.runtime.device.threads, v, 0, 1024); },
       [](const O& o) { return fmt::to_string(o.runtime.device.threads); }},
      {"Compute", "--deterministic", "", "The same bits whatever the batch", Takes::nothing,
       [](O& o, S v) { return set_boolean(o.runtime.device.deterministic, v); },
       [](const O& o) { return shown_boolean(o.runtime.device.deterministic); }},
      {"Batching", "--max-model-len,--context-length,--ctx-size,--max-seq-len,-c", "TOKENS",
       "Prompt and answer at most; 0 = what model and memory allow; 32k is 32768", Takes::value,
       [](O& o, S v) { return set_number(o.runtime.context_max, v, 0, kMany); },
       [](const O& o) { return fmt::to_string(o.runtime.context_max); }},
      {"Batching", "--max-num-seqs,--max-running-requests,--max-batch-size,-np,--concurrency", "N",
       "Answers computed at once", Takes::value,
       [](O& o, S v) { return set_number(o.runtime.sequences_max, v, 1, 1 << 14); },
       [](const O& o) { return fmt::to_string(o.runtime.sequences_max); }},
      {"Batching",
       "--max-num-batched-tokens,--chunked-prefill-size,--max-num-tokens,--prefill-chunk", "TOKENS",
       "Prompt tokens in one step; 0 = by device", Takes::value,
       [](O& o, S v) { return set_number(o.runtime.prefill_chunk, v, 0, 1 << 20); },
       [](const O& o) { return fmt::to_string(o.runtime.prefill_chunk); }},
      {"Batching", "--inter-token-ms-max", "MS",
       "Prefill beside decodes is cut so that a step takes this long; 0 = no bound", Takes::value,
       [](O& o, S v) { return set_number(o.runtime.inter_token_ms_max, v, 0, kMany); },
       [](const O& o) { return fmt::to_string(o.runtime.inter_token_ms_max); }},
      {"Batching", "--kv-pages,--num-gpu-blocks-override", "N",
       "Cache pages of 64 tokens; 0 = what is needed, within memory", Takes::value,
       [](O& o, S v) { return set_number(o.runtime.kv_pages, v, 0, kMany / 64); },
       [](const O& o) { return fmt::to_string(o.runtime.kv_pages); }},
      {"Batching", "--kv-cache-memory,--kv-cache-memory-bytes", "BYTES",
       "Instead of pages: what the cache takes on each rank; 64G and 64GiB are 68719476736",
       Takes::value, [](O& o, S v) { return set_bytes(o.runtime.kv_bytes, v); },
       [](const O& o) {
         return o.runtime.kv_bytes > 0 ? fmt::to_string(o.runtime.kv_bytes) : std::string();
       }},
      {"Batching", "--gpu-memory-utilization,--mem-fraction-static", "SHARE",
       "Instead of pages: of each GPU's memory (on the CPU of the host's) what weights and cache "
       "take, as 0.9",
       Takes::value, [](O& o, S v) { return set_share(o.runtime.memory_share, v); },
       [](const O& o) {
         return o.runtime.memory_share > 0.0 ? fmt::to_string(o.runtime.memory_share)
                                             : std::string();
       }},
      {"Batching", "--kv-cache-dtype", "TYPE", "auto, bf16 or fp8", Takes::value,
       [](O& o, S v) -> Status {
         std::string word;
         KOHO_TRY(set_word(word, v, {"auto", "bf16", "bfloat16", "fp8", "fp8_e4m3"}));
         o.runtime.kv_dtype = word.starts_with("fp8") ? DType::f8_e4m3 : DType::bf16;
         return {};
       },
       [](const O& o) -> std::string {
         return o.runtime.kv_dtype == DType::bf16 ? "bf16" : "fp8";
       }},
      {"Batching", "--enable-prefix-caching", "", "Reuse common beginnings of prompts",
       Takes::nothing, [](O& o, S v) { return set_boolean(o.runtime.prefix_cache, v); },
       [](const O& o) { return shown_boolean(o.runtime.prefix_cache); }},
      {"Batching", "--no-enable-prefix-caching,--disable-radix-cache", "",
       "Compute common beginnings again", Takes::nothing,
       [](O& o, S v) -> Status {
         bool off = false;
         KOHO_TRY(set_boolean(off, v));
         o.runtime.prefix_cache = !off;
         return {};
       },
       nullptr},
      {"Compute", "--seed,--random-seed,-s", "N",
       "Of requests that name none: the same request, the same answer; not given: random",
       Takes::value,
       [](O& o, S v) -> Status {
         const auto seed = parse_integer<std::int64_t>(v);
         if (!seed)
           return make_error(ErrorCode::invalid_argument, "expected an integer, found '{}'", v);
         o.seed = *seed;
         return {};
       },
       [](const O& o) { return o.seed ? fmt::to_string(*o.seed) : std::string(); }},
      {"Server", "--host", "ADDRESS", "Where to listen", Takes::value,
       [](O& o, S v) {
         o.server.host = v;
         return Status();
       },
       [](const O& o) { return o.server.host; }},
      {"Server", "--port,-p", "PORT", "0 = any that is free", Takes::value,
       [](O& o, S v) { return set_number(o.server.port, v, 0, 65535); },
       [](const O& o) { return fmt::to_string(o.server.port); }},
      {"Server", "--api-key", "KEY",
       "Asked of every request, several times for several. A command line is seen by others: "
       "prefer --api-key-file or the environment",
       Takes::list,
       [](O& o, S v) -> Status {
         if (v.empty()) return make_error(ErrorCode::invalid_argument, "expected a key");
         o.given_keys.push_back(v);
         return {};
       },
       nullptr},
      {"Server", "--api-key-file", "FILE", "Keys, one a line; read again at SIGHUP", Takes::value,
       [](O& o, S v) {
         o.api_key_files.push_back(v);
         return Status();
       },
       nullptr},
      {"Server", "--tls-cert,--ssl-certfile,--ssl-cert-file", "FILE",
       "HTTPS instead of HTTP: the certificate with its chain, PEM; read at the start",
       Takes::value,
       [](O& o, S v) {
         o.server.tls_cert = v;
         return Status();
       },
       [](const O& o) { return o.server.tls_cert; }},
      {"Server", "--tls-key,--ssl-keyfile,--ssl-key-file", "FILE",
       "The certificate's key, PEM without a passphrase; not given: in --tls-cert's file",
       Takes::value,
       [](O& o, S v) {
         o.server.tls_key = v;
         return Status();
       },
       [](const O& o) { return o.server.tls_key; }},
      {"Server", "--allowed-origins", "ORIGIN",
       "Web pages that may ask (CORS), several times for several; * is any", Takes::list,
       [](O& o, S v) {
         o.server.allowed_origins.push_back(v);
         return Status();
       },
       [](const O& o) { return fmt::format("{}", fmt::join(o.server.allowed_origins, ",")); }},
      {"Server", "--max-num-queued-reqs,--max-queued-requests", "N",
       "Requests that wait beside those that run; more get --overload-status", Takes::value,
       [](O& o, S v) { return set_number(o.runtime.queue_max, v, 0, 1 << 19); },
       [](const O& o) { return fmt::to_string(o.runtime.queue_max); }},
      {"Server", "--overload-status", "STATUS", "429 or 503 when the queue is full", Takes::value,
       [](O& o, S v) -> Status {
         std::string word;
         KOHO_TRY(set_word(word, v, {"429", "503"}));
         o.server.overload_status = word == "429" ? 429 : 503;
         return {};
       },
       [](const O& o) { return fmt::to_string(o.server.overload_status); }},
      {"Server", "--shutdown-timeout", "SECONDS", "That running requests have to end after SIGTERM",
       Takes::value, [](O& o, S v) { return set_number(o.shutdown_timeout_s, v, 0, 86'400); },
       [](const O& o) { return fmt::to_string(o.shutdown_timeout_s); }},
      {"Server", "--sse-keep-alive-interval,--sse-ping-interval", "SECONDS",
       "Between pings in a quiet stream; 0 = none", Takes::value,
       [](O& o, S v) -> Status {
         std::int64_t seconds = 0;
         KOHO_TRY(set_number(seconds, v, 0, 86'400));
         o.server.time.ping_ms = 1000 * seconds;
         return {};
       },
       [](const O& o) { return fmt::to_string(o.server.time.ping_ms / 1000); }},
      {"Server", "--max-body-bytes", "BYTES", "Of one request; 64m is 67108864", Takes::value,
       [](O& o, S v) { return set_number(o.server.http.body_bytes, v, 1024, kMany); },
       [](const O& o) { return fmt::to_string(o.server.http.body_bytes); }},
      {"Server", "--max-connections", "N", "Open at once", Takes::value,
       [](O& o, S v) { return set_number(o.server.connections_max, v, 1, 1 << 20); },
       [](const O& o) { return fmt::to_string(o.server.connections_max); }},
      {"Server", "--io-threads,--threads-http", "N", "That own connections; 0 = one a core",
       Takes::value, [](O& o, S v) { return set_number(o.server.io_threads, v, 0, 64); },
       [](const O& o) { return fmt::to_string(o.server.io_threads); }},
      {"Server", "--strict-params", "", "Refuse fields that koho does not know", Takes::nothing,
       [](O& o, S v) { return set_boolean(o.strict_fields, v); },
       [](const O& o) { return shown_boolean(o.strict_fields); }},
      {"Log", "--log-level", "LEVEL", "debug, info, warning or error", Takes::value,
       [](O& o, S v) {
         return set_word(o.log_level, v, {"debug", "info", "warning", "error"});
       },
       [](const O& o) { return o.log_level; }},
      {"Log", "--log-format", "FORMAT", "auto (text on a terminal), text or json", Takes::value,
       [](O& o, S v) {
         return set_word(o.log_format, v, {"auto", "text", "json"});
       },
       [](const O& o) { return o.log_format; }},
      {"Log", "--enable-log-requests,--log-requests", "", "A line a request (never its text)",
       Takes::nothing, [](O& o, S v) { return set_boolean(o.server.log_requests, v); },
       [](const O& o) { return shown_boolean(o.server.log_requests); }},
      {"Log", "--disable-log-requests", "", "No line a request", Takes::nothing,
       [](O& o, S v) -> Status {
         bool off = false;
         KOHO_TRY(set_boolean(off, v));
         o.server.log_requests = !off;
         return {};
       },
       nullptr},
      {"This program", "--config", "FILE", "\"name: value\" lines, or JSON; flags win",
       Takes::value, nothing, nullptr},
      {"This program", "--print-config", "", "Print what is set, and end", Takes::nothing,
       [](O& o, S v) { return set_boolean(o.print_config, v); }, nullptr},
      {"This program", "--check", "", "Check everything but load nothing, and end", Takes::nothing,
       [](O& o, S v) { return set_boolean(o.check, v); }, nullptr},
      {kWithoutEffect, "--enable-auto-tool-choice", "", "Tools are always on", Takes::nothing,
       nothing, nullptr},
      {kWithoutEffect, "--enforce-eager,--disable-cuda-graph", "",
       "CUDA graphs replay the same kernels and stay on", Takes::nothing, nothing, nullptr},
      {kWithoutEffect, "--disable-log-stats", "", "No statistics are logged; /metrics has them",
       Takes::nothing, nothing, nullptr},
      {kWithoutEffect, "--jinja", "", "GLM's templates are built in (--chat-template)",
       Takes::nothing, nothing, nullptr},
      {kWithoutEffect, "--tool-call-parser,--tool-parser", "NAME", "Built in", Takes::value,
       nothing, nullptr},
      {kWithoutEffect, "--reasoning-parser", "NAME", "Built in", Takes::value, nothing, nullptr},
      {kWithoutEffect, "--trust-remote-code", "", "A model directory is data", Takes::nothing,
       nothing, nullptr},
      {kWithoutEffect, "--enable-prompt-tokens-details", "", "Cached tokens are always told",
       Takes::nothing, nothing, nullptr},
  };
}

std::string hyphenated(std::string_view name) {
  std::string made(name);
  if (made.starts_with("--")) std::ranges::replace(made, '_', '-');
  return made;
}

const ServeOption* find_option(std::string_view flag) {
  for (const ServeOption& option : serve_option_table()) {
    std::string_view rest = option.flags;
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      if (rest.substr(0, comma) == flag) return &option;
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  return nullptr;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  constexpr std::size_t kSame = 0;
  constexpr std::size_t kOther = 1;
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? kSame : kOther)});
      diagonal = above;
    }
  }
  return row.back();
}

std::string nearest_flag(std::string_view flag) {
  std::string best;
  std::size_t least = ~std::size_t{0};
  for (const ServeOption& option : serve_option_table()) {
    const std::size_t distance = edit_distance(flag, option.name());
    if (distance >= least) continue;
    least = distance;
    best = option.name();
  }
  return best;
}

Status set_option(const ServeOption& option,
                  ServeOptions& options,
                  const std::string& value,
                  std::string_view source) {
  if (option.group == kWithoutEffect)
    options.warnings.push_back(fmt::format("{} has no effect: {}", option.name(), option.help));
  return option.set(options, value).with_context(source);
}

Status read_environment(ServeOptions& options) {
  for (const ServeOption& option : serve_option_table()) {
    const std::string name = option.environment_name();
    if (const char* value = std::getenv(name.c_str()))
      KOHO_TRY(set_option(option, options, value, name));
  }
  server::ServiceManager::Settings& manager = options.service_manager;
  if (const char* socket = std::getenv("NOTIFY_SOCKET")) manager.socket = socket;
  // The watchdog may be another process' affair.
  const char* process = std::getenv("WATCHDOG_PID");
  if (process != nullptr && parse_integer<std::int64_t>(process) != getpid()) return {};
  if (const char* us = std::getenv("WATCHDOG_USEC"))
    manager.watchdog_us = parse_integer<std::int64_t>(us).value_or(0);
  return {};
}

Status set_by_name(ServeOptions& options, std::string key, const std::string& value) {
  key = hyphenated("--" + key);
  KOHO_TRY(refuse_by_name(key));
  const ServeOption* option = find_option(key);
  if (option == nullptr)
    return make_error(ErrorCode::invalid_argument, "there is no choice '{}'; did you mean '{}'?",
                      key.substr(2), nearest_flag(key).substr(2));
  return set_option(*option, options, value, key.substr(2));
}

/// Without blanks at both ends, and quotes around what is left.
std::string word_of(std::string_view text) {
  text = trimmed(text, " \t\r\n");
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') &&
      text.back() == text.front())
    text = text.substr(1, text.size() - 2);
  return std::string(text);
}

std::string text_of(const chat::Json& json) {
  return json.is_string() ? json.text : chat::dump_json(json);
}

/// A JSON object, or lines "name: value", with "- value" lines below a name for lists.
Status read_config(ServeOptions& options, const std::string& path) {
  KOHO_TRY_ASSIGN(const std::string text, read_file_or_pipe(path, kFileBytesMax));
  if (word_of(text).starts_with('{')) {
    KOHO_TRY_ASSIGN(const chat::Json json, chat::parse_json(text));
    for (std::size_t i = 0; i < json.keys.size(); ++i) {
      if (!json.items[i].is_array()) {
        KOHO_TRY(set_by_name(options, json.keys[i], text_of(json.items[i])));
        continue;
      }
      for (const chat::Json& item : json.items[i].items)
        KOHO_TRY(set_by_name(options, json.keys[i], text_of(item)));
    }
    return {};
  }
  std::istringstream lines(text);
  std::string line;
  std::string list;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string place = fmt::format("{}:{}", path, number);
    const std::string whole_line = word_of(line);
    if (whole_line.empty() || whole_line.front() == '#') continue;
    if (whole_line.starts_with("- ") && !list.empty()) {
      KOHO_TRY(set_by_name(options, list, word_of(whole_line.substr(2))).with_context(place));
      continue;
    }
    const std::size_t colon = whole_line.find(':');
    if (colon == std::string::npos)
      return make_error(ErrorCode::invalid_argument, "{}: expected \"name: value\"", place);
    const std::string key = word_of(whole_line.substr(0, colon));
    const std::string value = word_of(whole_line.substr(colon + 1));
    list = value.empty() ? key : "";
    if (!value.empty()) KOHO_TRY(set_by_name(options, key, value).with_context(place));
  }
  return {};
}

struct Argument {
  const ServeOption* option = nullptr;
  std::string value;
};

Result<std::vector<Argument>> split_arguments(const std::vector<std::string>& arguments) {
  std::vector<Argument> found;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with('-')) {
      found.push_back({find_option("--model"), argument});
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string flag = hyphenated(argument.substr(0, equals));
    const ServeOption* option = find_option(flag);
    KOHO_TRY(refuse_by_name(flag));
    if (option == nullptr)
      return make_error(ErrorCode::invalid_argument, "there is no flag {}; did you mean {}?", flag,
                        nearest_flag(flag));
    if (equals != std::string::npos) {
      found.push_back({option, argument.substr(equals + 1)});
    } else if (option->takes == Takes::nothing) {
      found.push_back({option, ""});
    } else if (i + 1 < arguments.size()) {
      const std::string& value = arguments[++i];
      if (find_option(hyphenated(value.substr(0, value.find('=')))) != nullptr)
        return make_error(ErrorCode::invalid_argument,
                          "{} needs a value, found the flag {}; if it is meant, write {}={}", flag,
                          value, flag, value);
      found.push_back({option, value});
    } else {
      return make_error(ErrorCode::invalid_argument, "{} needs a value: {}", flag, option->value);
    }
  }
  return found;
}

/// What other engines say by sizes, as layouts.
Status carry_over_sizes(ServeOptions& options) {
  RuntimeOptions& runtime = options.runtime;
  if (options.expert_parallel_size) {
    const std::int64_t size = *options.expert_parallel_size;
    if (size != 1 && size != runtime.ranks)
      return make_error(ErrorCode::invalid_argument,
                        "--expert-parallel-size: experts are divided among all {} ranks, or sliced "
                        "over them (1), found {}",
                        runtime.ranks, size);
    runtime.experts =
        size == runtime.ranks ? ExpertLayout::expert_parallel : ExpertLayout::tensor_parallel;
  }
  if (const std::int64_t size = options.data_parallel_size.value_or(1);
      size != 1 && !(size == runtime.ranks && runtime.attention == AttentionLayout::data_parallel))
    return make_error(ErrorCode::invalid_argument,
                      "--data-parallel-size: expected 1, or with --attention dp "
                      "(--enable-dp-attention) the {} ranks of --tensor-parallel-size, found {}; "
                      "several copies of a model are several servers",
                      runtime.ranks, size);
  return {};
}

}  // namespace

std::string_view ServeOption::name() const {
  return flags.substr(0, flags.find(','));
}

std::string ServeOption::environment_name() const {
  std::string made = "KOHO_";
  for (const char c : name().substr(2))
    made += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return made;
}

const std::vector<ServeOption>& serve_option_table() {
  static const std::vector<ServeOption> table = make_table();
  return table;
}

Result<ServeOptions> read_serve_options(const std::vector<std::string>& arguments) {
  ServeOptions options;
  KOHO_TRY_ASSIGN(const std::vector<Argument> given, split_arguments(arguments));
  KOHO_TRY(read_environment(options));
  const ServeOption* config = find_option("--config");
  for (const Argument& argument : given)
    if (argument.option == config) KOHO_TRY(read_config(options, argument.value));
  // A list on the command line replaces one of the file.
  bool names = false;
  bool origins = false;
  for (const Argument& argument : given) {
    if (argument.option->name() == "--served-model-name" && !std::exchange(names, true))
      options.names.clear();
    if (argument.option->name() == "--allowed-origins" && !std::exchange(origins, true))
      options.server.allowed_origins.clear();
    KOHO_TRY(set_option(*argument.option, options, argument.value, argument.option->name()));
  }
  if (options.model.empty())
    return make_error(ErrorCode::invalid_argument, "--model DIR is needed");
  if (options.server.tls_cert.empty() && !options.server.tls_key.empty())
    return make_error(ErrorCode::invalid_argument, "--tls-key needs --tls-cert");
  KOHO_TRY(carry_over_sizes(options));
  KOHO_TRY_ASSIGN(options.server.api_keys, read_api_keys(options, false));
  if (!says_cache_size_once(options.runtime))
    return make_error(ErrorCode::invalid_argument,
                      "of --kv-pages, --kv-cache-memory and --gpu-memory-utilization one says the "
                      "cache's size");
  return options;
}

Result<std::vector<std::string>> read_api_keys(const ServeOptions& options, bool again) {
  std::vector<std::string> keys = options.given_keys;
  for (const std::string& path : options.api_key_files) {
    KOHO_TRY_ASSIGN(std::string text, again ? read_file(path, kFileBytesMax)
                                            : read_file_or_pipe(path, kFileBytesMax));
    const std::size_t before = keys.size();
    std::istringstream lines(std::move(text));
    std::string line;
    while (std::getline(lines, line)) {
      const std::string_view key = trimmed(line, " \t\r");
      if (!key.empty() && key.front() != '#') keys.emplace_back(key);
    }
    if (keys.size() == before)
      return make_error(ErrorCode::invalid_argument, "{} holds no key", path);
  }
  return keys;
}

std::string serve_help() {
  std::string out =
      "Serve a model over HTTP: OpenAI's API and koho's own.\n"
      "Usage: koho serve [--model] DIR [FLAGS]\n"
      "Every flag --some-name can also be set by the environment (KOHO_SOME_NAME) and in the "
      "config file\n(some-name: value); a flag wins over the file, the file over the "
      "environment.\n";
  const ServeOptions defaults;
  std::string_view group;
  for (const ServeOption& option : serve_option_table()) {
    if (option.group != group) out += fmt::format("\n{}:\n", option.group);
    group = option.group;
    std::string flags(option.flags);
    if (!option.value.empty()) flags += ' ' + std::string(option.value);
    std::string help(option.help);
    if (option.shown != nullptr)
      if (const std::string shown = option.shown(defaults); !shown.empty())
        help += fmt::format(" [{}]", shown);
    out += flags.size() < 38 ? fmt::format("  {:<38}{}\n", flags, help)
                             : fmt::format("  {}\n  {:<38}{}\n", flags, "", help);
  }
  out +=
      "\nExit codes: 0 after SIGTERM or SIGINT, 2 wrong usage, 3 model files, 4 device, 6 the "
      "engine was lost\nwhile serving, 1 anything else.\n"
      "\nExamples:\n"
      "  koho serve models/tiny --port 8000\n"
      "  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"What is 2 + "
      "3?\"}]}'\n";
  return out;
}

std::string serve_options_markdown() {
  std::string out = "| flag | environment | default | |\n|---|---|---|---|\n";
  const ServeOptions defaults;
  for (const ServeOption& option : serve_option_table()) {
    std::string flags(option.flags);
    for (std::size_t at = 0; (at = flags.find(',', at)) != std::string::npos; at += 4)
      flags.replace(at, 1, "`, `");
    const std::string shown = option.shown != nullptr ? option.shown(defaults) : "";
    out += fmt::format("| `{}` | `{}` | {} | {} |\n", flags, option.environment_name(), shown,
                       option.help);
  }
  return out;
}

std::string print_serve_config(const ServeOptions& options) {
  std::string out;
  for (const ServeOption& option : serve_option_table()) {
    if (option.shown == nullptr) continue;
    std::string value = option.shown(options);
    if (value.empty()) continue;
    const std::string_view name = option.name().substr(2);
    if (option.takes != Takes::list) {
      out += fmt::format("{}: {}\n", name, value);
      continue;
    }
    out += fmt::format("{}:\n", name);
    std::istringstream items(value);
    while (std::getline(items, value, ',')) out += fmt::format("  - {}\n", value);
  }
  return out;
}

}  // namespace koho::app
