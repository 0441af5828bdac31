// SPDX-License-Identifier: Apache-2.0
// The JSON pointers of a schema's references, RFC 6901: "#/$defs/a~1b%20c".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace koho {

/// The names and indices that a reference within its document goes through; "#" has none. nullopt:
/// it is no such reference, or has an escape that none is.
std::optional<std::vector<std::string>> pointer_steps(std::string_view reference);

}  // namespace koho
