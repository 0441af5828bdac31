// SPDX-License-Identifier: Apache-2.0
#include "tests/support/safetensors_writer.h"

#include <cstddef>
#include <functional>
#include <numeric>

#include <fmt/core.h>

namespace koho::testing {

std::int64_t num_elements(std::span<const std::int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::string safetensors_from_header(std::string_view header, std::string_view data) {
  std::string file;
  for (std::size_t i = 0; i < 8; ++i)
    file.push_back(static_cast<char>((header.size() >> (8 * i)) & 0xFFU));
  file += header;
  file += data;
  return file;
}

std::string safetensors_header(std::span<const TensorToWrite> tensors) {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::size_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
    std::string shape;
    for (const std::int64_t size : tensor.shape)
      shape += (shape.empty() ? "" : ",") + std::to_string(size);
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          tensor.name, tensor.dtype, shape, at, at + tensor.data.size());
    at += tensor.data.size();
  }
  return header + "}";
}

std::string safetensors_file(std::span<const TensorToWrite> tensors, std::size_t data_offset) {
  std::string header = safetensors_header(tensors);
  while ((8 + header.size()) % 8 != data_offset % 8) header.push_back(' ');
  std::string data;
  for (const TensorToWrite& tensor : tensors) data += tensor.data;
  return safetensors_from_header(header, data);
}

std::string safetensors_index(std::span<const IndexLine> lines, std::int64_t total_size) {
  std::string text = fmt::format(R"({{"metadata":{{"total_size":{}}},"weight_map":{{)", total_size);
  const char* separator = "";
  for (const IndexLine& line : lines) {
    text += fmt::format(R"({}"{}":"{}")", separator, line.tensor, line.file);
    separator = ",";
  }
  return text + "}}";
}

}  // namespace koho::testing
