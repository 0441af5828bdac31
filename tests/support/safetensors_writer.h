// SPDX-License-Identifier: Apache-2.0
// Safetensors files made by code, good ones and bad ones.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace koho::testing {

/// A tensor to write: its dtype as the header spells it, its bytes as they lie in the file.
struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string data;
};

/// The number of elements of a tensor.
std::int64_t num_elements(std::span<const std::int64_t> shape);

/// A file from a header's text and the data behind it.
std::string safetensors_from_header(std::string_view header, std::string_view data);

/// The header's JSON for tensors that lie one behind the other in the order given.
std::string safetensors_header(std::span<const TensorToWrite> tensors);

/// A whole file. The header is padded with blanks so that the data begin at `data_offset` modulo 8:
/// 0 as the format's own writer does it, 1 to misalign every tensor.
std::string safetensors_file(std::span<const TensorToWrite> tensors, std::size_t data_offset = 0);

/// model.safetensors.index.json: pairs of tensor and file.
struct IndexLine {
  std::string tensor;
  std::string file;
};
std::string safetensors_index(std::span<const IndexLine> lines, std::int64_t total_size);

}  // namespace koho::testing
