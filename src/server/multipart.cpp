// SPDX-License-Identifier: Apache-2.0
#include "server/multipart.h"

#include "base/text.h"

namespace koho::server {
namespace {

constexpr std::size_t kPartsMax = 64;
constexpr std::size_t kBoundaryBytesMax = 200;  // RFC 2046 has 70
constexpr std::size_t kHeadBytesMax = 4U << 10U;

/// The parameter of `field`, such as name="…" of Content-Disposition; "" if it has none.
std::string parameter_of(std::string_view field, std::string_view name) {
  for (std::size_t at = field.find(';'); at != std::string_view::npos;) {
    field.remove_prefix(at + 1);
    field = trimmed(field);
    const std::size_t equals = field.find('=');
    if (equals == std::string_view::npos) return {};
    const bool wanted = lower_case(trimmed(field.substr(0, equals))) == name;
    field.remove_prefix(equals + 1);
    std::string value;
    if (field.starts_with('"')) {
      std::size_t i = 1;
      for (; i < field.size() && field[i] != '"'; ++i) {
        if (field[i] == '\\' && i + 1 < field.size()) ++i;
        value += field[i];
      }
      field.remove_prefix(std::min(i + 1, field.size()));
    } else {
      value = trimmed(field.substr(0, field.find(';')));
    }
    if (wanted) return value;
    at = field.find(';');
  }
  return {};
}

/// The value of the head's Content-Disposition.
std::string_view disposition_of(std::string_view head) {
  constexpr std::string_view kName = "content-disposition:";
  while (!head.empty()) {
    const std::size_t end = std::min(head.find("\r\n"), head.size());
    const std::string_view line = head.substr(0, end);
    if (lower_case(line.substr(0, kName.size())) == kName) return line.substr(kName.size());
    head.remove_prefix(std::min(end + 2, head.size()));
  }
  return {};
}

Error wrong(const char* what) {
  return make_error(ErrorCode::invalid_argument, "the body is not multipart/form-data: {}", what);
}

}  // namespace

Result<std::vector<FormPart>> read_form(std::string_view content_type, std::string_view body) {
  const std::string boundary = parameter_of(content_type, "boundary");
  if (boundary.empty() || boundary.size() > kBoundaryBytesMax)
    return wrong("Content-Type has no boundary");
  const std::string begin = "--" + boundary;
  const std::string between = "\r\n" + begin;
  std::vector<FormPart> parts;
  if (!body.starts_with(begin)) {
    const std::size_t at = body.find(between);  // behind a preamble
    if (at == std::string_view::npos) return wrong("it does not begin with the boundary");
    body.remove_prefix(at + 2);
  }
  body.remove_prefix(begin.size());
  while (!body.starts_with("--")) {
    if (!body.starts_with("\r\n")) return wrong("a boundary's line does not end");
    const std::size_t head_end = body.find("\r\n\r\n");
    if (head_end == std::string_view::npos || head_end > kHeadBytesMax)
      return wrong("a part has no head");
    const std::string_view head = body.substr(2, std::max<std::size_t>(head_end, 2) - 2);
    body.remove_prefix(head_end + 4);
    const std::size_t end = body.find(between);
    if (end == std::string_view::npos) return wrong("the last boundary is missing");
    if (parts.size() == kPartsMax) return wrong("it has too many parts");
    const std::string_view disposition = disposition_of(head);
    parts.push_back({.name = parameter_of(disposition, "name"),
                     .filename = parameter_of(disposition, "filename"),
                     .content = body.substr(0, end)});
    if (parts.back().name.empty()) return wrong("a part has no name");
    body.remove_prefix(end + between.size());
  }
  return parts;
}

}  // namespace koho::server
