// SPDX-License-Identifier: Apache-2.0
// The table of weights meets a checkpoint: each row takes the tensor of its name, each tensor must
// be taken. What is missing, extra or misshapen becomes an error that names file, expected and
// found; what differs from config.json without harm becomes a warning.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/arithmetic.h"
#include "base/printable.h"
#include "model/weight_walk.h"
#include "model/weights.h"
#include "tensor/number.h"

namespace koho {
namespace {

constexpr std::size_t kProblemsNamed = 10;

/// Everything wrong with a checkpoint's tensors: names the first few, counts the rest.
class Problems {
 public:
  void add(ErrorCode code, std::string text) {
    if (all_.empty() || code == ErrorCode::unsupported) code_ = code;
    ++count_;
    if (all_.size() < kProblemsNamed) all_.push_back(std::move(text));
  }
  Status status(const std::string& directory) const {
    if (all_.empty()) return {};
    if (count_ == 1) return make_error(code_, "{}: {}", directory, all_[0]);
    std::string text = fmt::format("{}: {} tensors do not fit config.json:", directory, count_);
    for (const std::string& problem : all_) text += "\n  " + problem;
    if (count_ > all_.size()) text += fmt::format("\n  and {} more", count_ - all_.size());
    return Error{code_, std::move(text)};
  }

 private:
  ErrorCode code_ = ErrorCode::corrupt_data;
  std::size_t count_ = 0;
  std::vector<std::string> all_;
};

std::string_view allowed_dtypes(WeightRole role) {
  switch (role) {
    case WeightRole::linear:
      return "BF16 or F8_E4M3";
    case WeightRole::router:
    case WeightRole::correction_bias:
      return "BF16 or F32";
    default:
      return "BF16";
  }
}

bool is_allowed(WeightRole role, std::optional<DType> dtype) {
  if (!dtype) return false;
  switch (*dtype) {
    case DType::bf16:
      return true;
    case DType::f32:
      return role == WeightRole::router || role == WeightRole::correction_bias;
    case DType::f8_e4m3:
      return role == WeightRole::linear;
    default:
      return false;
  }
}

/// Looks every row of the table up in the checkpoint.
class Resolver {
 public:
  Resolver(const ModelConfig& config, Checkpoint& checkpoint)
      : config_(config), checkpoint_(checkpoint), used_(checkpoint.tensors().size(), false) {}

  void tensor(const ExpectedWeight& row, ConstTensorView& target) {
    const CheckpointTensor* found = take(row.name);
    if (found == nullptr) {
      if (!row.optional) report_missing(row);
      return;
    }
    if (!fits(row, *found)) return;
    target = view(*found);
    if (row.role == WeightRole::correction_bias && target.dtype == DType::bf16)
      target = widened(target);
  }

  void linear(const ExpectedWeight& row, LinearSource& target) {
    const CheckpointTensor* found = take(row.name);
    const std::string module = row.name.substr(0, row.name.rfind('.'));
    if (found == nullptr || !fits(row, *found)) {
      if (found == nullptr && !row.optional) report_missing(row);
      if (found == nullptr && row.optional) return;
      // One problem, one line: its bias and scales shall not be reported again as unexpected.
      for (const char* suffix : {".bias", ".weight_scale", ".weight_scale_inv"})
        take(module + suffix);
      return;
    }
    target.weight = view(*found);
    if (row.bias) tensor({.name = module + ".bias", .shape = {row.shape[0]}}, target.bias);
    if (*found->stored->dtype == DType::f8_e4m3) scale(row, module, *found, target);
    ++resolved.linears[static_cast<std::size_t>(target.quant)];
    if (target.quant != WeightQuant::none) quantized_.push_back(module);
  }

