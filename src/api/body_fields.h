// SPDX-License-Identifier: Apache-2.0
// What the bodies of the POST endpoints may have, for documents: the names that the readers' tables
// have, and JSON schemas of their values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace koho::api {

struct BodyField {
  std::string_view name;
  std::string_view takes;  // in words; "" is not told
};

/// The fields that the reader of the endpoint at `path` looks at; none for an unknown path.
std::vector<BodyField> body_fields(std::string_view path);

/// The field that a body must have; "" is none, or one of several.
std::string_view required_field(std::string_view path);

/// The JSON schema of the field's value: type and range where they are known. null is always
/// allowed: it counts as missing.
std::string field_schema(const BodyField& field);

}  // namespace koho::api
