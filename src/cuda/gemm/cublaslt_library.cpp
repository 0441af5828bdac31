// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/cublaslt_library.h"

#include <algorithm>
#include <array>
#include <dlfcn.h>
#include <string>
#include <string_view>

#include <cublasLt.h>

#include "base/check.h"

namespace koho::cuda {
namespace {

// Every function of the library that koho calls (cublaslt_functions.cpp).
constexpr std::array<const char*, 11> kFunctions = {"cublasLtCreate",
                                                    "cublasLtDestroy",
                                                    "cublasLtGetStatusName",
                                                    "cublasLtMatmul",
                                                    "cublasLtMatmulAlgoGetHeuristic",
                                                    "cublasLtMatmulDescInit_internal",
                                                    "cublasLtMatmulDescSetAttribute",
                                                    "cublasLtMatmulPreferenceCreate",
                                                    "cublasLtMatmulPreferenceDestroy",
                                                    "cublasLtMatmulPreferenceSetAttribute",
                                                    "cublasLtMatrixLayoutInit_internal"};

struct Library {
  std::array<void*, kFunctions.size()> functions{};
  std::string missing;  // why it cannot be used; empty if it can
};

Library open_library() {
  Library library;
  const std::string file = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  void* handle = nullptr;
  // The loader's own places first: RUNPATH, LD_LIBRARY_PATH, the system's; then CUDA's toolkit.
  for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"}) {
    handle = dlopen((folder + file).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
  }
  if (handle == nullptr) {
    const char* reason = dlerror();
    library.missing = file + " cannot be opened (" + (reason != nullptr ? reason : "") + ")";
    return library;
  }
  for (std::size_t i = 0; i < kFunctions.size(); ++i) {
    library.functions[i] = dlsym(handle, kFunctions[i]);
    if (library.functions[i] == nullptr) library.missing = file + " has no " + kFunctions[i];
  }
  return library;
}

const Library& the_library() {
  static const Library library = open_library();
  return library;
}

}  // namespace

Status open_cublaslt() {
  const Library& library = the_library();
  if (library.missing.empty()) return {};
  return make_error(ErrorCode::not_found,
                    "a GPU needs cuBLASLt of CUDA {}: {}; install the CUDA toolkit, or with pip: "
                    "pip install 'koho[cuda]'",
                    CUBLAS_VER_MAJOR, library.missing);
}

void* cublaslt_function(std::string_view name) {
  const auto found = std::ranges::find(kFunctions, name);
  KOHO_CHECK(found != kFunctions.end());
  void* function = the_library().functions[static_cast<std::size_t>(found - kFunctions.begin())];
  KOHO_CHECK(function != nullptr);
  return function;
}

}  // namespace koho::cuda