  /// Takes the experts of a layer from two 3-D tensors, as Transformers 5 saves them, in place.
  bool fused_experts(const std::string& prefix, MoeSources& moe) {
    const CheckpointTensor* gate_up = take(prefix + "gate_up_proj");
    const CheckpointTensor* down = take(prefix + "down_proj");
    if (gate_up == nullptr && down == nullptr) return false;
    const std::int64_t experts = config_.n_routed_experts;
    const std::int64_t ffn = config_.moe_intermediate_size;
    const std::int64_t hidden = config_.hidden_size;
    // The embedding's role allows BF16 only: scales of fused FP8 experts have no agreed layout.
    const ExpectedWeight gate_up_row{.name = prefix + "gate_up_proj",
                                     .role = WeightRole::embedding,
                                     .shape = {experts, 2 * ffn, hidden}};
    const ExpectedWeight down_row{.name = prefix + "down_proj",
                                  .role = WeightRole::embedding,
                                  .shape = {experts, hidden, ffn}};
    if (gate_up == nullptr) report_missing(gate_up_row);
    if (down == nullptr) report_missing(down_row);
    if (gate_up == nullptr || down == nullptr || !fits(gate_up_row, *gate_up) ||
        !fits(down_row, *down))
      return true;
    const ConstTensorView gate_up_all = view(*gate_up);
    const ConstTensorView down_all = view(*down);
    if (gate_up_all.empty() || down_all.empty()) return true;
    for (std::int64_t e = 0; e < experts; ++e) {
      MlpSource& expert = moe.experts[static_cast<std::size_t>(e)];
      expert.gate.weight = gate_up_all.at(e).slice(0, 0, ffn);
      expert.up.weight = gate_up_all.at(e).slice(0, ffn, ffn);
      expert.down.weight = down_all.at(e);
      resolved.linears[static_cast<std::size_t>(WeightQuant::none)] += 3;
    }
    return true;
  }

  /// Reports the tensors that no row of the table took.
  void leftovers(bool with_mtp) {
    const std::string mtp_prefix = layer_prefix(config_.num_hidden_layers);
    std::int64_t unused_mtp = 0;
    for (std::size_t i = 0; i < used_.size(); ++i) {
      if (used_[i]) continue;
      const CheckpointTensor& extra = checkpoint_.tensors()[i];
      if (!with_mtp && extra.name.substr(0, mtp_prefix.size()) == mtp_prefix) {
        ++unused_mtp;
      } else if (extra.name.ends_with(".input_scale")) {
        problems_.add(
            ErrorCode::unsupported,
            fmt::format("tensor {}: static activation scales are not supported; koho quantises "
                        "activations as they come",
                        place(extra)));
      } else {
        problems_.add(ErrorCode::corrupt_data,
                      fmt::format("unexpected tensor {}: found {}, expected none of this name",
                                  place(extra), describe(extra)));
      }
    }
    if (unused_mtp > 0)
      resolved.warnings.push_back(fmt::format(
          "{} tensors of the MTP layer {} are not used: {}", unused_mtp, config_.num_hidden_layers,
          config_.num_nextn_predict_layers == 0 ? "config.json says num_nextn_predict_layers 0"
                                                : "its enorm is missing"));
    else if (!with_mtp && config_.num_nextn_predict_layers > 0)
      resolved.warnings.push_back(
          "config.json announces an MTP layer that the checkpoint does not hold");
  }

  /// Warns where the tensors are quantised otherwise than config.json announces.
  void compare_with_config() {
    if (!config_.quantization) {
      if (!quantized_.empty())
        resolved.warnings.push_back(
            fmt::format("{} FP8 layers, but config.json has no quantization_config; koho "
                        "assumes activations quantised as they come",
                        quantized_.size()));
      return;
    }
    const QuantizationConfig& announced = *config_.quantization;
    for (std::size_t i = 1; i < resolved.linears.size(); ++i) {
      const auto quant = static_cast<WeightQuant>(i);
      if (resolved.linears[i] > 0 && std::find(announced.schemes.begin(), announced.schemes.end(),
                                               quant) == announced.schemes.end())
        resolved.warnings.push_back(
            fmt::format("{} layers are quantised {}, which quantization_config does not "
                        "announce; koho follows the tensors",
                        resolved.linears[i], quant_name(quant)));
    }
    if (quantized_.empty())
      resolved.warnings.push_back("config.json announces FP8 weights; the checkpoint holds none");
    std::sort(quantized_.begin(), quantized_.end());
    const auto contradicted = std::find_if(
        announced.ignored.begin(), announced.ignored.end(), [&](const std::string& name) {
          return std::binary_search(quantized_.begin(), quantized_.end(), name);
        });
    if (contradicted != announced.ignored.end())
      resolved.warnings.push_back(
          fmt::format("quantization_config says that '{}' is not quantised, but it is FP8; "
                      "koho follows the tensors",
                      printable(*contradicted)));
  }

