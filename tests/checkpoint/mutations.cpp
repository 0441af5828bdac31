// SPDX-License-Identifier: Apache-2.0
#include "tests/checkpoint/mutations.h"

#include <algorithm>
#include <sys/stat.h>
#include <utility>

#include "base/check.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_checkpoint.h"

namespace koho::testing {
namespace {

using Words = std::vector<std::string>;

/// Small, but with every kind of tensor.
CheckpointRecipe recipe() {
  CheckpointRecipe recipe;
  recipe.quant = [](const ExpectedWeight& row) {
    const bool projection = row.name.find("_proj.") != std::string::npos &&
                            row.name.find("eh_proj") == std::string::npos;
    return projection ? WeightQuant::fp8_channel : WeightQuant::none;
  };
  return recipe;
}

std::string shard_name(int shard) {
  return fmt::format("model-{:05}-of-00003.safetensors", shard + 1);
}

/// The tensors of all shards; for mutations that write them anew.
using Tensors = std::vector<TensorToWrite>;

void put_tensors(DirectoryImage& image, const Tensors& tensors) {
  std::vector<IndexLine> lines;
  std::int64_t bytes = 0;
  for (int shard = 0; shard < 3; ++shard) {
    const std::size_t begin = tensors.size() * static_cast<std::size_t>(shard) / 3;
    const std::size_t end = tensors.size() * static_cast<std::size_t>(shard + 1) / 3;
    for (std::size_t i = begin; i < end; ++i) {
      lines.push_back({tensors[i].name, shard_name(shard)});
      bytes += static_cast<std::int64_t>(tensors[i].data.size());
    }
    image.files[shard_name(shard)] =
        safetensors_file(std::span(tensors).subspan(begin, end - begin));
  }
  image.files[kIndex] = safetensors_index(lines, bytes);
}

TensorToWrite& find(Tensors& tensors, const std::string& name) {
  const auto at = std::find_if(tensors.begin(), tensors.end(),
                               [&](const TensorToWrite& tensor) { return tensor.name == name; });
  KOHO_CHECK(at != tensors.end());
  return *at;
}

/// Collects mutations.
struct Table {
  std::vector<Mutation> rows;

