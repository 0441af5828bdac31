// SPDX-License-Identifier: Apache-2.0
#include "app/token_id_file.h"

#include <limits>

#include "base/json.h"
#include "base/mapped_file.h"

namespace koho::app {
namespace {

constexpr std::size_t kBytesMax = 64U << 20U;

}  // namespace

Result<std::vector<std::int32_t>> read_token_id_file(const std::string& path) {
  KOHO_TRY_ASSIGN(const std::string text, read_file_or_pipe(path, kBytesMax));
  Result<json::Value> value = json::parse(text);
  if (!value.ok())
    return make_error(ErrorCode::invalid_argument, "{}: {}", path, value.error().message);
  const json::Value::Array* array = value->array();
  if (array == nullptr)
    return make_error(ErrorCode::invalid_argument, "{} must be a JSON array of token ids", path);
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
