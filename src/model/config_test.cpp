// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "model/memory_plan.h"
#include "tests/support/test_checkpoint.h"

namespace koho {
namespace {

using Json = nlohmann::ordered_json;

std::string released(const std::string& name) {
  return *read_file(std::string(KOHO_SOURCE_DIR) + "/tests/data/configs/" + name + ".json",
                    1U << 20U);
}

Json small() {
  return Json::parse(testing::config_json(testing::small_config()));
}

struct Parsed {
  Result<ModelConfig> config;
  std::vector<std::string> warnings;
};

Parsed parse(const Json& json) {
  std::vector<std::string> warnings;
  Result<ModelConfig> config = parse_model_config(json.dump(), warnings);
  return {std::move(config), std::move(warnings)};
}

/// The error must hold every one of `words`.
void expect_error(const Json& json, const std::vector<std::string>& words, ErrorCode code) {
  const Parsed parsed = parse(json);
  ASSERT_FALSE(parsed.config.ok()) << json.dump();
  EXPECT_EQ(parsed.config.error().code, code) << parsed.config.error().message;
  for (const std::string& word : words)
    EXPECT_NE(parsed.config.error().message.find(word), std::string::npos)
        << word << " is not in: " << parsed.config.error().message;
}

TEST(ModelConfig, ReadsTheReleasedModels) {
  std::vector<std::string> warnings;
  const Result<ModelConfig> read = parse_model_config(released("glm-4.7"), warnings);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_TRUE(warnings.empty());
  const ModelConfig& config = *read;
  EXPECT_EQ(config.vocab_size, 151552);
  EXPECT_EQ(config.hidden_size, 5120);
  EXPECT_EQ(config.num_hidden_layers, 92);
  EXPECT_EQ(config.query_width(), 12288);
  EXPECT_EQ(config.key_value_width(), 1024);
  EXPECT_EQ(config.rotary_dim(), 64);
  EXPECT_EQ(config.num_moe_layers(), 89);
  EXPECT_FALSE(config.is_moe(2));
  EXPECT_TRUE(config.is_moe(3));
  EXPECT_EQ(kv_bytes_per_token(config, DType::bf16), 376'832);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.routed_scaling_factor, 2.5);
  EXPECT_TRUE(config.use_qk_norm);
  EXPECT_EQ(config.eos_token_ids, (std::vector<std::int32_t>{151329, 151336, 151338}));
  EXPECT_FALSE(config.quantization);

  const Result<ModelConfig> fp8 = parse_model_config(released("glm-4.7-fp8"), warnings);
  ASSERT_TRUE(fp8.ok()) << fp8.error().message;
  ASSERT_TRUE(fp8->quantization);
  EXPECT_EQ(fp8->quantization->schemes, std::vector<WeightQuant>{WeightQuant::fp8_channel});
  EXPECT_EQ(fp8->quantization->ignored.size(), 92U);
}

TEST(ModelConfig, ParametersAreThoseOfTheReleasedModels) {
  const struct {
    const char* name;
    double main_b;      // billions
    double with_mtp_b;  // without the MTP layer's own embedding and head
    double all_b;
  } kCases[] = {{"glm-4.5", 352.798, 356.786, 358.338},
                {"glm-4.6", 352.798, 356.786, 358.338},
                {"glm-4.7", 352.798, 356.786, 358.338},
                {"glm-4.5-air", 106.852, 0, 0}};
  for (const auto& row : kCases) {
    std::vector<std::string> warnings;
    const ParameterCounts counts =
        count_parameters(*parse_model_config(released(row.name), warnings));
    EXPECT_NEAR(static_cast<double>(counts.main) / 1e9, row.main_b, 0.0005) << row.name;
    if (row.all_b == 0) continue;
    EXPECT_NEAR(static_cast<double>(counts.main + counts.mtp) / 1e9, row.with_mtp_b, 0.0005)
        << row.name;
    EXPECT_NEAR(static_cast<double>(counts.main + counts.mtp + counts.mtp_own) / 1e9, row.all_b,
                0.0005)
        << row.name;
    // Attention with biases and norms, three dense layers, 89 times router, bias, shared expert and
    // 8 experts, final norm, head.
    const std::int64_t attention =
        2 * 12288 * 5120 + 2 * 1024 * 5120 + 12288 + 2 * 1024 + 2 * 128 + 2 * 5120;
    const std::int64_t expert = 3 * 1536 * 5120;
    EXPECT_EQ(counts.active, 92 * attention + 3 * (3 * std::int64_t{12288} * 5120) +
                                 89 * (160 * 5120 + 160 + 9 * expert) + 5120 +
                                 std::int64_t{151552} * 5120)
        << row.name;
  }
}

TEST(ModelConfig, EveryMissingKeyIsAnErrorThatNamesIt) {
  const Json good = small();
  ASSERT_TRUE(parse(good).config.ok()) << parse(good).config.error().message;
  int errors = 0;
  for (const auto& [key, value] : good.items()) {
    Json without = good;
    without.erase(key);
    if (key == "partial_rotary_factor" || key == "rope_scaling" || key == "eos_token_id") {
      EXPECT_TRUE(parse(without).config.ok()) << key;
      continue;
    }
    expect_error(without, {key, "missing"}, ErrorCode::invalid_argument);
    ++errors;
  }
  EXPECT_EQ(errors, 27);
}

TEST(ModelConfig, EveryKeyOfTheWrongKindIsAnErrorThatNamesIt) {
  const Json good = small();
  for (const auto& [key, value] : good.items()) {
    for (const Json& wrong :
         {Json("12"), Json(12.5), Json(true), Json::array({1}), Json::object()}) {
      const bool still_good = (wrong == 12.5 && key == "rope_theta") ||
                              (wrong == 12.5 && key == "routed_scaling_factor") ||
                              (wrong == true && value.is_boolean()) ||
                              (wrong == Json::array({1}) && key == "eos_token_id") ||
                              (wrong.is_object() && key == "rope_scaling");
      if (still_good) continue;
      Json changed = good;
      changed[key] = wrong;
      const Parsed parsed = parse(changed);
      ASSERT_FALSE(parsed.config.ok()) << key << " " << wrong;
      EXPECT_NE(parsed.config.error().message.find(key), std::string::npos)
          << parsed.config.error().message;
    }
  }
}

TEST(ModelConfig, NumbersOutOfRangeAreErrors) {
  for (const char* key :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "intermediate_size", "moe_intermediate_size",
        "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "n_group", "topk_group",
        "max_position_embeddings"}) {
    for (const std::int64_t value :
         {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 31, std::int64_t{INT64_MAX}}) {
      Json changed = small();
      changed[key] = value;
      expect_error(changed, {key, std::to_string(value)}, ErrorCode::invalid_argument);
    }
  }
  for (const char* key :
       {"rms_norm_eps", "rope_theta", "partial_rotary_factor", "routed_scaling_factor"}) {
    for (const double value : {0.0, -1.0, 1e300}) {
      Json changed = small();
      changed[key] = value;
      expect_error(changed, {key}, ErrorCode::invalid_argument);
    }
  }
}

TEST(ModelConfig, NumbersMustAgree) {
  const struct {
    Json changes;
    std::vector<std::string> words;
  } kCases[] = {
      {{{"num_key_value_heads", 3}}, {"num_attention_heads 4", "num_key_value_heads 3"}},
      {{{"num_experts_per_tok", 5}}, {"num_experts_per_tok 5", "n_routed_experts 4"}},
      {{{"n_group", 3}}, {"n_group 3"}},
      {{{"topk_group", 2}}, {"topk_group 2"}},
      {{{"n_group", 4}, {"topk_group", 4}}, {"n_group 4"}},
      {{{"n_group", 2}, {"num_experts_per_tok", 3}}, {"num_experts_per_tok 3"}},
      {{{"first_k_dense_replace", 3}}, {"first_k_dense_replace 3"}},
      {{{"partial_rotary_factor", 0.4}}, {"partial_rotary_factor", "3 dims"}},
      {{{"head_dim", 3}}, {"head_dim 3"}},
      {{{"num_hidden_layers", 1024}, {"n_routed_experts", 4096}}, {"n_routed_experts 4096"}},
      {{{"eos_token_id", 96}}, {"eos_token_id", "96"}},
      {{{"eos_token_id", -1}}, {"eos_token_id", "-1"}},
  };
  for (const auto& row : kCases) {
    Json changed = small();
    changed.update(row.changes);
    expect_error(changed, row.words, ErrorCode::invalid_argument);
  }
}

TEST(ModelConfig, OtherModelsAndVariantsAreRefusedByName) {
  const struct {
    const char* key;
    Json value;
  } kCases[] = {
      {"model_type", "glm4"},
      {"model_type", "deepseek_v3"},
      {"architectures", Json::array({"Glm4vMoeForConditionalGeneration"})},
      {"hidden_act", "gelu"},
      {"tie_word_embeddings", true},
      {"dtype", "float16"},
      {"torch_dtype", "float32"},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}},
      {"rope_scaling", {{"type", "linear"}}},
      {"rope_parameters", {{"rope_type", "dynamic"}}},
      {"rope_parameters", {{"rope_type", "default"}, {"mrope_section", {8, 12, 12}}}},
      {"rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}}},
      {"sliding_window", 4096},
      {"use_sliding_window", true},
      {"attention_sinks", true},
      {"attn_output_gate", true},
      {"kv_lora_rank", 512},
      {"index_topk", 2048},
      {"final_logit_softcapping", 30.0},
      {"mlp_bias", true},
      {"rope_interleave", true},
      {"scoring_func", "softmax"},
      {"topk_method", "greedy"},
      {"moe_layer_freq", 2},
      {"layer_types", {"full_attention", "sliding_attention"}},
      {"vision_config", {{"depth", 24}}},
  };
  for (const auto& row : kCases) {
    Json changed = small();
    changed[row.key] = row.value;
    expect_error(changed, {row.key}, ErrorCode::unsupported);
  }
}

TEST(ModelConfig, SilentVariantsArePassedOver) {
  Json json = small();
  json.update({{"sliding_window", nullptr},
               {"use_sliding_window", false},
               {"mlp_bias", false},
               {"kv_lora_rank", nullptr},
               {"scoring_func", "sigmoid"},
               {"topk_method", "noaux_tc"},
               {"moe_layer_freq", 1},
               {"layer_types", {"full_attention", "full_attention"}},
               {"use_cache", true}});
  const Parsed parsed = parse(json);
  ASSERT_TRUE(parsed.config.ok()) << parsed.config.error().message;
  EXPECT_TRUE(parsed.warnings.empty());
}

TEST(ModelConfig, UnknownKeysAreWarnings) {
  Json json = small();
  json["a_new_idea"] = 3;
  const Parsed parsed = parse(json);
  ASSERT_TRUE(parsed.config.ok());
  ASSERT_EQ(parsed.warnings.size(), 1U);
  EXPECT_NE(parsed.warnings[0].find("a_new_idea"), std::string::npos);
}

TEST(ModelConfig, LayerTypesMustAgreeWithFirstKDenseReplace) {
  Json json = small();
  const std::int64_t layers = json["num_hidden_layers"];
  const std::int64_t dense = json["first_k_dense_replace"];
  Json types = Json::array();
  for (std::int64_t i = 0; i < layers; ++i) types.push_back(i < dense ? "dense" : "sparse");
  json["mlp_layer_types"] = types;
  const Parsed good = parse(json);
  ASSERT_TRUE(good.config.ok()) << good.config.error().message;
  EXPECT_TRUE(good.warnings.empty());
  json["mlp_layer_types"].back() = "dense";
  expect_error(json, {"mlp_layer_types", "first_k_dense_replace", "sparse"},
               ErrorCode::invalid_argument);
  types.push_back("sparse");
  json["mlp_layer_types"] = types;
  expect_error(json, {"mlp_layer_types", std::to_string(layers)}, ErrorCode::invalid_argument);
}

TEST(ModelConfig, ANumberIsShownAsItStands) {
  Json json = small();
  json["head_dim"] = 8.0;
  expect_error(json, {"'head_dim' is 8.0; expected an integer"}, ErrorCode::invalid_argument);
}

TEST(ModelConfig, ReadsTheFormOfTransformers5) {
  Json json = small();
  for (const char* key : {"rope_theta", "rope_scaling", "partial_rotary_factor", "torch_dtype"})
    json.erase(key);
  json["dtype"] = "bfloat16";
  json["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.25}};
  json["bos_token_id"] = nullptr;
  Parsed parsed = parse(json);
  ASSERT_TRUE(parsed.config.ok()) << parsed.config.error().message;
  EXPECT_EQ(parsed.config->rope_theta, 10000.0);
  EXPECT_EQ(parsed.config->rotary_dim(), 2);
  EXPECT_TRUE(parsed.warnings.empty());

  // Both forms at once must agree.
  json["rope_theta"] = 10000;
  json["torch_dtype"] = "bfloat16";
  EXPECT_TRUE(parse(json).config.ok());
  json["rope_theta"] = 1000000;
  expect_error(json, {"rope_theta", "10000", "1000000"}, ErrorCode::invalid_argument);
  json.erase("rope_theta");
  json["torch_dtype"] = "float16";
  expect_error(json, {"torch_dtype"}, ErrorCode::unsupported);
  json.erase("torch_dtype");

  // The factor: the dict, then the top, then one half.
  json["rope_parameters"].erase("partial_rotary_factor");
  EXPECT_EQ(parse(json).config->partial_rotary_factor, 0.5);
  json["partial_rotary_factor"] = 1.0;
  EXPECT_EQ(parse(json).config->partial_rotary_factor, 1.0);
}

TEST(ModelConfig, TextThatIsNoConfigIsAnError) {
  std::vector<std::string> warnings;
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("[]"), std::string("{"),
        std::string("{}{}"), std::string("{\"a\":1,\"a\":2}"), std::string("{\"a\":\"\xFF\"}"),
        std::string("\xEF\xBB\xBF{}"), std::string(200, '['), std::string("{}\0", 3)}) {
    const Result<ModelConfig> config = parse_model_config(text, warnings);
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_EQ(config.error().code, ErrorCode::corrupt_data) << config.error().message;
    EXPECT_NE(config.error().message.find("config.json"), std::string::npos);
  }
}

