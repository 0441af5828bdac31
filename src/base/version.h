// SPDX-License-Identifier: Apache-2.0
// What koho calls this release.
#pragma once

namespace koho {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace koho
