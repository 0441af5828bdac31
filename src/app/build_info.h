// SPDX-License-Identifier: Apache-2.0
// What this program was built from. Generated at each build (cmake/KohoBuildInfo.cmake), into one
// small file that nothing but the program is linked with.
#pragma once

#include <string>

namespace koho::app {

struct BuildInfo {
  const char* commit;              // of git, "-dirty" behind it for changed files, or "unknown"
  const char* cuda;                // the compiler's version; "" without the CUDA backend
  const char* cuda_architectures;  // as CMake names them
};

const BuildInfo& build_info();

/// "koho 0.1.0 (commit 0123456789ab, CUDA 13.0.88 for 90a-real 100a-real)", "(…, without CUDA)".
std::string version_text();

/// Members of a JSON object: "commit", "cuda" and "cuda_architectures", null without CUDA.
std::string build_json();

}  // namespace koho::app
