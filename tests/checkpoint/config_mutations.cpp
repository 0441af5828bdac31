// SPDX-License-Identifier: Apache-2.0
// Broken config.json and generation_config.json: no JSON, keys left out, values of the wrong kind,
// out of range, or contradicted by the tensors.
#include <filesystem>
#include <utility>

#include <fmt/core.h>

#include "tests/checkpoint/mutation_table.h"

namespace koho::testing {
namespace {

constexpr const char* kNeededKeys[] = {"architectures",
                                       "model_type",
                                       "hidden_act",
                                       "tie_word_embeddings",
                                       "torch_dtype",
                                       "vocab_size",
                                       "hidden_size",
                                       "num_hidden_layers",
                                       "num_attention_heads",
                                       "num_key_value_heads",
                                       "head_dim",
                                       "intermediate_size",
                                       "moe_intermediate_size",
                                       "n_routed_experts",
                                       "n_shared_experts",
                                       "num_experts_per_tok",
                                       "n_group",
                                       "topk_group",
                                       "first_k_dense_replace",
                                       "num_nextn_predict_layers",
                                       "max_position_embeddings",
                                       "rms_norm_eps",
                                       "rope_theta",
                                       "routed_scaling_factor",
                                       "attention_bias",
                                       "use_qk_norm",
                                       "norm_topk_prob"};

/// What is replaced, by what, and a word of the error.
constexpr std::pair<std::pair<const char*, const char*>, const char*> kValues[] = {
    {{"\"hidden_size\":24", "\"hidden_size\":\"24\""}, "hidden_size"},
    {{"\"hidden_size\":24", "\"hidden_size\":24.0"}, "hidden_size"},
    {{"\"hidden_size\":24", "\"hidden_size\":-24"}, "hidden_size"},
    {{"\"hidden_size\":24", "\"hidden_size\":0"}, "hidden_size"},
    {{"\"hidden_size\":24", "\"hidden_size\":9223372036854775807"}, "hidden_size"},
    {{"\"hidden_size\":24", "\"hidden_size\":null"}, "hidden_size"},
    {{"\"hidden_size\":24", "\"hidden_size\":26"}, "[96, 26]"},
    {{"\"vocab_size\":96", "\"vocab_size\":97"}, "model.embed_tokens.weight"},
    {{"\"num_hidden_layers\":2", "\"num_hidden_layers\":1000000"}, "num_hidden_layers"},
    {{"\"num_hidden_layers\":2", "\"num_hidden_layers\":3"}, "model.layers.2"},
    {{"\"num_hidden_layers\":2", "\"num_hidden_layers\":1"}, "model.layers.2"},
    {{"\"n_routed_experts\":4", "\"n_routed_experts\":5"}, "experts.4.gate_proj"},
    {{"\"n_routed_experts\":4", "\"n_routed_experts\":3"}, "experts.3"},
    {{"\"n_routed_experts\":4", "\"n_routed_experts\":4096"}, "and "},
    {{"\"num_key_value_heads\":2", "\"num_key_value_heads\":3"}, "num_key_value_heads"},
    {{"\"num_key_value_heads\":2", "\"num_key_value_heads\":4"}, "k_proj"},
    {{"\"head_dim\":8", "\"head_dim\":7"}, "head_dim"},
    {{"\"head_dim\":8", "\"head_dim\":16"}, "q_norm"},
    {{"\"num_experts_per_tok\":2", "\"num_experts_per_tok\":5"}, "num_experts_per_tok"},
    {{"\"topk_group\":1", "\"topk_group\":2"}, "topk_group"},
    {{"\"first_k_dense_replace\":1", "\"first_k_dense_replace\":2"},
     "model.layers.1.mlp.gate_proj.weight"},
    {{"\"first_k_dense_replace\":1", "\"first_k_dense_replace\":0"},
     "model.layers.0.mlp.gate.weight"},
    {{"\"use_qk_norm\":true", "\"use_qk_norm\":false"}, "q_norm"},
    {{"\"attention_bias\":true", "\"attention_bias\":false"}, "q_proj.bias"},
    {{"\"attention_bias\":true", "\"attention_bias\":1"}, "attention_bias"},
    {{"\"hidden_act\":\"silu\"", "\"hidden_act\":\"gelu\""}, "gelu"},
    {{"\"tie_word_embeddings\":false", "\"tie_word_embeddings\":true"}, "tie_word_embeddings"},
    {{"\"torch_dtype\":\"bfloat16\"", "\"torch_dtype\":\"float32\""}, "float32"},
    {{"\"model_type\":\"glm4_moe\"", "\"model_type\":\"glm4\""}, "glm4"},
    {{"\"rope_scaling\":null", "\"rope_scaling\":{\"rope_type\":\"yarn\"}"}, "yarn"},
    {{"\"rope_scaling\":null", "\"sliding_window\":4096"}, "sliding_window"},
    {{"\"rope_scaling\":null", "\"quantization_config\":{\"quant_method\":\"modelopt\"}"},
     "modelopt"},
    {{"\"partial_rotary_factor\":0.5", "\"partial_rotary_factor\":2"}, "partial_rotary_factor"},
    {{"\"eos_token_id\":[90,91]", "\"eos_token_id\":[90,1000]"}, "1000"},
};

void add_model_config(Table& table) {
  const std::string file = "config.json";
  add_bad_json(table, file);
  for (const char* key : kNeededKeys)
    table.text(file, fmt::format("\"{}\":", key), fmt::format("\"x_{}\":", key), {key, "missing"});
  for (const auto& [change, word] : kValues) table.text(file, change.first, change.second, {word});
  table.add("config.json: absent", {file}, [=](DirectoryImage& image) { image.files.erase(file); });
  table.add("config.json: a directory", {file}, [=](DirectoryImage& image) {
    image.files.erase(file);
    image.afterwards = [=](const std::filesystem::path& path) {
      std::filesystem::create_directory(path / file);
    };
  });
  table.add("config.json: 9 MiB", {file},
            [=](DirectoryImage& image) { image.files[file] += std::string(9U << 20U, ' '); });
}

void add_generation_config(Table& table) {
  const std::string file = "generation_config.json";
  add_bad_json(table, file);
  table.text(file, "[90,91]", "96", {"eos_token_id", "96"});
  table.text(file, "[90,91]", "[90,-1]", {"eos_token_id", "-1"});
  table.text(file, "[90,91]", "\"90\"", {"eos_token_id"});
  table.text(file, "1.0", "-1.0", {"temperature"});
  table.text(file, "1.0", "\"hot\"", {"temperature"});
}

}  // namespace

/// Texts that are no JSON object, for any file that must be one.
void add_bad_json(Table& table, const std::string& file) {
  const std::pair<const char*, std::string> kTexts[] = {
      {"empty", ""},
      {"blanks", "  \n"},
      {"null", "null"},
      {"array", "[]"},
      {"number", "12"},
      {"string", "\"text\""},
      {"half", "{\"a\":"},
      {"two values", "{}{}"},
      {"a key twice",
       R"({"weight_map":{},"weight_map":{},"model_type":"a","model_type":"b","eos_token_id":1,"eos_token_id":2})"},
      {"bad UTF-8", "{\"\xFF\xFE\":1}"},
      {"overlong UTF-8", "{\"\xC0\x80\":1}"},
      {"UTF-16", std::string("{\0\"\0", 4)},
      {"a byte order mark", "\xEF\xBB\xBF{}"},
      {"a zero byte", std::string("{}\0", 3)},
      {"deep arrays", "{\"a\":" + std::string(5000, '[')},
      {"deep objects",
       [] {
         std::string text;
         for (int i = 0; i < 5000; ++i) text += "{\"a\":";
         return text;
       }()},
      {"a huge integer", "{\"a\":123456789012345678901234567890}"},
      {"NaN", "{\"a\":NaN}"},
      {"a comment", "{} // done"},
      {"a web page", "<!DOCTYPE html><html></html>"},
      {"a Git LFS pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"},
  };
  for (const auto& [what, text] : kTexts) table.file(file, what, text, {});
}

void add_config_mutations(Table& table) {
  add_model_config(table);
  add_generation_config(table);
}

}  // namespace koho::testing