struct ParsedGeneration {
  Result<GenerationConfig> config;
  std::vector<std::string> warnings;
};

ParsedGeneration parse_generation(const std::string& text, const ModelConfig& model) {
  std::vector<std::string> warnings;
  Result<GenerationConfig> config = parse_generation_config(text, model, warnings);
  return {std::move(config), std::move(warnings)};
}

TEST(GenerationConfig, StopTokensComeFromItThenFromTheModel) {
  ModelConfig model = testing::small_config();
  const auto stops = [&](const char* text) {
    return parse_generation(text, model).config->eos_token_ids;
  };
  EXPECT_EQ(stops(R"({"eos_token_id":7})"), std::vector<std::int32_t>{7});
  EXPECT_EQ(stops(R"({"eos_token_id":[7,8]})"), (std::vector<std::int32_t>{7, 8}));
  EXPECT_EQ(stops("{}"), *model.eos_token_ids);
  EXPECT_EQ(stops(R"({"eos_token_id":null})"), *model.eos_token_ids);
  model.eos_token_ids.reset();
  EXPECT_TRUE(stops(R"({"eos_token_id":null})").empty());
  const Result<GenerationConfig> none = parse_generation("{}", model).config;
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().message,
            "neither generation_config.json nor config.json has the key 'eos_token_id'");
}

