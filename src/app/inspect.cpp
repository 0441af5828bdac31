// SPDX-License-Identifier: Apache-2.0
// `koho inspect`: prints a model's config, tensors by layer, number of parameters, quantisation, KV
// cache bytes per token, and the memory it would take on GPUs. It needs no GPU, and with --config
// no weights. The plan covers several GPUs; koho itself runs on one.
#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/hub_cache.h"
#include "app/model_directory.h"
#include "app/number_format.h"
#include "app/tensor_listing.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "cuda/cuda_backend.h"
#include "model/memory_plan.h"
#include "model/model_files.h"
#include "runtime/sizes.h"
#include "worker/device.h"

namespace koho::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExamples =
    R"(The memory plan is arithmetic on sizes: it splits the weights as tensor-parallel ranks would hold
them. koho itself has run on up to four GPUs at once, not on eight. "Room" is what a GPU has left after the weights and a reserve
of 6 GB (activations, CUDA graphs, CUDA context).

Examples:
  koho inspect /models/GLM-4.7-FP8
  koho inspect /models/GLM-4.7-FP8 --gpu H200 --gpus 4 --context 32768 --kv-dtype fp8
  koho inspect --config GLM-4.7/config.json --weights fp8 --gpus 8 --json)";

constexpr double kReserveGb = 6.0;
constexpr std::int64_t kGpusTried = 4;  // at once, so far

struct Gpu {
  std::string name;
  double memory_gb;  // 10^9 bytes
};

/// GPUs that --gpu names, with their memory.
const Gpu kKnownGpus[] = {{"H100", 80.0},  {"H200", 141.0},  {"H20", 96.0},  {"GH200", 96.0},
                          {"B200", 180.0}, {"GB200", 186.0}, {"B300", 270.0}};

struct InspectOptions {
  std::string model;
  std::string config;
  std::string weights;
  std::int64_t gpus = 0;  // 0: 1, 2, 4 and 8
  std::int64_t context = 0;
  std::string experts = "auto";
  std::string attention = "tp";
  std::string kv_dtype = "bf16";
  std::vector<std::string> gpu_names;
  double gpu_memory_gb = 0.0;
  bool json = false;
};

/// What is known of the model, from a directory or from a config alone.
struct InspectedModel {
  std::string name;
  ModelConfig config;
  std::vector<WeightBytes> weights;
  std::vector<ListedGroup> groups;
  std::optional<std::array<std::int64_t, 4>> linears;  // found in a checkpoint
  bool has_mtp = false;
  std::vector<std::string> warnings;
};

Result<InspectedModel> inspect_directory(const std::string& directory) {
  Result<std::string> named = find_model(directory);
  const std::optional<HubName> hub = hub_name_of(directory);
  if (!named.ok() && named.error().code == ErrorCode::not_found && hub)
    return make_error(
        ErrorCode::not_found,
        "{}\nTo see where it fits, its config is enough:\n    hf download {} config.json "
        "--local-dir config && koho inspect --config config/config.json",
        named.error().message, hub->repository);
  if (!named.ok() && directory.ends_with(".json"))
    return make_error(named.error().code, "{}, or --config {}", named.error().message, directory);
  if (!named.ok()) return named.error();
  const std::string found = *std::move(named);
  KOHO_TRY_ASSIGN(const ModelFiles files, open_model_files(found));
  return InspectedModel{.name = directory,
                        .config = files.config,
                        .weights = stored_bytes(files.config, files.checkpoint),
                        .groups = list_tensors(files.checkpoint),
                        .linears = files.weights.linears,
                        .has_mtp = files.weights.sources.mtp.has_value(),
                        .warnings = files.warnings};
}