  void add(std::string name, Words words, std::function<void(DirectoryImage&)> apply) {
    rows.push_back({std::move(name), std::move(words), std::move(apply)});
  }
  /// The whole file becomes `text`.
  void file(const std::string& file,
            const std::string& what,
            const std::string& text,
            Words words) {
    words.push_back(file);
    add(file + ": " + what, std::move(words),
        [=](DirectoryImage& image) { image.files[file] = text; });
  }
  void text(const std::string& file, const std::string& from, const std::string& to, Words words) {
    words.push_back(file);
    add(file + ": " + from + " -> " + to, std::move(words),
        [=](DirectoryImage& image) { image.replace(file, from, to); });
  }
  void header(const std::string& from, const std::string& to, Words words) {
    words.push_back(kShard1);
    add("header: " + from + " -> " + to, std::move(words),
        [=](DirectoryImage& image) { image.replace_in_header(kShard1, from, to); });
  }
  void tensors(const std::string& name, Words words, std::function<void(Tensors&)> change) {
    add("tensors: " + name, std::move(words), [=](DirectoryImage& image) {
      Tensors all = random_tensors(recipe());
      change(all);
      put_tensors(image, all);
    });
  }
};

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

void add_config(Table& table) {
  const std::string file = "config.json";
  add_bad_json(table, file);
  for (const char* key : {"architectures",
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
                          "norm_topk_prob"})
    table.text(file, fmt::format("\"{}\":", key), fmt::format("\"x_{}\":", key), {key, "missing"});
  const std::pair<std::pair<const char*, const char*>, const char*> kValues[] = {
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

void add_index(Table& table) {
  add_bad_json(table, kIndex);
  const std::string norm = "\"model.norm.weight\":\"" + std::string(kShard2) + "\"";
  const auto names = [&](const std::string& to, Words words) {
    table.text(kIndex, kShard1, to, std::move(words));
  };
  names("../model-00001-of-00003.safetensors", {"directory"});
  names("/etc/passwd", {"directory"});
  names("sub/model.safetensors", {"directory"});
  names("..", {".."});
  names(".hidden.safetensors", {"dot"});
  names("", {"empty"});
  names("weights.bin", {"weights.bin"});
  names(kIndex, {"does not end in .safetensors"});
  names("a\\u0000b.safetensors", {"directory"});
  names("a\\\\b.safetensors", {"directory"});
  names(std::string(300, 'a') + ".safetensors", {"255"});
  names("absent.safetensors", {});
  table.rows.back().words = {"absent.safetensors"};
  table.text(kIndex, "\"weight_map\"", "\"weights\"", {"weight_map"});
  table.text(kIndex, "\"lm_head.weight\":\"", "\"lm_head.weight\":1,\"x\":\"",
             {"lm_head.weight", "file name"});
  table.text(kIndex, "\"lm_head.weight\":\"", "\"lm_head.weight\":[],\"x\":\"", {"lm_head.weight"});
  table.text(kIndex, "\"lm_head.weight\":\"", "\"lm_head.weight\":null,\"x\":\"",
             {"lm_head.weight"});
  table.text(kIndex, "\"lm_head.weight\":\"", "\"model.norm.weight\":\"",
             {"model.norm.weight", "twice"});
  const auto moved = [&](const std::string& what, const std::string& from, const std::string& to,
                         Words words) {
    table.add("index: " + what, std::move(words),
              [=](DirectoryImage& image) { image.replace(kIndex, from, to); });
  };
  moved("a tensor in the wrong shard", "\"model.embed_tokens.weight\":\"" + std::string(kShard1),
        "\"model.embed_tokens.weight\":\"" + std::string(kShard3),
        {"model.embed_tokens.weight", kShard1, kShard3});
  moved("a tensor that no shard has", "\"lm_head.weight\"",
        "\"lm_tail.weight\":\"" + std::string(kShard3) + "\",\"lm_head.weight\"",
        {"lm_tail.weight", kShard3});
  moved("a tensor left out", "\"model.embed_tokens.weight\":\"" + std::string(kShard1) + "\",", "",
        {"model.embed_tokens.weight", "not in the index"});
  table.add("index: empty map", {kIndex, "empty"},
            [](DirectoryImage& image) { image.files[kIndex] = R"({"weight_map":{}})"; });
  table.add("index: map is an array", {kIndex, "weight_map"},
            [](DirectoryImage& image) { image.files[kIndex] = R"({"weight_map":["a"]})"; });
  table.add("index: map is a string", {kIndex, "weight_map"},
            [](DirectoryImage& image) { image.files[kIndex] = R"({"weight_map":"a"})"; });
  table.add("index: nested map", {kIndex, "lm_head"}, [](DirectoryImage& image) {
    image.files[kIndex] = R"({"weight_map":{"lm_head":{"a":"b.safetensors"}}})";
  });
  table.add("index: a shard's own bytes", {kIndex},
            [](DirectoryImage& image) { image.files[kIndex] = image.files[kShard1]; });
  table.add("index: links to itself", {kIndex}, [](DirectoryImage& image) {
    image.files.erase(kIndex);
    image.afterwards = [](const std::filesystem::path& path) {
      std::filesystem::create_symlink(kIndex, path / kIndex);
    };
  });
  table.add("index: none, shards only", {kIndex, "model.safetensors"},
            [](DirectoryImage& image) { image.files.erase(kIndex); });
  table.add("index: 10,001 files", {kIndex, "10000"}, [](DirectoryImage& image) {
    std::vector<IndexLine> lines;
    for (int i = 0; i <= 10'000; ++i)
      lines.push_back({fmt::format("t{}", i), fmt::format("f{}.safetensors", i)});
    image.files[kIndex] = safetensors_index(lines, 0);
  });
}

/// A shard in which one tensor stands whole, with `shape`, `offsets` and data of our choice.
void one_tensor(Table& table,
                const std::string& what,
                const std::string& entry,
                const std::string& data,
                Words words) {
  words.push_back(kShard1);
  table.add("header: " + what, std::move(words), [=](DirectoryImage& image) {
    image.files[kShard1] = safetensors_from_header("{\"t\":" + entry + "}", data);
  });
}

void add_headers(Table& table) {
  const auto length = [&](const std::string& what, std::uint64_t value, Words words) {
    words.push_back(kShard1);
    table.add("header length: " + what, std::move(words),
              [=](DirectoryImage& image) { image.set_header_length(kShard1, value); });
  };
  length("0", 0, {"{"});
  length("1", 1, {"JSON"});
  length("7", 7, {"JSON"});
  length("100 MB + 1", 100'000'001, {"100000001"});
  length("99 MB", 99'000'000, {"99000000"});
  length("2^31", std::uint64_t{1} << 31U, {"2147483648"});
  length("2^63", std::uint64_t{1} << 63U, {"9223372036854775808"});
  length("2^64 - 1", UINT64_MAX, {"18446744073709551615"});
  length("2^64 - 8", UINT64_MAX - 7, {"18446744073709551608"});

  const auto whole = [&](const std::string& what, const std::string& header, Words words) {
    words.push_back(kShard1);
    table.add("header: " + what, std::move(words), [=](DirectoryImage& image) {
      image.files[kShard1] = safetensors_from_header(header, "");
    });
  };
  whole("empty", "", {"{"});
  whole("array", "[]", {"{"});
  whole("starts with a blank", " {}", {"{"});
  whole("not JSON", "{hello}", {"JSON"});
  whole("half", "{\"a\":{", {"JSON"});
  whole("two", "{}{}", {"JSON"});
  whole("a zero byte", std::string("{}\0\0", 4), {"zero byte"});
  whole("bad UTF-8", "{\"\xFF\":{}}", {"UTF-8"});
  whole("bad UTF-8 in the padding", "{}\x80", {"JSON"});
  whole("deep", "{\"a\":{\"b\":" + std::string(10'000, '['), {"'a'"});
  whole("a long name", "{\"" + std::string(70'000, 'n') + "\":{}}", {"65536"});
  whole("a long number", "{\"a\":{\"shape\":[" + std::string(1000, '1') + "]}}", {"number"});
  whole("null tensor", R"({"t":null})", {"'t'", "null"});
  whole("array tensor", R"({"t":[]})", {"'t'", "array"});
  whole("metadata twice", R"({"__metadata__":{},"__metadata__":{}})", {"__metadata__", "twice"});
  whole("metadata key twice", R"({"__metadata__":{"a":"1","a":"2"}})", {"__metadata__", "'a'"});
  whole("metadata number", R"({"__metadata__":{"a":1}})", {"__metadata__", "'a'"});
  whole("metadata nested", R"({"__metadata__":{"a":{"b":"c"}}})", {"__metadata__"});
  whole("metadata array", R"({"__metadata__":[]})", {"__metadata__"});

  one_tensor(table, "no dtype", R"({"shape":[1],"data_offsets":[0,1]})", "x", {"'t'", "dtype"});
  one_tensor(table, "no shape", R"({"dtype":"U8","data_offsets":[0,1]})", "x", {"'t'", "shape"});
  one_tensor(table, "no offsets", R"({"dtype":"U8","shape":[1]})", "x", {"'t'", "data_offsets"});
  one_tensor(table, "no field", "{}", "x", {"'t'", "dtype"});
  one_tensor(table, "dtype twice",
             R"({"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]})", "x",
             {"'t'", "twice"});
  one_tensor(table, "another field",
             R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":[1]})", "x",
             {"'t'", "stride"});
  one_tensor(table, "unknown dtype", R"({"dtype":"F9","shape":[1],"data_offsets":[0,1]})", "x",
             {"'t'", "F9"});
  one_tensor(table, "lower-case dtype", R"({"dtype":"u8","shape":[1],"data_offsets":[0,1]})", "x",
             {"'t'", "u8"});
  one_tensor(table, "numeric dtype", R"({"dtype":8,"shape":[1],"data_offsets":[0,1]})", "x",
             {"'t'", "dtype"});
  one_tensor(table, "shape no array", R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})", "x",
             {"'t'", "shape"});
  one_tensor(table, "shape of strings", R"({"dtype":"U8","shape":["1"],"data_offsets":[0,1]})", "x",
             {"'t'", "shape"});
  one_tensor(table, "shape of fractions", R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})",
             "x", {"'t'", "shape"});
  one_tensor(table, "nested shape", R"({"dtype":"U8","shape":[[1]],"data_offsets":[0,1]})", "x",
             {});
  one_tensor(table, "negative shape", R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", "x",
             {"'t'", "-1"});
  one_tensor(table, "two negative axes", R"({"dtype":"U8","shape":[-1,-1],"data_offsets":[0,1]})",
             "x", {"'t'", "-1"});
  one_tensor(table, "five axes", R"({"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[0,1]})", "x",
             {"'t'", "axes"});
  one_tensor(table, "a product beyond 64 bits",
             R"({"dtype":"U8","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,1]})",
             "x", {"'t'", "size"});
  one_tensor(table, "a product of 2^64",
             R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})", "",
             {"'t'", "size"});
  one_tensor(table, "an axis beyond 64 bits",
             R"({"dtype":"U8","shape":[18446744073709551617],"data_offsets":[0,1]})", "x",
             {"64 bits"});
  one_tensor(table, "half a byte", R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})", "x",
             {"'t'", "whole number of bytes"});
  one_tensor(table, "no offsets in the array", R"({"dtype":"U8","shape":[1],"data_offsets":[]})",
             "x", {"'t'", "data_offsets"});
  one_tensor(table, "one offset", R"({"dtype":"U8","shape":[1],"data_offsets":[0]})", "x",
             {"'t'", "data_offsets"});
  one_tensor(table, "three offsets", R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,1]})", "x",
             {"'t'", "data_offsets"});
  one_tensor(table, "negative offset", R"({"dtype":"U8","shape":[1],"data_offsets":[-1,0]})", "x",
             {"'t'", "-1"});
  one_tensor(table, "end before begin", R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})", "x",
             {"'t'", "[1, 0]"});
  one_tensor(table, "offsets too short", R"({"dtype":"F32","shape":[1],"data_offsets":[0,3]})",
             "xyz", {"'t'", "needs 4"});
  one_tensor(table, "offsets too long", R"({"dtype":"F32","shape":[1],"data_offsets":[0,5]})",
             "vwxyz", {"'t'", "needs 4"});
  one_tensor(table, "beyond the file", R"({"dtype":"U8","shape":[9],"data_offsets":[0,9]})", "x",
             {"'t'", "truncated"});
  one_tensor(
      table, "far beyond the file",
      R"({"dtype":"U8","shape":[9223372036854775800],"data_offsets":[0,9223372036854775800]})", "x",
      {"'t'"});
  one_tensor(table, "a hole before", R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})", "xy",
             {"'t'", "hole"});
  one_tensor(table, "bytes after", R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})", "xyz",
             {"2 bytes follow"});
  one_tensor(
      table, "the same name twice",
      R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]})",
      "xy", {"'t'", "twice"});
  one_tensor(
      table, "the same name twice, escaped",
      R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0074":{"dtype":"U8","shape":[1],"data_offsets":[1,2]})",
      "xy", {"'t'", "twice"});
  one_tensor(
      table, "overlap",
      R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]},"u":{"dtype":"U8","shape":[2],"data_offsets":[1,3]})",
      "xyz", {"'u'", "overlap"});
  one_tensor(
      table, "the same bytes twice",
      R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]},"u":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})",
      "xy", {"overlap"});
  one_tensor(
      table, "a hole between",
      R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]},"u":{"dtype":"U8","shape":[1],"data_offsets":[2,3]})",
      "xyz", {"'u'", "hole"});
  one_tensor(table, "escape sequences in a name",
             R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u001b[31m":{})", "x",
             {"\\x1b[31m"});
  table.header("\"dtype\":\"BF16\",\"shape\":[96,24]", "\"dtype\":\"F16\",\"shape\":[96,24]",
               {"model.embed_tokens.weight", "F16"});
  table.header("\"shape\":[96,24]", "\"shape\":[24,96]",
               {"model.embed_tokens.weight", "[24, 96]", "[96, 24]"});
  table.header("\"shape\":[96,24]", "\"shape\":[96,1,24]",
               {"model.embed_tokens.weight", "[96, 1, 24]"});
}

