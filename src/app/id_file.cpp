// SPDX-License-Identifier: Apache-2.0
#include "app/id_file.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>

#include "base/json.h"
#include "base/mapped_file.h"

namespace koho::app {

namespace {

constexpr std::size_t kBytesMax = 64U << 20U;

/// The shell's <(...) and /dev/stdin are pipes, whose size nobody knows before.
Result<std::string> read_pipe(const std::string& path) {
  std::ifstream pipe(path, std::ios::binary);
  std::string text;
  std::array<char, 1U << 16U> piece{};
  while (pipe.read(piece.data(), piece.size()) || pipe.gcount() > 0) {
    text.append(piece.data(), static_cast<std::size_t>(pipe.gcount()));
    if (text.size() > kBytesMax)
      return make_error(ErrorCode::resource_exhausted, "{} has more bytes than the limit of {}",
                        path, kBytesMax);
  }
  if (!pipe.eof()) return make_error(ErrorCode::io_error, "cannot read {}", path);
  return text;
}

}  // namespace

Result<std::vector<std::int32_t>> read_id_file(const std::string& path) {
  std::error_code ignored;  // what is not there is reported when it is opened
  const bool pipe = std::filesystem::is_fifo(path, ignored);
  KOHO_TRY_ASSIGN(const std::string text, pipe ? read_pipe(path) : read_file(path, kBytesMax));
  Result<json::Value> value = json::parse(text);
  if (!value.ok())
    return make_error(ErrorCode::invalid_argument, "{}: {}", path, value.error().message);
  const json::Value::Array* array = value->array();
  if (array == nullptr)
    return make_error(ErrorCode::invalid_argument, "{} must hold a JSON array of token ids", path);
  std::vector<std::int32_t> ids;
  ids.reserve(array->size());
  for (const json::Value& entry : *array) {
    const std::optional<std::int64_t> id = entry.integer();
    if (!id || *id < 0 || *id > std::numeric_limits<std::int32_t>::max())
      return make_error(ErrorCode::invalid_argument, "{}: entry {} is not a token id", path,
                        ids.size());
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return ids;
}

}  // namespace koho::app