TEST(GenerationConfig, ReadsSamplingAdviceInTheRangesOfARequest) {
  const ModelConfig model = testing::small_config();
  const ParsedGeneration parsed = parse_generation(
      R"({"temperature":1.0,"top_p":0.95,"top_k":40,"do_sample":true,"repetition_penalty":1.1,"_from_model_config":true})",
      model);
  const GenerationConfig& read = *parsed.config;
  EXPECT_EQ(read.sampling.temperature, 1.0);
  EXPECT_EQ(read.sampling.top_p, 0.95);
  EXPECT_EQ(read.sampling.top_k, 40);
  EXPECT_EQ(read.do_sample, true);
  EXPECT_EQ(read.sampling.repetition_penalty, 1.1);
  EXPECT_EQ(read.sampling.min_p, SamplingParameters{}.min_p);
  EXPECT_TRUE(parsed.warnings.empty());
  EXPECT_EQ(parse_generation(R"({"top_k":-1})", model).config->sampling.top_k, -1)
      << "off, as in a request";
  for (const char* text :
       {R"({"temperature":-1})", R"({"temperature":"hot"})", R"({"temperature":5})",
        R"({"top_p":1.5})", R"({"top_p":0})", R"({"min_p":1.5})", R"({"repetition_penalty":3})",
        R"({"repetition_penalty":0})", R"({"top_k":-2})", R"({"top_k":0.5})", R"({"top_k":97})",
        R"({"top_k":2147483647})", R"({"do_sample":1})", R"({"eos_token_id":[96]})",
        R"({"eos_token_id":"x"})"}) {
    const Result<GenerationConfig> refused = parse_generation(text, model).config;
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    const std::string key = std::string(text).substr(2, std::string(text).find(':') - 3);
    EXPECT_NE(refused.error().message.find("generation_config.json: "), std::string::npos)
        << refused.error().message;
    EXPECT_NE(refused.error().message.find(key), std::string::npos) << refused.error().message;
  }
}

