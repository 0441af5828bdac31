// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/cublaslt_library.h"

#include <array>
#include <dlfcn.h>
#include <string>
#include <string_view>

#include <cublasLt.h>

#include "base/check.h"

namespace koho::cuda {
namespace {

// Every function of the library that koho calls; the definitions below look their own up here.
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

constexpr std::size_t index_of(std::string_view name) {
  std::size_t i = 0;
  while (i < kFunctions.size() && name != kFunctions[i]) ++i;
  return i;
}

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

/// Calls the library's function of this name. `declared` only names the type.
template <std::size_t kIndex, typename Result, typename... Parameters>
Result call(Result (*declared)(Parameters...), std::type_identity_t<Parameters>... arguments) {
  static_assert(kIndex < kFunctions.size(), "not in kFunctions");
  void* function = the_library().functions[kIndex];
  KOHO_CHECK(function != nullptr);  // open_cublaslt() succeeded
  return reinterpret_cast<decltype(declared)>(function)(arguments...);
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

}  // namespace koho::cuda

#define KOHO_CALL(name, ...) \
  koho::cuda::call<koho::cuda::index_of(#name)>(&name __VA_OPT__(, ) __VA_ARGS__)

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return KOHO_CALL(cublasLtCreate, handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return KOHO_CALL(cublasLtDestroy, handle);
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  return KOHO_CALL(cublasLtGetStatusName, status);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle,
                              cublasLtMatmulDesc_t operation,
                              const void* alpha,
                              const void* a,
                              cublasLtMatrixLayout_t a_layout,
                              const void* b,
                              cublasLtMatrixLayout_t b_layout,
                              const void* beta,
                              const void* c,
                              cublasLtMatrixLayout_t c_layout,
                              void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm,
                              void* workspace,
                              size_t workspace_bytes,
                              cudaStream_t stream) {
  return KOHO_CALL(cublasLtMatmul, handle, operation, alpha, a, a_layout, b, b_layout, beta, c,
                   c_layout, d, d_layout, algorithm, workspace, workspace_bytes, stream);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a_layout,
                                              cublasLtMatrixLayout_t b_layout,
                                              cublasLtMatrixLayout_t c_layout,
                                              cublasLtMatrixLayout_t d_layout,
                                              cublasLtMatmulPreference_t preference,
                                              int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  return KOHO_CALL(cublasLtMatmulAlgoGetHeuristic, handle, operation, a_layout, b_layout, c_layout,
                   d_layout, preference, requested, results, returned);
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t operation,
                                               size_t size,
                                               cublasComputeType_t compute_type,
                                               cudaDataType_t scale_type) {
  return KOHO_CALL(cublasLtMatmulDescInit_internal, operation, size, compute_type, scale_type);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value,
                                              size_t bytes) {
  return KOHO_CALL(cublasLtMatmulDescSetAttribute, operation, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return KOHO_CALL(cublasLtMatmulPreferenceCreate, preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return KOHO_CALL(cublasLtMatmulPreferenceDestroy, preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value,
                                                    size_t bytes) {
  return KOHO_CALL(cublasLtMatmulPreferenceSetAttribute, preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout,
                                                 size_t size,
                                                 cudaDataType type,
                                                 uint64_t rows,
                                                 uint64_t columns,
                                                 int64_t leading) {
  return KOHO_CALL(cublasLtMatrixLayoutInit_internal, layout, size, type, rows, columns, leading);
}

}  // extern "C"