void add_truncations(Table& table) {
  const std::size_t full = good_directory().files[kShard2].size();
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{9},
        std::size_t{100}, std::size_t{1000}, full / 4, full / 2, full * 3 / 4, full - 8, full - 1})
    table.add(fmt::format("{} cut to {} bytes", kShard2, size), {kShard2},
              [=](DirectoryImage& image) { image.files[kShard2].resize(size); });
  for (const std::size_t more : {1U, 8U, 4096U})
    table.add(fmt::format("{} with {} bytes more", kShard2, more), {kShard2, "follow"},
              [=](DirectoryImage& image) { image.files[kShard2] += std::string(more, '\0'); });
  table.add("a shard of zeros", {kShard2}, [](DirectoryImage& image) {
    image.files[kShard2].assign(image.files[kShard2].size(), '\0');
  });
  table.add("a shard of 0xFF", {kShard2}, [](DirectoryImage& image) {
    image.files[kShard2].assign(image.files[kShard2].size(), '\xFF');
  });
  table.add("a shard of another", {"model"},
            [](DirectoryImage& image) { image.files[kShard2] = image.files[kShard3]; });
  for (const char* shard : {kShard1, kShard2, kShard3})
    table.add(std::string("missing ") + shard, {shard, kIndex, "names it, for tensor '"},
              [=](DirectoryImage& image) { image.files.erase(shard); });
  const auto instead = [&](const char* what,
                           const std::function<void(const std::filesystem::path&)>& make) {
    table.add(std::string("a shard that is ") + what, {kShard2}, [=](DirectoryImage& image) {
      image.files.erase(kShard2);
      image.afterwards = [=](const std::filesystem::path& path) { make(path / kShard2); };
    });
  };
  instead("a directory",
          [](const std::filesystem::path& path) { std::filesystem::create_directory(path); });
  instead("a pipe", [](const std::filesystem::path& path) {
    KOHO_CHECK_EQ(::mkfifo(path.c_str(), 0600), 0);
  });
  instead("a link to nothing", [](const std::filesystem::path& path) {
    std::filesystem::create_symlink("nothing", path);
  });
  instead("a link to itself", [](const std::filesystem::path& path) {
    std::filesystem::create_symlink(kShard2, path);
  });
  instead("a link to a device", [](const std::filesystem::path& path) {
    std::filesystem::create_symlink("/dev/zero", path);
  });
  table.add("one shard twice under two names", {"model.embed_tokens.weight"},
            [](DirectoryImage& image) { image.files[kShard3] = image.files[kShard1]; });
  table.add("an empty directory", {"config.json"},
            [](DirectoryImage& image) { image.files.clear(); });
}

