// SPDX-License-Identifier: Apache-2.0
// Small glm4_moe checkpoints with random weights, written as the released ones are: config.json,
// generation_config.json, shards and an index. Every number is a function of the seed, the tensor's
// name and the element's place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/weights.h"
#include "tests/support/safetensors_writer.h"

namespace koho::testing {

/// A model of two layers, one dense and one sparse, with odd widths: small enough for thousands.
ModelConfig small_config();

/// The config.json of `config`, in transformers' version 4 form.
std::string config_json(const ModelConfig& config);

struct CheckpointRecipe {
  ModelConfig config = small_config();
  /// How each linear layer is stored; all BF16 without it. The row is its line of the table.
  std::function<WeightQuant(const ExpectedWeight& row)> quant;
  std::string scale_dtype = "F32";   // or BF16
  bool channel_scale_column = true;  // [N, 1], else [N]
  bool inverse_name = false;         // block scales as weight_scale_inv
  bool with_mtp = true;
  bool own_mtp_embedding = true;
  bool fused_experts = false;  // transformers 5: two tensors a layer; BF16 only
  std::uint64_t seed = 1;
  double amplitude = 0.05;  // of uniform weights around 0; norms are around 1
};

/// The tensors of the checkpoint, in the order of the table.
std::vector<TensorToWrite> random_tensors(const CheckpointRecipe& recipe);

/// Writes tensors as `num_shards` files with an index, or as one file for 0.
void write_tensors(const std::filesystem::path& directory,
                   const std::vector<TensorToWrite>& tensors,
                   int num_shards,
                   std::size_t data_offset = 0);

/// The whole directory: config.json, generation_config.json and the tensors.
void write_checkpoint(const std::filesystem::path& directory,
                      const CheckpointRecipe& recipe,
                      int num_shards = 2);

}  // namespace koho::testing
