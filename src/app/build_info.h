// SPDX-License-Identifier: Apache-2.0
// The commit and the CUDA version of this build. Each build generates one small source with them
// (cmake/KohoBuildInfo.cmake), which only the program links.
#pragma once

#include <string>

namespace koho::app {

struct BuildInfo {
  const char* commit;  // git commit, "-dirty" after it if files are changed; or "unknown"
  const char* cuda;    // the compiler's version; "" without the CUDA backend
  const char* cuda_architectures;  // as CMake names them
};

const BuildInfo& build_info();

/// "koho 0.1.0 (commit 0123456789ab, CUDA 13.0.88 for 90a-real 100f-real)", "(…, without CUDA)".
std::string version_text();

/// Members of a JSON object: "commit", "cuda" and "cuda_architectures", null without CUDA.
std::string build_json();

}  // namespace koho::app
