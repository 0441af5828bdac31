// SPDX-License-Identifier: Apache-2.0
// The table of `koho serve` options: one entry per option, with its names, its help text and the
// functions that set and print it. The order is that of the help text.
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/rank_flags.h"
#include "app/serve_option_parts.h"
#include "app/serve_option_values.h"
#include "app/serve_options.h"
#include "base/text.h"
#include "chat/json.h"
#include "sampling/parameter_table.h"

namespace koho::app {
namespace {

using Takes = ServeOption::Takes;
using O = ServeOptions;
using S = const std::string&;

constexpr std::int64_t kMany = std::int64_t{1} << 30;

Status nothing(ServeOptions& /*options*/, const std::string& /*value*/) {
  return {};
}

std::vector<ServeOption> model_options() {
  return {
      {"Model", "--model,-m,--model-path", "DIR",
       "Model directory; an argument without a flag is the same", Takes::value,
       [](O& o, S v) { return set_text(o.model, v); }, [](const O& o) { return o.model; }},
      {"Model", "--served-model-name,--alias,-a", "NAME",
       "Names of the model in the API, the first that of its answers; * accepts any name",
       Takes::list,
       [](O& o, S v) -> Status {
         if (v.empty())
           return make_error(ErrorCode::invalid_argument, "expected a name, found an empty string");
         if (v == "*") {
           o.any_name = true;
         } else {
           o.names.push_back(v);
         }
         return Status();
       },
       [](const O& o) { return fmt::format("{}", fmt::join(o.names, ",")); }},
      {"Model", "--load-format", "FORMAT",
       "auto or safetensors: the weights of the directory; dummy: synthetic weights for its "
       "config.json",
       Takes::value,
       [](O& o, S v) -> Status {
         std::string word;
         KOHO_TRY(set_word(word, v, {"auto", "safetensors", "dummy"}));
         o.random_weights = word == "dummy";
         return {};
       },
       [](const O& o) -> std::string { return o.random_weights ? "dummy" : "auto"; }},
      {"Model", "--chat-template", "NAME", "Chat template: auto, glm-4.7, glm-4.6 or glm-4.5",
       Takes::value, [](O& o, S v) { return set_text(o.runtime.chat_template, v); },
       [](const O& o) { return o.runtime.chat_template; }},
      {"Model", "--preserve-thinking,--reasoning-preserve", "WHEN",
       "Keep the reasoning of earlier turns in the prompt: auto (for requests with tools), always "
       "or never",
       Takes::value,
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
       "enable_thinking and clear_thinking of requests that do not set them", Takes::value,
       read_template_defaults,
       [](const O& o) { return fmt::format(R"({{"enable_thinking": {}}})", o.enable_thinking); }},
  };
}

std::vector<ServeOption> compute_options() {
  return {
      {"Compute", "--device", "DEVICE", "auto, cpu or cuda", Takes::value,
       [](O& o, S v) {
         return set_word(o.device, v, {"auto", "cpu", "cuda"});
       },
       [](const O& o) { return o.device; }},
      {"Compute", "--tensor-parallel-size,-tp,--tp,--tp-size,--ranks", "N",
       "Ranks that share the model; auto: one for each of --devices, or the smallest number of "
       "GPUs "
       "that holds it, and one on the CPU",
       Takes::value,
       [](O& o, S v) -> Status {
         o.runtime.ranks = 0;
         if (v == "auto") return {};
         return set_number(o.runtime.ranks, v, 1, kWorkerRanksMax);
       },
       [](const O& o) {
         return o.runtime.ranks == 0 ? std::string("auto") : fmt::to_string(o.runtime.ranks);
       }},
      {"Compute", "--devices", "N,N",
       "GPU of each rank, or one for all; left out: the ranks' numbers", Takes::value,
       [](O& o, S v) { return set_numbers(o.runtime.device.devices, v, 0, 1023); },
       [](const O& o) { return fmt::format("{}", fmt::join(o.runtime.device.devices, ",")); }},
      {"Compute", "--collectives", "HOW", "Between GPUs: peer memory, nccl, or auto", Takes::value,
       [](O& o, S v) -> Status {
         KOHO_TRY_ASSIGN(o.runtime.device.collectives, choose_collectives(v));
         return {};
       },
       [](const O& o) { return std::string(collectives_name(o.runtime.device.collectives)); }},
      {"Compute", "--executor", "HOW",
       "process: ranks are processes, restarted when one fails; thread; auto: process on GPUs",
       Takes::value,
       [](O& o, S v) -> Status {
         std::string word;
         KOHO_TRY(set_word(word, v, {"auto", "process", "thread"}));
         o.runtime.executor = executor_kind(word);
         return {};
       },
       [](const O& o) { return executor_name(o.runtime.executor); }},
      {"Compute", "--experts", "HOW",
       "Experts over ranks: whole (each rank has some), sliced (a slice of all), or auto: what was "
       "measured as faster",
       Takes::value,
       [](O& o, S v) -> Status {
         std::string word;
         KOHO_TRY(set_word(word, v, {"auto", "whole", "sliced"}));
         o.runtime.experts = expert_layout(word);
         return {};
       },
       [](const O& o) { return experts_name(o.runtime.experts); }},
      {"Compute", "--attention", "HOW",
       "Attention over ranks: tp (some heads of every request) or dp (all heads of some)",
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
  };
}

/// The names that vLLM and SGLang have for --experts and --attention.
std::vector<ServeOption> layout_alias_options() {
  return {
      {"Compute", "--expert-parallel-size,--ep-size,--ep", "N",
       "--experts of other engines: the number of ranks is whole, 1 is sliced", Takes::value,
       [](O& o, S v) -> Status {
         KOHO_TRY_ASSIGN(o.expert_parallel_size, number_of(v, 1, 64));
         return {};
       },
       nullptr},
      {"Compute", "--enable-expert-parallel,-ep,--enable-ep-moe", "", "The same as --experts whole",
       Takes::nothing,
       [](O& o, S v) {
         return set_if_on(o.runtime.experts, std::optional(ExpertLayout::expert_parallel), v);
       },
       nullptr},
      {"Compute", "--enable-dp-attention", "", "The same as --attention dp", Takes::nothing,
       [](O& o, S v) { return set_if_on(o.runtime.attention, AttentionLayout::data_parallel, v); },
       nullptr},
      {"Compute", "--data-parallel-size,--dp-size,--dp,-dp", "N",
       "1, or with --attention dp the number of ranks", Takes::value,
       [](O& o, S v) -> Status {
         KOHO_TRY_ASSIGN(o.data_parallel_size, number_of(v, 1, 64));
         return {};
       },
       nullptr},
  };
}

std::vector<ServeOption> execution_options() {
  return {
      {"Compute", "--threads,-t", "N", "CPU threads; 0 or -1 = the cores that koho may use",
       Takes::value, [](O& o, S v) { return set_number(o.runtime.device.threads, v, -1, 1024); },
       [](const O& o) { return fmt::to_string(o.runtime.device.threads); }},
      {"Compute", "--deterministic,--enable-deterministic-inference", "",
       "The result of a request does not depend on the batch: the default on a CPU and on Hopper",
       Takes::nothing,
       [](O& o, S v) { return set_boolean(o.runtime.device.deterministic.emplace(), v); },
       [](const O& o) {
         return o.runtime.device.deterministic ? shown_boolean(*o.runtime.device.deterministic)
                                               : std::string();
       }},
      {"Compute", "--no-deterministic", "", "It may, where cuBLASLt or NCCL are faster",
       Takes::nothing,
       [](O& o, S v) { return set_negated(o.runtime.device.deterministic.emplace(), v); }, nullptr},
      {"Compute", "--step-deadline,--watchdog-timeout", "SECONDS",
       "After so long a step is a hang, and ranks restart; 0 = 30 on GPUs, else 600", Takes::value,
       [](O& o, S v) -> Status {
         std::int64_t seconds = 0;
         KOHO_TRY(set_number(seconds, v, 0, 1'000'000));
         o.runtime.step_deadline_ms = 1000 * seconds;
         return {};
       },
       [](const O& o) { return fmt::to_string(o.runtime.step_deadline_ms / 1000); }},
      {"Compute", "--max-device-failures", "N",
       "Failures of ranks in ten minutes that are survived; one more ends the server; 0 = any",
       Takes::value,
       [](O& o, S v) { return set_number(o.runtime.device_failures_max, v, 0, 1000); },
       [](const O& o) { return fmt::to_string(o.runtime.device_failures_max); }},
      {"Compute", "--seed,--random-seed,-s", "N",
       "Seed of requests without `seed`; not given: a random one for each request", Takes::value,
       [](O& o, S v) -> Status {
         const auto seed = parse_integer<std::int64_t>(v);
         if (!seed)
           return make_error(ErrorCode::invalid_argument, "expected an integer, found '{}'", v);
         o.seed = *seed;
         return {};
       },
       [](const O& o) { return o.seed ? fmt::to_string(*o.seed) : std::string(); }},
  };
}

template <double SamplingParameters::*Member>
Status set_default(std::optional<double>& target, const std::string& text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    return make_error(ErrorCode::invalid_argument, "expected a number, found '{}'", text);
  for (const SamplingParameter& row : kSamplingParameters) {
    if (row.number != Member) continue;
    const bool low = row.range.above_low ? value > row.range.low : value >= row.range.low;
    if (!low || !(value <= row.range.high))
      return make_error(ErrorCode::invalid_argument, "expected a number in {}, found '{}'",
                        range_text(row), text);
  }
  target = value;
  return {};
}

/// Of requests that do not set them, instead of generation_config.json.
std::vector<ServeOption> sampling_options() {
  using P = SamplingParameters;
  constexpr const char* kHelp = "Default of requests, over generation_config.json";
  return {
      {"Sampling", "--temperature,--temp", "T", kHelp, Takes::value,
       [](O& o, S v) { return set_default<&P::temperature>(o.temperature, v); },
       [](const O& o) { return o.temperature ? fmt::to_string(*o.temperature) : std::string(); }},
      {"Sampling", "--top-p", "P", kHelp, Takes::value,
       [](O& o, S v) { return set_default<&P::top_p>(o.top_p, v); },
       [](const O& o) { return o.top_p ? fmt::to_string(*o.top_p) : std::string(); }},
      {"Sampling", "--min-p", "P", kHelp, Takes::value,
       [](O& o, S v) { return set_default<&P::min_p>(o.min_p, v); },
       [](const O& o) { return o.min_p ? fmt::to_string(*o.min_p) : std::string(); }},
      {"Sampling", "--top-k", "K", kHelp, Takes::value,
       [](O& o, S v) -> Status {
         KOHO_TRY_ASSIGN(o.top_k, number_of(v, -1, 1'000'000));
         return {};
       },
       [](const O& o) { return o.top_k ? fmt::to_string(*o.top_k) : std::string(); }},
  };
}

std::vector<ServeOption> batching_options() {
  return {
      {"Batching", "--max-model-len,--context-length,--ctx-size,--max-seq-len,-c", "TOKENS",
       "Largest number of tokens of prompt and answer together; 0, -1 or auto = as many as the "
       "model "
       "and the KV cache allow; 32k is 32768",
       Takes::value,
       [](O& o, S v) {
         const bool automatic = v == "auto" || v == "-1";
         return set_number(o.runtime.context_max, automatic ? "0" : v, 0, kMany);
       },
       [](const O& o) { return fmt::to_string(o.runtime.context_max); }},
      {"Batching",
       "--max-num-seqs,--max-running-requests,--max-batch-size,-np,--parallel,--concurrency", "N",
       "Largest number of sequences in a batch", Takes::value,
       [](O& o, S v) { return set_number(o.runtime.sequences_max, v, 1, 1 << 14); },
       [](const O& o) { return fmt::to_string(o.runtime.sequences_max); }},
      {"Batching",
       "--max-num-batched-tokens,--chunked-prefill-size,--max-num-tokens,--prefill-chunk", "TOKENS",
       "Largest number of prompt tokens in one step; 0 = chosen for the device", Takes::value,
       [](O& o, S v) { return set_number(o.runtime.prefill_chunk, v, 0, 1 << 20); },
       [](const O& o) { return fmt::to_string(o.runtime.prefill_chunk); }},
      {"Batching", "--inter-token-ms-max", "MS",
       "Limit the prompt tokens of a step that also decodes so that the step takes at most this "
       "long; 0 = no limit",
       Takes::value,
       [](O& o, S v) { return set_number(o.runtime.inter_token_ms_max, v, 0, kMany); },
       [](const O& o) { return fmt::to_string(o.runtime.inter_token_ms_max); }},
      {"Batching", "--kv-pages,--num-gpu-blocks-override", "N",
       "Size of the KV cache in pages of 64 tokens; 0 = chosen to fit the memory", Takes::value,
       [](O& o, S v) { return set_number(o.runtime.kv_pages, v, 0, kMany / 64); },
       [](const O& o) { return fmt::to_string(o.runtime.kv_pages); }},
      {"Batching", "--kv-cache-memory,--kv-cache-memory-bytes", "BYTES",
       "Size of the KV cache in bytes per rank, instead of --kv-pages; 64G and 64GiB are "
       "68719476736",
       Takes::value, [](O& o, S v) { return set_bytes(o.runtime.kv_bytes, v); },
       [](const O& o) {
         return o.runtime.kv_bytes > 0 ? fmt::to_string(o.runtime.kv_bytes) : std::string();
       }},
      {"Batching", "--gpu-memory-utilization,--device-memory-utilization,--mem-fraction-static",
       "SHARE",
       "Share of the memory (of the GPU, or of the host on the CPU) for weights and KV cache, such "
       "as 0.9, instead of --kv-pages",
       Takes::value, [](O& o, S v) { return set_share(o.runtime.memory_share, v); },
       [](const O& o) {
         return o.runtime.memory_share > 0.0 ? fmt::to_string(o.runtime.memory_share)
                                             : std::string();
       }},
      {"Batching", "--kv-cache-dtype", "TYPE",
       "Data type of the KV cache: auto (bf16), bf16 or fp8", Takes::value,
       [](O& o, S v) -> Status {
         std::string word;
         KOHO_TRY(set_word(word, v, {"auto", "bf16", "bfloat16", "fp8", "fp8_e4m3"}));
         o.runtime.kv_dtype = word.starts_with("fp8") ? DType::f8_e4m3 : DType::bf16;
         return {};
       },
       [](const O& o) -> std::string {
         return o.runtime.kv_dtype == DType::bf16 ? "bf16" : "fp8";
       }},
      {"Batching", "--enable-prefix-caching", "",
       "Share KV pages between prompts with the same prefix", Takes::nothing,
       [](O& o, S v) { return set_boolean(o.runtime.prefix_cache, v); },
       [](const O& o) { return shown_boolean(o.runtime.prefix_cache); }},
      {"Batching", "--no-enable-prefix-caching,--disable-radix-cache,--no-cache-prompt", "",
       "Compute every prompt from its beginning", Takes::nothing,
       [](O& o, S v) { return set_negated(o.runtime.prefix_cache, v); }, nullptr},
  };
}

std::vector<ServeOption> program_options() {
  return {
      {"This program", "--config", "FILE",
       "File of \"name: value\" lines, or JSON; flags override it", Takes::value, nothing, nullptr},
      {"This program", "--print-config", "", "Print the options in effect and exit", Takes::nothing,
       [](O& o, S v) { return set_boolean(o.print_config, v); }, nullptr},
      {"This program", "--check", "",
       "Check flags, model files, device and memory, load no weights, and exit", Takes::nothing,
       [](O& o, S v) { return set_boolean(o.check, v); }, nullptr},
  };
}

}  // namespace

const std::vector<ServeOption>& serve_option_table() {
  static const std::vector<ServeOption> table = [] {
    std::vector<ServeOption> all;
    for (const auto options :
         {&model_options, &compute_options, &layout_alias_options, &execution_options,
          &sampling_options, &batching_options, &address_and_access_options, &server_limit_options,
          &log_options, &program_options})
      for (ServeOption& option : options()) all.push_back(option);
    return all;
  }();
  return table;
}

}  // namespace koho::app
