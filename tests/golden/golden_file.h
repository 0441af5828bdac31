// SPDX-License-Identifier: Apache-2.0
// The committed goldens of tests/golden: safetensors files of the reference's outputs, opened by
// name, and goldens.json, the facts beside them. Knows nothing of models; docs/goldens.md says what
// each tensor is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/safetensors.h"

namespace koho::testing {

/// tests/golden/NAME of the source tree.
std::filesystem::path golden_path(const std::string& name);

class GoldenFile {
 public:
  /// Errors: not_found, corrupt_data.
  static Result<GoldenFile> open(const std::string& name);

  bool has(const std::string& name) const;

  /// A tensor's elements, widened: BF16, F16 and F32 as numbers, I32 and U8 as integers. Aborts the
  /// test program if the file has no such tensor.
  std::vector<float> floats(const std::string& name) const;
  std::vector<std::int32_t> integers(const std::string& name) const;

 private:
  GoldenFile(MappedFile file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}
  const SafetensorsEntry& entry(const std::string& name) const;
  const std::byte* data(const SafetensorsEntry& entry) const;

  MappedFile file_;
  SafetensorsHeader header_;
};

/// What goldens.json says of one random checkpoint.
struct CheckpointFacts {
  std::map<std::string, std::pair<std::uint64_t, std::uint32_t>> files;  // length and CRC-32
  double noise = 0.0;  // median distance of the reference's bf16 run from its f32 run
  double unquantized_to_bf16_run =
      0.0;  // of the bf16 run without activation quantisation, in noise
};

Result<std::map<std::string, CheckpointFacts>> read_golden_facts();

/// CRC-32 as zlib computes it.
std::uint32_t crc32(const std::string& bytes);

}  // namespace koho::testing
