// SPDX-License-Identifier: Apache-2.0
// The random checkpoints of the goldens: byte for byte what tools/golden/generator.py makes from
// the same spec (tests/golden/checkpoints.json), so that the reference's outputs can be committed
// and the checkpoints need not be. For tests that need no such outputs there is
// tests/support/test_checkpoint.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/support/safetensors_writer.h"

namespace koho::testing {

/// One checkpoint of checkpoints.json; keys of config.json have their names.
struct RandomCheckpointSpec {
  std::string name;
  std::uint64_t seed = 0;
  std::int64_t prompt_tokens = 0;
  int shards = 1;

  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t moe_intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocab_size = 0;
  std::int64_t first_k_dense_replace = 0;
  std::int64_t n_routed_experts = 0;
  std::int64_t n_shared_experts = 0;
  std::int64_t num_nextn_predict_layers = 0;
  bool attention_bias = false;
  bool use_qk_norm = false;

  bool mtp_embeddings = false;             // the MTP layer has its own embedding and head
  std::int64_t correction_bias_shift = 0;  // added to every e_score_correction_bias
  std::map<std::string, std::int64_t> gains;
  std::string quantization;  // "none", or what config.json names: channel, tensor, block, fp8
  std::vector<std::pair<std::string, std::string>> schemes;  // text in a module's name → storage
  std::string config;  // config.json, but for quantization_config's list of unquantised modules

  bool one_layer_fp8() const { return num_hidden_layers == 1 && quantization != "none"; }
};

/// All specs of a checkpoints.json. Errors: corrupt_data.
Result<std::vector<RandomCheckpointSpec>> parse_random_checkpoints(std::string_view json);

/// Every file of the checkpoint: name → bytes.
std::map<std::string, std::string> random_checkpoint_files(const RandomCheckpointSpec& spec);

/// Writes the files into `directory`, which must exist.
void write_random_checkpoint(const std::filesystem::path& directory,
                             const RandomCheckpointSpec& spec);

/// The prompt: prompt_tokens ids below vocab_size.
std::vector<std::int32_t> random_checkpoint_prompt(const RandomCheckpointSpec& spec);

}  // namespace koho::testing