  Status status() const {
    KOHO_TRY(Status(fatal_));
    return problems_.status(checkpoint_.directory().string());
  }

  ResolvedWeights resolved;

 private:
  const CheckpointTensor* take(std::string_view name) {
    const CheckpointTensor* found = checkpoint_.find(name);
    if (found != nullptr)
      used_[static_cast<std::size_t>(found - checkpoint_.tensors().data())] = true;
    return found;
  }

  std::string place(const CheckpointTensor& tensor) const {
    return fmt::format("'{}' in {}", printable(tensor.name), checkpoint_.file_name(tensor));
  }

  void report_missing(const ExpectedWeight& row) {
    std::string hint;
    const std::string module = row.name.substr(0, row.name.rfind('.'));
    for (const auto& [suffix, format] :
         {std::pair{".weight_packed", "packed 4-bit"}, std::pair{".qweight", "AWQ or GPTQ"}}) {
      if (take(module + suffix) == nullptr) continue;
      problems_.add(
          ErrorCode::unsupported,
          fmt::format("'{}{}' is there: {} weights are not supported; expected '{}' {} {}", module,
                      suffix, format, row.name, allowed_dtypes(row.role), to_string(row.shape)));
      return;
    }
    problems_.add(ErrorCode::corrupt_data,
                  fmt::format("missing tensor '{}': expected {} {}, found in no file", row.name,
                              allowed_dtypes(row.role), to_string(row.shape)));
  }

  /// Whether dtype and shape are the row's; reports it if not.
  bool fits(const ExpectedWeight& row, const CheckpointTensor& found) {
    const bool dtype_fits = is_allowed(row.role, found.stored->dtype);
    if (dtype_fits && found.shape == row.shape) return true;
    const char* what = dtype_fits ? "" : unsupported_kind(found);
    problems_.add(
        dtype_fits ? ErrorCode::corrupt_data : ErrorCode::unsupported,
        fmt::format("tensor {}: expected {} {}, found {}{}", place(found), allowed_dtypes(row.role),
                    to_string(row.shape), describe(found), what));
    return false;
  }

  static const char* unsupported_kind(const CheckpointTensor& found) {
    const std::string_view dtype = found.stored->name;
    if (dtype == "U8" || dtype == "F4")
      return " (packed 4-bit weights, NVFP4 for instance, are not supported)";
    if (dtype == "I8") return " (INT8 weights are not supported)";
    if (dtype == "I32") return " (packed integer weights are not supported)";
    if (dtype == "F16" || dtype == "F32") return " (save the model in bfloat16)";
    return "";
  }

  static const char* quant_name(WeightQuant quant) {
    switch (quant) {
      case WeightQuant::none:
        return "not at all";
      case WeightQuant::fp8_channel:
        return "FP8 per channel";
      case WeightQuant::fp8_tensor:
        return "FP8 per tensor";
      case WeightQuant::fp8_block:
        return "FP8 in blocks of 128 x 128";
    }
    return "?";
  }

  ConstTensorView view(const CheckpointTensor& tensor) {
    Result<ConstTensorView> view = checkpoint_.view(tensor);
    if (view.ok()) return *view;
    fatal_ = std::move(view).error();
    return {};
  }