TEST(GenerationConfig, WarnsOfAdviceItDoesNotFollow) {
  const ParsedGeneration parsed = parse_generation(
      R"({"_from_model_config":true,"transformers_version":"4.56.2","pad_token_id":1,"bos_token_id":2,
          "do_sample":true,"use_cache":true,"suppress_tokens":[5],"num_beams":4})",
      testing::small_config());
  ASSERT_TRUE(parsed.config.ok());
  EXPECT_EQ(
      parsed.warnings,
      (std::vector<std::string>{
          "generation_config.json: koho does not know the key 'suppress_tokens' and ignores it",
          "generation_config.json: koho does not know the key 'num_beams' and ignores it"}));
}

Json fp8(Json more) {
  Json json{{"num_bits", 8}, {"type", "float"}, {"symmetric", true}};
  json.update(more);
  return json;
}

Json compressed_tensors() {
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights", fp8({{"strategy", "channel"}, {"dynamic", false}})},
              {"input_activations", fp8({{"strategy", "token"}, {"dynamic", true}})}}}}},
          {"ignore", {"lm_head"}}};
}

TEST(QuantizationConfig, ReadsTheFp8Schemes) {
  Json json = small();
  json["quantization_config"] = compressed_tensors();
  EXPECT_EQ(parse(json).config->quantization->schemes, std::vector{WeightQuant::fp8_channel});
  Json& group = json["quantization_config"]["config_groups"]["group_0"];
  group["weights"]["strategy"] = "tensor";
  EXPECT_EQ(parse(json).config->quantization->schemes, std::vector{WeightQuant::fp8_tensor});
  group["weights"].update({{"strategy", "block"}, {"block_structure", {128, 128}}});
  group["input_activations"].update({{"strategy", "group"}, {"group_size", 128}});
  EXPECT_EQ(parse(json).config->quantization->schemes, std::vector{WeightQuant::fp8_block});
  json["quantization_config"] = {{"quant_method", "fp8"},
                                 {"activation_scheme", "dynamic"},
                                 {"weight_block_size", {128, 128}},
                                 {"modules_to_not_convert", {"lm_head"}}};
  EXPECT_EQ(parse(json).config->quantization->schemes, std::vector{WeightQuant::fp8_block});
  EXPECT_EQ(parse(json).config->quantization->ignored, std::vector<std::string>{"lm_head"});
}

