// SPDX-License-Identifier: Apache-2.0
// multipart/form-data (RFC 7578) as the clients of OpenAI's files API send it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace koho::server {

struct FormPart {
  std::string name{};
  std::string filename{};      // "" : a field, no file
  std::string_view content{};  // in the body
};

/// The parts of `body`, at most 64. `content_type` is the field's whole value, with the boundary.
/// Errors: invalid_argument.
Result<std::vector<FormPart>> read_form(std::string_view content_type, std::string_view body);

}  // namespace koho::server