Result<InspectedModel> inspect_config(const InspectOptions& options) {
  KOHO_TRY_ASSIGN(const std::string text, read_file(options.config, 8U << 20U));
  InspectedModel inspected;
  inspected.name = options.config;
  Result<ModelConfig> config = parse_model_config(text, inspected.warnings);
  if (!config.ok()) return std::move(config).error().with_context(options.config);
  inspected.config = *std::move(config);
  WeightQuant quant = inspected.config.quantization ? inspected.config.quantization->schemes.front()
                                                    : WeightQuant::none;
  if (options.weights == "bf16") quant = WeightQuant::none;
  if (options.weights == "fp8") quant = WeightQuant::fp8_channel;
  inspected.weights = assumed_bytes(inspected.config, quant);
  inspected.has_mtp = inspected.config.num_nextn_predict_layers > 0;
  inspected.groups = list_tensors(expected_weights(inspected.config, inspected.has_mtp));
  return inspected;
}

Json config_json(const ModelConfig& config) {
  return {{"vocab_size", config.vocab_size},
          {"hidden_size", config.hidden_size},
          {"num_hidden_layers", config.num_hidden_layers},
          {"first_k_dense_replace", config.first_k_dense_replace},
          {"num_nextn_predict_layers", config.num_nextn_predict_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"num_key_value_heads", config.num_key_value_heads},
          {"head_dim", config.head_dim},
          {"rotary_dim", config.rotary_dim()},
          {"rope_theta", config.rope_theta},
          {"attention_bias", config.attention_bias},
          {"use_qk_norm", config.use_qk_norm},
          {"intermediate_size", config.intermediate_size},
          {"moe_intermediate_size", config.moe_intermediate_size},
          {"n_routed_experts", config.n_routed_experts},
          {"num_experts_per_tok", config.num_experts_per_tok},
          {"n_shared_experts", config.n_shared_experts},
          {"n_group", config.n_group},
          {"topk_group", config.topk_group},
          {"norm_topk_prob", config.norm_topk_prob},
          {"routed_scaling_factor", config.routed_scaling_factor},
          {"rms_norm_eps", config.rms_norm_eps},
          {"max_position_embeddings", config.max_position_embeddings}};
}

/// The kinds of GPUs of the plan: those that were named, or of that memory; else this machine's and
/// the usual ones.
std::vector<Gpu> gpus_of(const InspectOptions& options) {
  if (options.gpu_memory_gb > 0.0) return {{"GPU", options.gpu_memory_gb}};
  std::vector<Gpu> gpus;
  for (const Gpu& known : kKnownGpus) {
    const bool named = std::ranges::any_of(options.gpu_names, [&](const std::string& name) {
      return lower_case(name) == lower_case(known.name);
    });
    const bool usual = known.name == "H100" || known.name == "H200" || known.name == "B200";
    if (options.gpu_names.empty() ? usual : named) gpus.push_back(known);
  }
  if (!options.gpu_names.empty()) return gpus;
  const Result<std::int64_t> bytes = cuda_memory_bytes(0);
  const Result<CudaProperties> found = cuda_properties(0);
  if (bytes.ok() && found.ok())
    gpus.insert(gpus.begin(), {"this machine's " + found->name, static_cast<double>(*bytes) / 1e9});
  return gpus;
}

/// One entry for each kind and number of GPUs.
Json plan_json(const InspectOptions& options, const InspectedModel& inspected) {
  const std::vector<Gpu> gpus = gpus_of(options);
  std::vector<std::int64_t> counts{1, 2, 4, 8};
  if (options.gpus > 0) counts = {options.gpus};
  const std::int64_t context =
      options.context > 0 ? options.context : inspected.config.max_position_embeddings;
  const AttentionLayout attention =
      options.attention == "dp" ? AttentionLayout::data_parallel : AttentionLayout::tensor_parallel;
  Json lines = Json::array();
  for (const Gpu& gpu : gpus) {
    for (const std::int64_t count : counts) {
      Json line{{"gpu", gpu.name}, {"gpus", count}, {"memory_gb", gpu.memory_gb}};
      const auto plan_of = [&](ExpertLayout layout) {
        return plan_memory(inspected.config, inspected.weights,
                           {.ranks = count, .experts = layout, .attention = attention},
                           options.kv_dtype == "bf16" ? DType::bf16 : DType::f8_e4m3);
      };
      Result<MemoryPlan> plan =
          plan_of(options.experts == "sliced" ? ExpertLayout::tensor_parallel
                                              : ExpertLayout::expert_parallel);
      // Both ways take the same memory where both are possible.
      if (!plan.ok() && options.experts == "auto") plan = plan_of(ExpertLayout::tensor_parallel);
      if (!plan.ok()) {
        line["refused"] = plan.error().message;
        lines.push_back(line);
        continue;
      }
      const double room =
          (gpu.memory_gb - kReserveGb) * 1e9 - static_cast<double>(plan->weight_bytes);
      const std::int64_t page = 64 * plan->kv_bytes_per_token;
      // Of one partition, which holds a sequence entirely.
      const std::int64_t tokens = room > 0.0 ? static_cast<std::int64_t>(room) / page * 64 : 0;
      line["weight_bytes_per_gpu"] = plan->weight_bytes;
      line["kv_bytes_per_token_per_gpu"] = plan->kv_bytes_per_token;
      line["fits"] = room > 0.0;
      line["kv_room_bytes_per_gpu"] = room > 0.0 ? static_cast<std::int64_t>(room) : 0;
      line["kv_tokens"] = tokens * plan->partitions;
      line["kv_tokens_of_a_sequence_max"] = tokens;
      line["context"] = context;
      line["sequences_of_context"] = tokens / context * plan->partitions;
      lines.push_back(line);
    }
  }
  return lines;
}

