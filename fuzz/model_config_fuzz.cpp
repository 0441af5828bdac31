// SPDX-License-Identifier: Apache-2.0
// config.json and generation_config.json of arbitrary text: an accepted config satisfies everything
// that model/config.h promises, checked here again with 128-bit arithmetic. Input: the text, which
// is parsed as both.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "model/config.h"
#include "sampling/parameters.h"

namespace koho {
namespace {

using Wide = __int128;

void check_fits(std::initializer_list<std::int64_t> sizes) {
  Wide product = 1;
  for (const std::int64_t size : sizes) {
    KOHO_CHECK(size >= 0);
    product *= size;
    KOHO_CHECK(product <= (Wide{1} << 62));
  }
}

void check_ids(const std::vector<std::int32_t>& ids, std::int64_t vocab_size) {
  for (const std::int32_t id : ids) KOHO_CHECK(id >= 0 && id < vocab_size);
}

void check_config(const ModelConfig& c) {
  for (const std::int64_t size :
       {c.vocab_size, c.hidden_size, c.num_hidden_layers, c.num_attention_heads,
        c.num_key_value_heads, c.head_dim, c.intermediate_size, c.moe_intermediate_size,
        c.n_routed_experts, c.n_shared_experts, c.num_experts_per_tok, c.n_group, c.topk_group,
        c.max_position_embeddings})
    KOHO_CHECK(size >= 1 && size <= (1 << 24));
  KOHO_CHECK(c.num_attention_heads % c.num_key_value_heads == 0);
  KOHO_CHECK(c.n_routed_experts % c.n_group == 0 && c.topk_group <= c.n_group);
  KOHO_CHECK(c.n_group == 1 || c.n_routed_experts / c.n_group >= 2);
  KOHO_CHECK(c.num_experts_per_tok <= c.topk_group * (c.n_routed_experts / c.n_group));
  KOHO_CHECK(c.first_k_dense_replace >= 0 && c.first_k_dense_replace <= c.num_hidden_layers);
  KOHO_CHECK(c.num_nextn_predict_layers == 0 || c.num_nextn_predict_layers == 1);
  KOHO_CHECK(c.rotary_dim() >= 2 && c.rotary_dim() <= c.head_dim && c.rotary_dim() % 2 == 0);
  for (const double number :
       {c.rms_norm_eps, c.rope_theta, c.partial_rotary_factor, c.routed_scaling_factor})
    KOHO_CHECK(std::isfinite(number) && number > 0.0);
  check_fits(
      {c.num_hidden_layers, c.n_routed_experts, 3, c.moe_intermediate_size, c.hidden_size, 4});
  check_fits(
      {c.num_hidden_layers, c.n_shared_experts, 3, c.moe_intermediate_size, c.hidden_size, 4});
  check_fits({c.num_hidden_layers, 3, c.intermediate_size, c.hidden_size, 4});
  check_fits({c.num_hidden_layers, 4, c.num_attention_heads, c.head_dim, c.hidden_size, 4});
  check_fits({2, c.vocab_size, c.hidden_size, 4});
  check_fits(
      {2, c.num_hidden_layers, c.num_key_value_heads, c.head_dim, 4, c.max_position_embeddings});
  check_fits(
      {c.num_hidden_layers, c.n_routed_experts, 1 << 10});  // entries of the table of tensors
  if (c.eos_token_ids) check_ids(*c.eos_token_ids, c.vocab_size);
  if (c.quantization) {
    KOHO_CHECK(!c.quantization->schemes.empty());
    for (const WeightQuant scheme : c.quantization->schemes)
      KOHO_CHECK(scheme != WeightQuant::none);
  }
}

void check_generation(std::string_view text, const ModelConfig& model) {
  std::vector<std::string> warnings;
  const Result<GenerationConfig> generation = parse_generation_config(text, model, warnings);
  if (!generation.ok()) return;
  check_ids(generation->eos_token_ids, model.vocab_size);
  // Whatever the file advises, no request that takes the advice is refused for it.
  const SamplingParameters& advice = generation->sampling;
  KOHO_CHECK(validate(advice, model.vocab_size).ok());
  for (const SamplingParameter& row : kSamplingParameters)
    if (row.number != nullptr) KOHO_CHECK(std::isfinite(advice.*row.number));
  KOHO_CHECK(advice.top_k >= -1 && advice.top_k <= model.vocab_size);
}

}  // namespace
}  // namespace koho

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace koho;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> warnings;
  const Result<ModelConfig> config = parse_model_config(text, warnings);
  if (config.ok())
    check_config(*config);
  else
    KOHO_CHECK(!config.error().message.empty());
  ModelConfig model;
  model.vocab_size = 151552;
  check_generation(text, model);
  return 0;
}
