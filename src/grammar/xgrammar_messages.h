// SPDX-License-Identifier: Apache-2.0
// Words of xgrammar's, as reasons for a client.
#pragma once

#include <string>
#include <string_view>

namespace koho {

inline constexpr std::string_view kNoReason = "xgrammar cannot compile it and gives no reason";

/// The first line of an xgrammar exception, without the names of xgrammar's source files.
std::string message_of(std::string_view what);

/// An xgrammar warning, which says that xgrammar ignores a part of the grammar, reworded as the
/// reason of a refusal.
std::string reason_of(std::string_view warning);

}  // namespace koho