void add_tensors(Table& table) {
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
  const std::string weight = "model.layers.1.self_attn.q_proj.weight";
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

}  // namespace

void DirectoryImage::write(const std::filesystem::path& directory) const {
  for (const auto& [name, bytes] : files) write_file(directory / name, bytes);
  if (afterwards) afterwards(directory);
}

void DirectoryImage::replace(const std::string& file,
                             const std::string& from,
                             const std::string& to) {
  std::string& text = files.at(file);
  const std::size_t at = text.find(from);
  KOHO_CHECK(at != std::string::npos);
  text.replace(at, from.size(), to);
}

void DirectoryImage::replace_in_header(const std::string& file,
                                       const std::string& from,
                                       const std::string& to) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i)
    length |= std::uint64_t{static_cast<std::uint8_t>(files.at(file)[i])} << (8 * i);
  replace(file, from, to);
  set_header_length(file, length + to.size() - from.size());
}

void DirectoryImage::set_header_length(const std::string& file, std::uint64_t length) {
  for (std::size_t i = 0; i < 8; ++i)
    files.at(file)[i] = static_cast<char>((length >> (8 * i)) & 0xFFU);
}

DirectoryImage good_directory() {
  DirectoryImage image;
  image.files["config.json"] = config_json(recipe().config);
  image.files["generation_config.json"] = R"({"eos_token_id":[90,91],"temperature":1.0})";
  put_tensors(image, random_tensors(recipe()));
  return image;
}

std::vector<Mutation> all_mutations() {
  Table table;
  add_config(table);
  add_generation_config(table);
  add_index(table);
  add_headers(table);
  add_truncations(table);
  add_tensors(table);
  return std::move(table.rows);
}

}  // namespace koho::testing
