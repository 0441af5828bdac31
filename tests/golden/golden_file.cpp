// SPDX-License-Identifier: Apache-2.0
// Opens the files under tests/golden of the source tree.
#include "tests/golden/golden_file.h"

#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "tensor/number.h"

namespace koho::testing {
namespace {

template <typename T>
T element(const std::byte* data, std::size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path(KOHO_SOURCE_DIR) / "tests" / "golden" / name;
}

Result<GoldenFile> GoldenFile::open(const std::string& name) {
  KOHO_TRY_ASSIGN(MappedFile file, MappedFile::open(golden_path(name)));
  KOHO_TRY_ASSIGN(SafetensorsHeader header,
                  parse_safetensors_header(file.bytes(), file.bytes().size()));
  return GoldenFile(std::move(file), std::move(header));
}

bool GoldenFile::has(const std::string& name) const {
  return std::any_of(header_.entries.begin(), header_.entries.end(),
                     [&](const SafetensorsEntry& entry) { return entry.name == name; });
}

const SafetensorsEntry& GoldenFile::entry(const std::string& name) const {
  for (const SafetensorsEntry& entry : header_.entries)
    if (entry.name == name) return entry;
  check_failed(__FILE__, __LINE__, "a golden tensor", name);
}

const std::byte* GoldenFile::data(const SafetensorsEntry& entry) const {
  return file_.bytes().data() + header_.data_offset + entry.begin;
}

std::vector<float> GoldenFile::floats(const std::string& name) const {
  const SafetensorsEntry& found = entry(name);
  const std::byte* bytes = data(found);
  std::vector<float> values(static_cast<std::size_t>(found.shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (found.stored->name == "BF16")
      values[i] = to_float(element<BFloat16>(bytes, i));
    else if (found.stored->name == "F16")
      values[i] = to_float(element<Float16>(bytes, i));
    else if (found.stored->name == "F32")
      values[i] = element<float>(bytes, i);
    else
      check_failed(__FILE__, __LINE__, "a floating golden", name);
  }
  return values;
}

std::vector<std::int32_t> GoldenFile::integers(const std::string& name) const {
  const SafetensorsEntry& found = entry(name);
  const std::byte* bytes = data(found);
  std::vector<std::int32_t> values(static_cast<std::size_t>(found.shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (found.stored->name == "I32")
      values[i] = element<std::int32_t>(bytes, i);
    else if (found.stored->name == "U8")
      values[i] = element<std::uint8_t>(bytes, i);
    else
      check_failed(__FILE__, __LINE__, "an integer golden", name);
  }
  return values;
}

Result<std::map<std::string, CheckpointFacts>> read_golden_facts() {
  KOHO_TRY_ASSIGN(const std::string text, read_file(golden_path("goldens.json"), 1 << 20));
  std::map<std::string, CheckpointFacts> facts;
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    for (const auto& [name, found] : json.at("checkpoints").items()) {
      CheckpointFacts& checkpoint = facts[name];
      checkpoint.noise = found.at("noise");
      checkpoint.unquantized_to_bf16_run = found.value("unquantized_to_bf16_run", 0.0);
      for (const auto& [file, length_and_crc] : found.at("files").items())
        checkpoint.files[file] = {length_and_crc.at(0), length_and_crc.at(1)};
    }
  } catch (const nlohmann::json::exception& error) {
    return make_error(ErrorCode::corrupt_data, "goldens.json: {}", error.what());
  }
  return facts;
}

std::uint32_t crc32(const std::string& bytes) {
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char c : bytes) {
    crc ^= static_cast<std::uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0xEDB88320U : 0U);
  }
  return ~crc;
}

}  // namespace koho::testing
