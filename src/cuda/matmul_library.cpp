// SPDX-License-Identifier: Apache-2.0
#include "cuda/matmul_library.h"

#include <bit>

namespace koho::cuda {
namespace {

constexpr std::int64_t kWorkspaceBytes = 64LL << 20;

Error library_error(cublasStatus_t status, std::string_view call) {
  return make_error(ErrorCode::device_error, "cuBLASLt: {} from {}", cublasLtGetStatusName(status),
                    call);
}

#define KOHO_CUBLAS_TRY(expr)                                                            \
  do {                                                                                   \
    if (const cublasStatus_t koho_cublas = (expr); koho_cublas != CUBLAS_STATUS_SUCCESS) \
      return library_error(koho_cublas, #expr);                                          \
  } while (false)

/// The operation and its three matrices, on the stack of one call. In cuBLASLt's column order the
/// product is out^T [N, T] = weight [N, K] * x^T [K, T].
struct Plan {
  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t weight{};
  cublasLtMatrixLayoutOpaque_t x{};
  cublasLtMatrixLayoutOpaque_t out{};
};

template <typename Value>
cublasStatus_t set(cublasLtMatmulDescOpaque_t& operation,
                   cublasLtMatmulDescAttributes_t attribute,
                   const Value& value) {
  return cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof value);
}

/// NOTE: without fast accumulation (kernel-design 1.4): the products' sums are promoted to f32 as
/// they grow, at 5 to 10 % of the speed (docs/kernels/README.md).
Status make_plan(Plan& plan, const LibraryProduct& p, std::int64_t tokens) {
  KOHO_CUBLAS_TRY(cublasLtMatmulDescInit(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N));
  KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{0}));
  const std::int32_t scale = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale));
  KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale));
  KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.weight_scales));
  KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.x_scales));
  if (p.bias != nullptr) {
    KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias));
    KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF));
  }
  const auto rows = static_cast<std::uint64_t>(p.rows);
  const auto columns = static_cast<std::uint64_t>(p.columns);
  const auto count = static_cast<std::uint64_t>(tokens);
  KOHO_CUBLAS_TRY(cublasLtMatrixLayoutInit(&plan.weight, CUDA_R_8F_E4M3, columns, rows, p.columns));
  KOHO_CUBLAS_TRY(cublasLtMatrixLayoutInit(&plan.x, CUDA_R_8F_E4M3, columns, count, p.x_stride));
  KOHO_CUBLAS_TRY(cublasLtMatrixLayoutInit(&plan.out, CUDA_R_16BF, rows, count, p.out_stride));
  return {};
}

}  // namespace

Result<std::unique_ptr<MatmulLibrary>> MatmulLibrary::open(
    const std::shared_ptr<DeviceMemory>& memory) {
  std::unique_ptr<MatmulLibrary> library(new MatmulLibrary());
  KOHO_CUBLAS_TRY(cublasLtCreate(&library->handle_));
  KOHO_TRY_ASSIGN(library->workspace_,
                  DeviceBlock::allocate(memory, kWorkspaceBytes, "cuBLASLt's workspace"));
  KOHO_CUBLAS_TRY(cublasLtMatmulPreferenceCreate(&library->preference_));
  const auto bytes = static_cast<std::size_t>(kWorkspaceBytes);
  KOHO_CUBLAS_TRY(cublasLtMatmulPreferenceSetAttribute(
      library->preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
  // Only algorithms that write each element once, or reduce through the workspace in a fixed order.
  const std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
  KOHO_CUBLAS_TRY(cublasLtMatmulPreferenceSetAttribute(
      library->preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes));
  return library;
}

MatmulLibrary::~MatmulLibrary() {
  if (preference_ != nullptr) cublasLtMatmulPreferenceDestroy(preference_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

bool MatmulLibrary::takes(std::int64_t rows, std::int64_t columns) {
  return rows % 16 == 0 && columns % 16 == 0;
}

Result<const cublasLtMatmulAlgo_t*> MatmulLibrary::algorithm(const Key& key,
                                                             cublasLtMatmulDesc_t operation,
                                                             cublasLtMatrixLayout_t weight,
                                                             cublasLtMatrixLayout_t x,
                                                             cublasLtMatrixLayout_t out) {
  const auto found = algorithms_.find(key);
  if (found != algorithms_.end()) return &found->second;
  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  KOHO_CUBLAS_TRY(cublasLtMatmulAlgoGetHeuristic(handle_, operation, weight, x, out, out,
                                                 preference_, 1, &best, &count));
  if (count == 0)
    return make_error(ErrorCode::unsupported,
                      "cuBLASLt has no FP8 product of {} x {} for {} tokens", std::get<0>(key),
                      std::get<1>(key), std::get<2>(key));
  return &algorithms_.emplace(key, best.algo).first->second;
}

Status MatmulLibrary::multiply(const LibraryProduct& p, cudaStream_t stream) {
  const auto bucket =
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(p.tokens)));
  const Key key{p.rows, p.columns, bucket, p.bias != nullptr};
  Plan plan;
  KOHO_TRY(make_plan(plan, p, bucket));
  KOHO_TRY_ASSIGN(const cublasLtMatmulAlgo_t* algorithm,
                  this->algorithm(key, &plan.operation, &plan.weight, &plan.x, &plan.out));
  KOHO_TRY(make_plan(plan, p, p.tokens));
  const float one = 1.0F;
  const float zero = 0.0F;
  KOHO_CUBLAS_TRY(cublasLtMatmul(handle_, &plan.operation, &one, p.weight, &plan.weight, p.x,
                                 &plan.x, &zero, p.out, &plan.out, p.out, &plan.out, algorithm,
                                 workspace_.as<void>(), static_cast<std::size_t>(kWorkspaceBytes),
                                 stream));
  return {};
}

}  // namespace koho::cuda
