// SPDX-License-Identifier: Apache-2.0
// Reads structs of every version: what lies behind the caller's struct_size is taken as zero.
#include "capi/parameters.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "sampling/parameter_table.h"

namespace koho::capi {
namespace {

Error wrong_size(const char* name, std::size_t expected, std::uint32_t found) {
  return make_error(ErrorCode::unsupported,
                    "{}.struct_size must be {} in version {} of the interface, found {}", name,
                    expected, KOHO_ABI_VERSION, found);
}

/// `given`, as long as its version has it, with zeros for the fields that came later. `earlier` are
/// the sizes of the versions before.
template <typename Struct>
Result<Struct> current_version(const char* name,
                               const Struct* given,
                               std::initializer_list<std::size_t> earlier) {
  const std::uint32_t size = given->struct_size;
  if (size != sizeof(Struct) && std::ranges::find(earlier, size) == earlier.end())
    return wrong_size(name, sizeof(Struct), size);
  Struct current{};
  std::memcpy(&current, given, size);
  return current;
}

Result<EngineOptions> current_version(const EngineOptions* given) {
  constexpr std::size_t kVersion1 = offsetof(EngineOptions, deterministic);
  constexpr std::size_t kVersion2 = 60;  // without the padding before `devices`
  static_assert(kVersion1 == 56 && offsetof(EngineOptions, executor) == kVersion2 &&
                sizeof(EngineOptions) == 88);
  return current_version("EngineOptions", given, {kVersion1, kVersion2});
}

Result<SamplingParams> current_version(const SamplingParams* given) {
  constexpr std::size_t kVersion2 = offsetof(SamplingParams, stop_sequences);
  // Version 3 had padding where logits_rows is: whatever stands there, its `logits` is NULL.
  constexpr std::size_t kVersion3 = offsetof(SamplingParams, logits);
  static_assert(kVersion2 == 120 && kVersion3 == 136 && sizeof(SamplingParams) == 144);
  return current_version("SamplingParams", given, {kVersion2, kVersion3});
}

Status check_not_negative(const char* name, std::int64_t value) {
  if (value >= 0) return {};
  return make_error(ErrorCode::invalid_argument, "{} must not be negative, found {}", name, value);
}

/// The numbers of SamplingParams, by their names in sampling/parameter_table.h.
struct NumberField {
  std::string_view name;
  double SamplingParams::*member;
};
constexpr NumberField kNumbers[] = {
    {"temperature", &SamplingParams::temperature},
    {"top_p", &SamplingParams::top_p},
    {"min_p", &SamplingParams::min_p},
    {"repetition_penalty", &SamplingParams::repetition_penalty},
    {"frequency_penalty", &SamplingParams::frequency_penalty},
    {"presence_penalty", &SamplingParams::presence_penalty},
};

/// A zeroed struct must be greedy and otherwise neutral: 0 outside a row's range means off, the
/// initial value. Where generation_config.json may advise, a negative number keeps its advice. NaN
/// goes on to the engine, which refuses it.
void set(const SamplingParameter& row, double value, SamplingParameters& sampling) {
  double& target = sampling.*row.number;
  if (row.advised && value < 0.0) return;
  const bool off = value == 0.0 && row.range.low == 0.0 && row.range.above_low;
  target = off ? SamplingParameters{}.*row.number : value;
}

Result<Token> narrow(std::int64_t token, const char* what) {
  if (token < 0 || token > std::numeric_limits<Token>::max())
    return make_error(ErrorCode::invalid_argument, "{} {} is not a token id", what, token);
  return static_cast<Token>(token);
}

/// As many tokens as `place` says, which moves behind them. Requires: `place` is not NULL.
Result<std::vector<Token>> stop_sequence(const std::int64_t*& place) {
  const std::int64_t length = *place++;
  if (length < 2 || length > OutputRecord::kStopLengthMax)
    return make_error(ErrorCode::invalid_argument,
                      "a stop sequence has 2 to {} tokens, found the length {}",
                      OutputRecord::kStopLengthMax, length);
  std::vector<Token> sequence;
  for (std::int64_t i = 0; i < length; ++i) {
    KOHO_TRY_ASSIGN(const Token token, narrow(*place++, "the stop sequence's token"));
    sequence.push_back(token);
  }
  return sequence;
}

Status apply(const SamplingParams& params, Request& request) {
  SamplingParameters& sampling = request.sampling;
  for (const NumberField& field : kNumbers)
    set(parameter(field.name), params.*field.member, sampling);
  if (params.top_k >= 0) sampling.top_k = params.top_k;
  if (params.use_seed != 0) sampling.seed = params.seed;
  if (params.logprobs != 0) sampling.logprobs = 0;
  if (params.max_tokens != 0) request.max_tokens = params.max_tokens;
  request.min_tokens = params.min_tokens;
  request.priority = params.priority;
  request.salt = {params.cache_salt[0], params.cache_salt[1]};
  KOHO_TRY(check_not_negative("deadline_ms", params.deadline_ms));
  request.deadline_us = std::int64_t{params.deadline_ms} * 1000;
  if (params.ignore_eos != 0) request.stop_tokens.clear();
  KOHO_TRY(check_not_negative("num_stop_token_ids", params.num_stop_token_ids));
  if (params.num_stop_token_ids > 0 && params.stop_token_ids == nullptr)
    return make_error(ErrorCode::invalid_argument, "stop_token_ids is NULL, its number {}",
                      params.num_stop_token_ids);
  const std::span<const std::int64_t> stops(params.stop_token_ids,
                                            static_cast<std::size_t>(params.num_stop_token_ids));
  for (const std::int64_t token : stops) {
    KOHO_TRY_ASSIGN(const Token stop, narrow(token, "the stop token"));
    request.stop_tokens.push_back(stop);
  }
  KOHO_TRY(check_not_negative("num_stop_sequences", params.num_stop_sequences));
  if (params.num_stop_sequences > 0 && params.stop_sequences == nullptr)
    return make_error(ErrorCode::invalid_argument, "stop_sequences is NULL, its number {}",
                      params.num_stop_sequences);
  const std::int64_t* place = params.stop_sequences;
  for (std::int32_t i = 0; i < params.num_stop_sequences; ++i) {
    KOHO_TRY_ASSIGN(std::vector<Token> sequence, stop_sequence(place));
    request.stop_sequences.push_back(std::move(sequence));
  }
  return {};
}

Status set_devices(const EngineOptions& options, DeviceOptions& device) {
  KOHO_TRY(check_not_negative("num_devices", options.num_devices));
  if (options.num_devices == 0) {
    // One GPU for all ranks; several GPUs are as many ranks.
    if (options.num_gpus == 1 && options.num_ranks > 1) device.devices = {0};
    if (options.num_gpus > 1 && options.num_ranks != 0 && options.num_ranks != options.num_gpus)
      return make_error(ErrorCode::invalid_argument,
                        "{} ranks on {} GPUs: say in devices which rank is where",
                        options.num_ranks, options.num_gpus);
    return {};
  }
  if (options.devices == nullptr)
    return make_error(ErrorCode::invalid_argument, "devices is NULL, its number {}",
                      options.num_devices);
  if (options.num_gpus == 0)
    return make_error(ErrorCode::invalid_argument, "devices are GPUs: num_gpus is 0");
  device.devices.assign(options.devices, options.devices + options.num_devices);
  return {};
}

}  // namespace

Result<RuntimeOptions> runtime_options(const EngineOptions* given) {
  RuntimeOptions runtime;
  if (given == nullptr) return runtime;
  KOHO_TRY_ASSIGN(const EngineOptions options, current_version(given));
  KOHO_TRY(check_not_negative("max_batch", options.max_batch));
  KOHO_TRY(check_not_negative("num_gpus", options.num_gpus));
  KOHO_TRY(check_not_negative("num_ranks", options.num_ranks));
  KOHO_TRY(check_not_negative("num_threads", options.num_threads));
  KOHO_TRY(check_not_negative("max_queue", options.max_queue));
  if (options.num_gpus > 0) runtime.device.kind = DeviceKind::cuda;
  runtime.ranks = std::max({options.num_ranks, options.num_ranks == 0 ? options.num_gpus : 0, 1});
  KOHO_TRY(set_devices(options, runtime.device));
  if (options.executor < KOHO_EXECUTOR_AUTO || options.executor > KOHO_EXECUTOR_THREAD)
    return make_error(ErrorCode::invalid_argument, "executor must be a KohoExecutor, found {}",
                      options.executor);
  runtime.executor = options.executor == KOHO_EXECUTOR_PROCESS  ? ExecutorKind::process
                     : options.executor == KOHO_EXECUTOR_THREAD ? ExecutorKind::thread
                                                                : ExecutorKind::automatic;
  if (options.worker != nullptr) runtime.worker = options.worker;
  KOHO_TRY(check_not_negative("step_deadline_ms", options.step_deadline_ms));
  runtime.step_deadline_ms = options.step_deadline_ms;
  runtime.device.threads = options.num_threads;
  if (options.slice_experts != 0) runtime.experts = ExpertLayout::tensor_parallel;
  if (options.dp_attention != 0) runtime.attention = AttentionLayout::data_parallel;
  if (options.max_batch > 0) runtime.sequences_max = options.max_batch;
  runtime.context_max = options.max_seq;
  runtime.kv_pages = options.kv_pages;
  if (options.kv_fp8 != 0) runtime.kv_dtype = DType::f8_e4m3;
  runtime.prefix_cache = options.no_prefix_cache == 0;
  runtime.prefill_chunk = options.prefill_chunk;
  if (options.max_queue > 0) runtime.queue_max = options.max_queue;
  runtime.inter_token_ms_max = options.inter_token_ms_max;
  if (options.deterministic != 0) runtime.device.deterministic = options.deterministic > 0;
  return runtime;
}

Result<NewRequest> make_request(const Runtime& runtime,
                                std::span<const std::int64_t> prompt,
                                const SamplingParams* params) {
  SamplingParams current{};
  if (params != nullptr) {
    KOHO_TRY_ASSIGN(current, current_version(params));
  }
  const std::int64_t context = runtime.sizes().context_max;
  const auto length = static_cast<std::int64_t>(prompt.size());
  if (length >= context)
    return make_error(ErrorCode::invalid_argument,
                      "the prompt has {} tokens; with at least one more, {} may be", length,
                      context);
  Request request = runtime.default_request();
  request.max_tokens = static_cast<std::int32_t>(context - length);
  request.prompt.reserve(prompt.size());
  for (const std::int64_t token : prompt) {
    KOHO_TRY_ASSIGN(const Token id, narrow(token, "the prompt's token"));
    request.prompt.push_back(id);
  }
  if (params != nullptr) KOHO_TRY(apply(current, request));
  NewRequest made{.request = std::move(request), .logits = {}};
  if (current.logits == nullptr) return made;
  if (current.logits_rows < 1)
    return make_error(ErrorCode::invalid_argument, "logits_rows must be 1 or more, found {}",
                      current.logits_rows);
  made.request.logits = true;
  made.logits = {.data = current.logits, .rows = current.logits_rows};
  return made;
}

}  // namespace koho::capi