  ConstTensorView widened(ConstTensorView bias) {
    Result<Tensor> wide = Tensor::host(DType::f32, bias.shape);
    if (!wide.ok()) {
      fatal_ = std::move(wide).error();
      return {};
    }
    const BFloat16* from = bias.as<BFloat16>();
    std::transform(from, from + bias.elements(), wide->span<float>().begin(),
                   [](BFloat16 value) { return to_float(value); });
    return checkpoint_.keep(*std::move(wide));
  }

  /// Finds the scale of an FP8 weight. Its name and shape decide the format.
  void scale(const ExpectedWeight& row,
             const std::string& module,
             const CheckpointTensor& weight,
             LinearSource& target) {
    const std::int64_t out = row.shape[0];
    const Shape blocks{ceil_div(out, kQuantBlock), ceil_div(row.shape[1], kQuantBlock)};
    const CheckpointTensor* plain = take(module + ".weight_scale");
    const CheckpointTensor* inverse = take(module + ".weight_scale_inv");
    if ((plain == nullptr) == (inverse == nullptr)) {
      problems_.add(
          ErrorCode::corrupt_data,
          fmt::format("FP8 tensor {} has {} weight_scale_inv; expected one of them", place(weight),
                      plain == nullptr ? "neither weight_scale nor" : "both weight_scale and"));
      return;
    }
    const CheckpointTensor& found = plain != nullptr ? *plain : *inverse;
    const Shape& shape = found.shape;
    std::optional<WeightQuant> quant;
    if (shape == blocks && blocks.elements() > 1) quant = WeightQuant::fp8_block;
    if (plain != nullptr) {
      if (shape == Shape{out} || shape == Shape{out, 1}) quant = WeightQuant::fp8_channel;
      if (shape == Shape{} || shape == Shape{1}) quant = WeightQuant::fp8_tensor;
    }
    if (!quant && shape == blocks) quant = WeightQuant::fp8_block;
    const std::optional<DType> dtype = found.stored->dtype;
    if (!quant || (dtype != DType::f32 && dtype != DType::bf16)) {
      const std::string others =
          plain != nullptr ? fmt::format("[{0}, 1] or [{0}] (channels), [1] (tensor) or ", out)
                           : "";
      problems_.add(ErrorCode::corrupt_data,
                    fmt::format("tensor {}: expected F32 or BF16 {}{} (128 x 128 blocks), found {}",
                                place(found), others, to_string(blocks), describe(found)));
      return;
    }
    target.quant = *quant;
    target.scale = view(found);
    if (target.scale.empty()) return;
    if (*quant == WeightQuant::fp8_channel)
      target.scale = ConstTensorView(target.scale.data, *dtype, {out});
    if (*quant == WeightQuant::fp8_tensor)
      target.scale = ConstTensorView(target.scale.data, *dtype, {1});
  }

  const ModelConfig& config_;
  Checkpoint& checkpoint_;
  std::vector<bool> used_;  // by tensor of the checkpoint
  std::vector<std::string> quantized_;
  Problems problems_;
  Status fatal_;
};

}  // namespace

Result<ResolvedWeights> resolve_weights(const ModelConfig& config, Checkpoint& checkpoint) {
  const bool with_mtp =
      config.num_nextn_predict_layers > 0 &&
      checkpoint.find(layer_prefix(config.num_hidden_layers) + "enorm.weight") != nullptr;
  Resolver resolver(config, checkpoint);
  ModelSources& sources = resolver.resolved.sources;
  WeightWalk<Resolver>(config, resolver).model(sources, with_mtp);
  if (sources.mtp && sources.mtp->embedding.empty()) sources.mtp->embedding = sources.embedding;
  if (sources.mtp && sources.mtp->head.weight.empty()) sources.mtp->head = sources.lm_head;
  resolver.leftovers(with_mtp);
  KOHO_TRY(resolver.status());
  resolver.compare_with_config();
  return std::move(resolver.resolved);
}

}  // namespace koho