Json report_json(const InspectOptions& options, const InspectedModel& inspected) {
  const ParameterCounts counts = count_parameters(inspected.config);
  Json tensors = Json::array();
  for (const ListedGroup& group : inspected.groups) {
    Json lines = Json::array();
    for (const ListedTensor& tensor : group.tensors)
      lines.push_back({{"name", tensor.name}, {"kind", tensor.kind}, {"count", tensor.count}});
    tensors.push_back(
        {{"first_layer", group.first}, {"last_layer", group.last}, {"tensors", lines}});
  }
  std::int64_t bytes = 0;
  for (const WeightBytes& row : inspected.weights) bytes += row.bytes;
  Json report{{"model", inspected.name},
              {"config", config_json(inspected.config)},
              {"parameters",
               {{"main", counts.main},
                {"active", counts.active},
                {"mtp_layer", counts.mtp},
                {"mtp_own_embedding_and_head", counts.mtp_own}}},
              {"weight_bytes", bytes},
              {"has_mtp", inspected.has_mtp},
              {"kv_bytes_per_token",
               {{"bf16", kv_bytes_per_token(inspected.config, DType::bf16)},
                {"fp8", kv_bytes_per_token(inspected.config, DType::f8_e4m3)}}},
              {"plan", plan_json(options, inspected)},
              {"tensors", tensors},
              {"warnings", inspected.warnings}};
  if (inspected.linears)
    for (std::size_t i = 0; i < inspected.linears->size(); ++i)
      report["linears"][quant_key(static_cast<WeightQuant>(i))] = (*inspected.linears)[i];
  return report;
}

void print_plan(const Json& report, const InspectOptions& options) {
  std::cout << fmt::format(
      "\nmemory plan (attention {}, experts {}, cache {}, {:.0f} GB reserved per GPU)\n",
      options.attention, options.experts, options.kv_dtype, kReserveGb);
  for (const Json& line : report["plan"]) {
    std::cout << fmt::format("  {} x {} ({:.0f} GB)  ", line["gpus"].get<std::int64_t>(),
                             line["gpu"].get<std::string>(), line["memory_gb"].get<double>());
    if (line.contains("refused")) {
      std::cout << "not possible: " << line["refused"].get<std::string>() << '\n';
      continue;
    }
    const std::string weights = bytes_text(line["weight_bytes_per_gpu"].get<std::uint64_t>());
    if (!line["fits"].get<bool>()) {
      std::cout << fmt::format("weights {} per GPU: do not fit\n", weights);
      continue;
    }
    const auto tokens = line["kv_tokens"].get<std::int64_t>();
    const auto most = line["kv_tokens_of_a_sequence_max"].get<std::int64_t>();
    std::cout << fmt::format(
        "weights {} per GPU, room {}: {} tokens{}, {} sequences of {}\n", weights,
        bytes_text(line["kv_room_bytes_per_gpu"].get<std::uint64_t>()), tokens,
        most < tokens ? fmt::format(" ({} per GPU)", most) : "",
        line["sequences_of_context"].get<std::int64_t>(), line["context"].get<std::int64_t>());
  }
}