TEST(QuantizationConfig, OtherSchemesAreRefusedByName) {
  const auto refused = [](const Json& quantization, const std::string& word) {
    Json json = small();
    json["quantization_config"] = quantization;
    const Parsed parsed = parse(json);
    ASSERT_FALSE(parsed.config.ok()) << quantization;
    EXPECT_NE(parsed.config.error().message.find(word), std::string::npos)
        << parsed.config.error().message;
    EXPECT_NE(parsed.config.error().message.find("quantization_config"), std::string::npos);
  };
  for (const char* method : {"modelopt", "awq", "gptq", "bitsandbytes", "fbgemm_fp8", "mxfp4"})
    refused({{"quant_method", method}}, method);
  refused(Json::object(), "quant_method");
  refused(Json::array(), "array");
  Json json = compressed_tensors();
  json["format"] = "nvfp4-pack-quantized";
  refused(json, "nvfp4-pack-quantized");
  json = compressed_tensors();
  json["kv_cache_scheme"] = fp8(Json::object());
  refused(json, "kv_cache_scheme");
  const auto change = [&](const char* part, const char* key, const Json& value, const char* word) {
    Json changed = compressed_tensors();
    changed["config_groups"]["group_0"][part][key] = value;
    refused(changed, word);
  };
  change("weights", "num_bits", 4, "num_bits 4");
  change("weights", "type", "int", "int");
  change("weights", "strategy", "group", "group");
  change("weights", "symmetric", false, "symmetric");
  change("weights", "dynamic", true, "dynamic");
  change("input_activations", "dynamic", false, "static activation scales");
  change("input_activations", "strategy", "tensor", "tensor");
  json = compressed_tensors();
  json["config_groups"]["group_0"]["input_activations"] = nullptr;
  refused(json, "input_activations");
  json = compressed_tensors();
  json["config_groups"]["group_0"]["weights"].update(
      {{"strategy", "block"}, {"block_structure", {64, 64}}});
  refused(json, "block_structure");
  refused({{"quant_method", "fp8"}, {"activation_scheme", "static"}}, "static");
  refused(
      {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {64, 64}}},
      "weight_block_size");
}

}  // namespace
}  // namespace koho
