// SPDX-License-Identifier: Apache-2.0
// The functions of cublasLt.h that koho calls: each passes its arguments on to the library that
// open_cublaslt() opened. In a file of their own, so that a test can bring others.
#include <cublasLt.h>

#include "cuda/gemm/cublaslt_library.h"

// Each function is looked up once.
#define KOHO_CALL(name, ...)                                                     \
  [&] {                                                                          \
    static auto* const function =                                                \
        reinterpret_cast<decltype(&name)>(koho::cuda::cublaslt_function(#name)); \
    return function(__VA_ARGS__);                                                \
  }()

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
