// SPDX-License-Identifier: Apache-2.0
#include "app/build_info.h"

#include <string_view>

#include <fmt/format.h>

#include "base/version.h"

namespace koho::app {

std::string version_text() {
  const BuildInfo& info = build_info();
  const std::string cuda = *info.cuda == '\0'
                               ? "without CUDA"
                               : fmt::format("CUDA {} for {}", info.cuda, info.cuda_architectures);
  return fmt::format("koho {} (commit {}, {})", kVersion, info.commit, cuda);
}

std::string build_json() {
  const BuildInfo& info = build_info();
  const auto quoted_or_null = [](std::string_view text) {
    return text.empty() ? std::string("null") : fmt::format("\"{}\"", text);
  };
  return fmt::format(R"("commit":"{}","cuda":{},"cuda_architectures":{})", info.commit,
                     quoted_or_null(info.cuda), quoted_or_null(info.cuda_architectures));
}

}  // namespace koho::app