/// "koho serve DIR --ranks 4 …": what starts the model on so many GPUs.
std::string serve_command(const InspectOptions& options,
                          const std::string& name,
                          std::int64_t gpus) {
  std::string command = "koho serve " + (options.model.empty() ? "DIR" : name);
  if (gpus > 1) command += fmt::format(" --ranks {}", gpus);
  if (gpus > 1 && options.experts != "auto") command += " --experts " + options.experts;
  if (options.attention != "tp") command += " --attention " + options.attention;
  if (options.kv_dtype != "bf16") command += " --kv-cache-dtype " + options.kv_dtype;
  return command;
}

/// For each kind of GPU the smallest number that the model fits on, with the command; and whether
/// this machine's memory is enough for a CPU.
void print_fits(const Json& report, const InspectOptions& options) {
  std::cout << "\nwhere it fits\n";
  std::vector<std::string> done;
  const std::int64_t wanted =
      std::min(kUsefulTokens, report["config"]["max_position_embeddings"].get<std::int64_t>());
  for (const Json& line : report["plan"]) {
    const auto gpu = line["gpu"].get<std::string>();
    if (std::ranges::find(done, gpu) != done.end() || line.contains("refused")) continue;
    if (line["kv_tokens_of_a_sequence_max"].get<std::int64_t>() < wanted) continue;
    done.push_back(gpu);
    const auto count = line["gpus"].get<std::int64_t>();
    std::cout << fmt::format("  {} x {} ({:.0f} GB), {} tokens of context in all{}:\n      {}\n",
                             count, gpu, line["memory_gb"].get<double>(),
                             line["kv_tokens"].get<std::int64_t>(),
                             count > kGpusTried ? ", not tried on so many GPUs yet" : "",
                             serve_command(options, report["model"].get<std::string>(), count));
  }
  if (done.empty()) std::cout << "  on none of the GPUs of the plan above\n";
  const Result<std::int64_t> host = device_memory_bytes({.kind = DeviceKind::cpu});
  const auto weights = report["weight_bytes"].get<std::int64_t>();
  if (host.ok())
    std::cout << fmt::format(
        "  this machine's CPU, {} of memory: {}\n", bytes_text(static_cast<std::uint64_t>(*host)),
        weights < *host * 3 / 4
            ? "fits: " + serve_command(options, report["model"].get<std::string>(), 1) +
                  " --device cpu"
            : fmt::format("too little for {} of weights",
                          bytes_text(static_cast<std::uint64_t>(weights))));
}

void print_tensors(const InspectedModel& inspected) {
  for (const ListedGroup& group : inspected.groups) {
    if (group.first < 0)
      std::cout << "\noutside the layers\n";
    else if (group.first == group.last)
      std::cout << fmt::format("\nlayer {}{}\n", group.first,
                               group.first == inspected.config.num_hidden_layers ? " (MTP)" : "");
    else
      std::cout << fmt::format("\nlayers {} to {} (each)\n", group.first, group.last);
    for (const ListedTensor& tensor : group.tensors)
      std::cout << fmt::format("  {:<46} {}{}\n", tensor.name, tensor.kind,
                               tensor.count > 1 ? fmt::format("  x {}", tensor.count) : "");
  }
}

