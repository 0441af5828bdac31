// SPDX-License-Identifier: Apache-2.0
// Good files whose tensors do not make the model: missing, too many, of another shape, dtype or
// format.
#include <algorithm>
#include <cstdint>

#include "tests/checkpoint/mutation_table.h"

namespace koho::testing {
namespace {

constexpr const char* kWeight = "model.layers.1.self_attn.q_proj.weight";

void add_names_and_shapes(Table& table) {
  const char* kNames[] = {"model.embed_tokens.weight",
                          "model.norm.weight",
                          "lm_head.weight",
                          "model.layers.0.input_layernorm.weight",
                          "model.layers.0.self_attn.q_proj.bias",
                          "model.layers.0.mlp.gate_proj.weight",
                          "model.layers.1.self_attn.o_proj.weight",
                          "model.layers.1.mlp.gate.weight",
                          "model.layers.1.mlp.gate.e_score_correction_bias",
                          "model.layers.1.mlp.experts.3.down_proj.weight",
                          "model.layers.1.mlp.shared_experts.up_proj.weight",
                          "model.layers.2.eh_proj.weight",
                          "model.layers.2.shared_head.norm.weight"};
  for (const std::string name : kNames) {
    table.tensors("without " + name, {name, "missing"}, [=](Tensors& all) {
      std::erase_if(all, [&](const TensorToWrite& t) { return t.name == name; });
    });
    table.tensors("one row more in " + name, {name, "expected", "found"}, [=](Tensors& all) {
      TensorToWrite& tensor = find(all, name);
      std::int64_t row = static_cast<std::int64_t>(tensor.data.size()) / tensor.shape[0];
      ++tensor.shape[0];
      tensor.data += std::string(static_cast<std::size_t>(row), '\0');
    });
    table.tensors("one axis more in " + name, {name, "expected", "found"},
                  [=](Tensors& all) { find(all, name).shape.push_back(1); });
    table.tensors("another name for " + name, {name, "unexpected"},
                  [=](Tensors& all) { find(all, name).name += "s"; });
    table.tensors("F64 in " + name, {name, "F64"}, [=](Tensors& all) {
      TensorToWrite& tensor = find(all, name);
      std::int64_t elements = 1;
      for (const std::int64_t size : tensor.shape) elements *= size;
      tensor.dtype = "F64";
      tensor.data = std::string(static_cast<std::size_t>(elements) * 8, '\0');
    });
  }
}

void add_scales(Table& table) {
  const std::string weight = kWeight;
  const std::string scale = weight + "_scale";
  table.tensors("an FP8 weight without scale", {weight, "weight_scale"}, [=](Tensors& all) {
    std::erase_if(all, [&](const TensorToWrite& t) { return t.name == scale; });
  });
  table.tensors("both scales", {weight, "both"}, [=](Tensors& all) {
    TensorToWrite copy = find(all, scale);
    copy.name += "_inv";
    all.push_back(copy);
  });
  table.tensors("a scale of the wrong length", {scale, "[31, 1]"}, [=](Tensors& all) {
    TensorToWrite& tensor = find(all, scale);
    tensor.shape = {31, 1};
    tensor.data.resize(31 * 4);
  });
  table.tensors("a scale lying on its side", {scale, "[1, 32]"}, [=](Tensors& all) {
    find(all, scale).shape = {1, 32};
  });
  table.tensors("an F16 scale", {scale, "F16"}, [=](Tensors& all) {
    TensorToWrite& tensor = find(all, scale);
    tensor.dtype = "F16";
    tensor.data.resize(64);
  });
  table.tensors("a channel scale called inverse", {scale + "_inv"},
                [=](Tensors& all) { find(all, scale).name += "_inv"; });
  table.tensors("a scale beside a BF16 weight", {"lm_head.weight_scale", "unexpected"},
                [](Tensors& all) {
                  all.push_back({"lm_head.weight_scale", "F32", {1}, std::string(4, '\0')});
                });
  table.tensors(
      "a static activation scale", {"q_proj.input_scale", "static activation scales"},
      [](Tensors& all) {
        all.push_back(
            {"model.layers.1.self_attn.q_proj.input_scale", "F32", {1}, std::string(4, '\0')});
      });
}

void add_other_formats(Table& table) {
  const std::string weight = kWeight;
  table.tensors("NVFP4 as ModelOpt writes it", {weight, "4-bit"}, [=](Tensors& all) {
    TensorToWrite& tensor = find(all, weight);
    tensor.dtype = "U8";
    tensor.shape[1] /= 2;
    tensor.data.resize(tensor.data.size() / 2);
  });
  table.tensors("packed 4-bit weights", {"weight_packed", "4-bit"}, [=](Tensors& all) {
    find(all, weight).name = "model.layers.1.self_attn.q_proj.weight_packed";
  });
  table.tensors("GPTQ weights", {"qweight", "GPTQ"}, [=](Tensors& all) {
    find(all, weight).name = "model.layers.1.self_attn.q_proj.qweight";
  });
  table.tensors("INT8 weights", {weight, "INT8"},
                [=](Tensors& all) { find(all, weight).dtype = "I8"; });
  table.tensors("E5M2 weights", {weight, "F8_E5M2"},
                [=](Tensors& all) { find(all, weight).dtype = "F8_E5M2"; });
  table.tensors("FP8 norms", {"model.norm.weight", "F8_E4M3"}, [](Tensors& all) {
    TensorToWrite& tensor = find(all, "model.norm.weight");
    tensor.dtype = "F8_E4M3";
    tensor.data.resize(24);
  });
}

}  // namespace

void add_tensor_mutations(Table& table) {
  add_names_and_shapes(table);
  add_scales(table);
  add_other_formats(table);
  table.tensors(
      "a tensor too many", {"model.layers.0.self_attn.rotary_emb.inv_freq", "unexpected"},
      [](Tensors& all) {
        all.push_back(
            {"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}, std::string(8, '\0')});
      });
  table.tensors(
      "a layer too many", {"model.layers.3.input_layernorm.weight", "unexpected"},
      [](Tensors& all) {
        all.push_back(
            {"model.layers.3.input_layernorm.weight", "BF16", {24}, std::string(48, '\0')});
      });
  table.tensors("gate_up_proj fused, down_proj not", {"experts.down_proj", "missing"},
                [](Tensors& all) {
                  all.push_back({"model.layers.1.mlp.experts.gate_up_proj",
                                 "BF16",
                                 {4, 24, 24},
                                 std::string(4 * 24 * 24 * 2, '\0')});
                });
  table.tensors("three tensors only", {"self_attn.q_proj", "missing", "and "},
                [](Tensors& all) { all.resize(3); });
}

}  // namespace koho::testing
