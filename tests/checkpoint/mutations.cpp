// SPDX-License-Identifier: Apache-2.0
// The directory that all mutations begin with, and the table's order.
#include "tests/checkpoint/mutations.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tests/checkpoint/mutation_table.h"
#include "tests/support/temporary_directory.h"

namespace koho::testing {
namespace {

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

}  // namespace

Tensors good_tensors() {
  return random_tensors(recipe());
}

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
  put_tensors(image, good_tensors());
  return image;
}

std::vector<Mutation> all_mutations() {
  Table table;
  add_config_mutations(table);
  add_index_mutations(table);
  add_header_mutations(table);
  add_shard_mutations(table);
  add_tensor_mutations(table);
  return std::move(table.rows);
}

}  // namespace koho::testing