void print_text(const InspectOptions& options, const InspectedModel& inspected) {
  const Json report = report_json(options, inspected);
  const ModelConfig& config = inspected.config;
  const ParameterCounts counts = count_parameters(config);
  std::cout << inspected.name << "\n\nconfig\n";
  for (const auto& [key, value] : report["config"].items())
    std::cout << fmt::format("  {:<26} {}\n", key, value.dump());
  print_tensors(inspected);
  // Last what most look for: a terminal shows the end.
  std::cout << "\nsize\n"
            << fmt::format("  parameters                 {} ({})\n", count_text(counts.main),
                           counts.main)
            << fmt::format("  active for a token         {}\n", count_text(counts.active))
            << fmt::format("  MTP layer                  {}\n",
                           inspected.has_mtp
                               ? fmt::format("{}, own embedding and head {}",
                                             count_text(counts.mtp), count_text(counts.mtp_own))
                               : "none")
            << fmt::format("  weights                    {}{}\n",
                           bytes_text(report["weight_bytes"].get<std::uint64_t>()),
                           inspected.linears ? "" : " (assumed)")
            << fmt::format("  cache, bytes per token     {} BF16, {} FP8 with its scales\n",
                           kv_bytes_per_token(config, DType::bf16),
                           kv_bytes_per_token(config, DType::f8_e4m3));
  if (inspected.linears)
    std::cout << fmt::format("  linear layers              {}\n",
                             quantization_text(*inspected.linears));
  print_plan(report, options);
  print_fits(report, options);
  for (const std::string& warning : inspected.warnings)
    std::cout << "\nwarning: " << warning << '\n';
}

Status run_inspect(const InspectOptions& options) {
  for (const std::string& name : options.gpu_names) {
    std::vector<std::string> known;
    for (const Gpu& gpu : kKnownGpus) known.push_back(gpu.name);
    if (std::ranges::none_of(
            known, [&](const std::string& gpu) { return lower_case(gpu) == lower_case(name); }))
      return make_error(ErrorCode::invalid_argument,
                        "--gpu: expected one of {}, or --gpu-memory-gb, found '{}'",
                        fmt::join(known, ", "), name);
  }
  if (options.model.empty() && options.config.empty())
    return make_error(ErrorCode::invalid_argument,
                      "nothing to inspect: give a model's directory, or --config FILE");
  KOHO_TRY_ASSIGN(const InspectedModel inspected, options.model.empty()
                                                      ? inspect_config(options)
                                                      : inspect_directory(options.model));
  if (options.json)
    std::cout
        << report_json(options, inspected).dump(-1, ' ', false, Json::error_handler_t::replace)
        << '\n';
  else
    print_text(options, inspected);
  return {};
}

}  // namespace

Runner add_inspect(CommandLine& command) {
  const auto options = std::make_shared<InspectOptions>();
  Option* model = command
                      .add_option("-m,--model,MODEL", options->model,
                                  "Model directory; an argument without a flag is the same")
                      ->type_name("DIR");
  Option* config = command
                       .add_option("--config", options->config,
                                   "A config.json without weights, instead of --model")
                       ->type_name("FILE")
                       ->excludes(model);
  command
      .add_option("--weights", options->weights,
                  "With --config: format of the linear layers (default: the config's)")
      ->check(one_of({"bf16", "fp8"}))
      ->needs(config);
  command
      .add_option("--gpus", options->gpus,
                  "Number of GPUs of the memory plan (default: 1, 2, 4 and 8)")
      ->check(between(1, 1024));
  command
      .add_option(
          "--gpu", options->gpu_names,
          "Kinds of GPU: H100, H200, H20, GH200, B200, GB200, B300 (default: this machine's, "
          "H100, H200, B200)")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      .add_option("--gpu-memory-gb", options->gpu_memory_gb,
                  "Memory of one GPU in 10^9 bytes, instead of --gpu")
      ->check(between(1.0, 1e6));
  command
      .add_option("--context", options->context,
                  "Tokens of a sequence (default: max_position_embeddings)")
      ->check(between(1, 1 << 24));
  command
      .add_option("--experts", options->experts,
                  "Experts over GPUs: whole (each GPU has some), sliced (a slice of all) or auto")
      ->check(one_of({"auto", "whole", "sliced"}))
      ->capture_default_str();
  command
      .add_option("--attention", options->attention,
                  "Attention over GPUs: tp (some heads of every request) or dp (some requests)")
      ->check(one_of({"tp", "dp"}))
      ->capture_default_str();
  command.add_option("--kv-dtype", options->kv_dtype, "Data type of the KV cache")
      ->check(one_of({"bf16", "fp8"}))
      ->capture_default_str();
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(kExamples);
  return [options] { return run_inspect(*options); };
}

}  // namespace koho::app
