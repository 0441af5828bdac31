// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/cublaslt_gemm.h"

#include <bit>

#include "base/log.h"
#include "cuda/gemm/cublaslt_library.h"

namespace koho::cuda {
namespace {

constexpr std::int64_t kWorkspaceBytes = 64LL << 20;

Error cublaslt_error(cublasStatus_t status, std::string_view call) {
  return make_error(ErrorCode::device_error, "cuBLASLt: {} from {}", cublasLtGetStatusName(status),
                    call);
}

#define KOHO_CUBLAS_TRY(expr)                                                            \
  do {                                                                                   \
    if (const cublasStatus_t koho_cublas = (expr); koho_cublas != CUBLAS_STATUS_SUCCESS) \
      return cublaslt_error(koho_cublas, #expr);                                         \
  } while (false)

/// The operation and its three matrix layouts, on the stack of one call. In cuBLASLt's column-major
/// order the GEMM is out^T [N, T] = weight [N, K] * x^T [K, T].
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

/// NOTE: without fast accumulation. cuBLASLt then promotes sums to f32 on the way, as koho's
/// kernels do, which costs some 12 % of the speed (docs/kernels/gemm.md).
Status make_plan(Plan& plan,
                 CublasLtScales scales,
                 const CublasLtProblem& problem,
                 std::int64_t tokens) {
  const Gemm& p = problem.gemm;
  KOHO_CUBLAS_TRY(cublasLtMatmulDescInit(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N));
  KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{0}));
  const bool inside = scales == CublasLtScales::fused;
  if (inside) {
    const std::int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode));
    KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode));
    KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.row_scales));
    KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.x_scales));
  }  // else one scale per operand, which is 1 as no pointer is set
  if (inside && p.bias != nullptr) {
    KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias));
    KOHO_CUBLAS_TRY(set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF));
  }
  const auto rows = static_cast<std::uint64_t>(p.rows);
  const auto columns = static_cast<std::uint64_t>(p.x_bytes);
  const auto count = static_cast<std::uint64_t>(tokens);
  KOHO_CUBLAS_TRY(cublasLtMatrixLayoutInit(&plan.weight, CUDA_R_8F_E4M3, columns, rows, p.x_bytes));
  KOHO_CUBLAS_TRY(
      cublasLtMatrixLayoutInit(&plan.x, CUDA_R_8F_E4M3, columns, count, p.x_stride_bytes));
  KOHO_CUBLAS_TRY(cublasLtMatrixLayoutInit(&plan.out, inside ? CUDA_R_16BF : CUDA_R_32F, rows,
                                           count, inside ? p.out_stride : p.rows));
  return {};
}

}  // namespace

Result<std::unique_ptr<CublasLtGemm>> CublasLtGemm::open(
    const std::shared_ptr<DeviceMemory>& memory, CublasLtScales scales) {
  KOHO_TRY(open_cublaslt());
  std::unique_ptr<CublasLtGemm> library(new CublasLtGemm());
  library->memory_ = memory;
  library->scales_ = scales;
  KOHO_CUBLAS_TRY(cublasLtCreate(&library->handle_));
  KOHO_TRY_ASSIGN(library->workspace_,
                  DeviceBlock::allocate(memory, kWorkspaceBytes, "cuBLASLt's workspace"));
  KOHO_CUBLAS_TRY(cublasLtMatmulPreferenceCreate(&library->preference_));
  const auto bytes = static_cast<std::size_t>(kWorkspaceBytes);
  KOHO_CUBLAS_TRY(cublasLtMatmulPreferenceSetAttribute(
      library->preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
  // Only algorithms without split-K, so that the order of sums is fixed.
  const std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
  KOHO_CUBLAS_TRY(cublasLtMatmulPreferenceSetAttribute(
      library->preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes));
  // Every GPU that has the mode has an algorithm for this shape.
  const Shape likely = library->shape_of(4096, 4096, true);
  KOHO_TRY_ASSIGN(const std::optional<cublasLtMatmulAlgo_t> any,
                  library->choose(library->stand_in(likely, library->workspace_.as<void>()), 1024));
  if (!any)
    return make_error(ErrorCode::unsupported, "cuBLASLt has no FP8 GEMM of {} scales here",
                      scales == CublasLtScales::fused ? "row and column" : "scalar");
  return library;
}

CublasLtGemm::~CublasLtGemm() {
  if (preference_ != nullptr) cublasLtMatmulPreferenceDestroy(preference_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

bool CublasLtGemm::takes(std::int64_t rows, std::int64_t columns) {
  return rows % 16 == 0 && columns % 16 == 0;
}

CublasLtGemm::Shape CublasLtGemm::shape_of(std::int64_t rows,
                                           std::int64_t columns,
                                           bool bias) const {
  return {rows, columns, bias && scales_ == CublasLtScales::fused};
}

CublasLtProblem CublasLtGemm::stand_in(const Shape& shape, void* memory) const {
  CublasLtProblem problem;
  Gemm& p = problem.gemm;
  p.row_scales = static_cast<const float*>(memory);
  p.x_scales = static_cast<const float*>(memory);
  if (shape.bias) p.bias = static_cast<const Bf16*>(memory);
  p.x = static_cast<const std::uint8_t*>(memory);
  p.x_bytes = static_cast<int>(shape.columns);
  p.x_stride_bytes = shape.columns;
  p.rows = static_cast<int>(shape.rows);
  p.out = memory;
  p.out_stride = shape.rows;
  problem.weight = memory;
  problem.sums = static_cast<float*>(memory);
  return problem;
}

void CublasLtGemm::expect(std::int64_t rows, std::int64_t columns, bool bias) {
  expected_.insert(shape_of(rows, columns, bias));
}

std::int64_t CublasLtGemm::scratch_bytes(std::int64_t tokens) const {
  std::int64_t bytes = 0;
  for (const Shape& shape : expected_)
    if (scales_ == CublasLtScales::separate)
      bytes = std::max(bytes, cublaslt_sums_bytes(shape.rows, tokens));
  return bytes;
}

Result<std::optional<cublasLtMatmulAlgo_t>> CublasLtGemm::choose(const CublasLtProblem& problem,
                                                                 std::int64_t tokens) {
  Plan plan;
  KOHO_TRY(make_plan(plan, scales_, problem, tokens));
  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, &plan.operation, &plan.weight, &plan.x, &plan.out,
                                     &plan.out, preference_, 1, &best, &count);
  // cuBLASLt reports a missing algorithm by this status or by a count of 0.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return std::optional<cublasLtMatmulAlgo_t>();
  KOHO_CUBLAS_TRY(status);
  if (count == 0) return std::optional<cublasLtMatmulAlgo_t>();
  return std::optional<cublasLtMatmulAlgo_t>(best.algo);
}

Result<const cublasLtMatmulAlgo_t*> CublasLtGemm::algorithm(const Key& key,
                                                            const CublasLtProblem& problem) {
  auto found = algorithms_.find(key);
  if (found == algorithms_.end()) {
    KOHO_TRY_ASSIGN(std::optional<cublasLtMatmulAlgo_t> chosen, choose(problem, key.second));
    found = algorithms_.emplace(key, chosen).first;
    if (!chosen)
      log::warning("cuBLASLt has no FP8 GEMM of {} x {} for {} tokens; koho's own kernel is used",
                   key.first.rows, key.first.columns, key.second);
  }
  return found->second ? &*found->second : nullptr;
}

cublasStatus_t CublasLtGemm::run(const CublasLtProblem& problem,
                                 const cublasLtMatmulAlgo_t& algorithm,
                                 cudaStream_t stream) {
  const Gemm& p = problem.gemm;
  Plan plan;
  if (!make_plan(plan, scales_, problem, p.tokens).ok()) return CUBLAS_STATUS_INVALID_VALUE;
  const float one = 1.0F;
  const float zero = 0.0F;
  void* out = scales_ == CublasLtScales::fused ? p.out : problem.sums;
  return cublasLtMatmul(handle_, &plan.operation, &one, problem.weight, &plan.weight, p.x, &plan.x,
                        &zero, out, &plan.out, out, &plan.out, &algorithm, workspace_.as<void>(),
                        static_cast<std::size_t>(kWorkspaceBytes), stream);
}

Status CublasLtGemm::prepare(std::int64_t tokens, cudaStream_t stream) {
  // A small GEMM is enough to load an algorithm's kernel.
  constexpr std::int64_t kFewest = 128;
  constexpr std::int64_t kRows = 256;
  std::int64_t bytes = kFewest * kRows * 4;
  for (const Shape& shape : expected_) bytes = std::max(bytes, kRows * shape.columns);
  if (expected_.empty() || tokens < kFewest) return {};
  KOHO_TRY_ASSIGN(const DeviceBlock memory,
                  DeviceBlock::allocate(memory_, bytes, "cuBLASLt's first GEMMs"));
  KOHO_CUDA_TRY(cudaMemsetAsync(memory.as<void>(), 0, static_cast<std::size_t>(bytes), stream));
  for (const Shape& shape : expected_) {
    const std::int64_t most = scales_ == CublasLtScales::separate
                                  ? std::min(tokens, cublaslt_tokens_max(shape.rows))
                                  : tokens;
    CublasLtProblem problem = stand_in(shape, memory.as<void>());
    for (std::int64_t size = kFewest; size < 2 * most; size *= 2) {
      KOHO_TRY_ASSIGN(const cublasLtMatmulAlgo_t* const algorithm,
                      this->algorithm({shape, size}, problem));
      if (algorithm == nullptr) continue;
      CublasLtProblem small = problem;
      small.gemm.tokens = kFewest;
      small.gemm.rows = static_cast<int>(std::min(shape.rows, kRows));
      small.gemm.out_stride = small.gemm.rows;
      // If an algorithm refuses so small a GEMM, the first step that uses it loads its kernel.
      static_cast<void>(run(small, *algorithm, stream));
    }
  }
  KOHO_CUDA_TRY(cudaStreamSynchronize(stream));
  return {};
}

Result<bool> CublasLtGemm::multiply_piece(const CublasLtProblem& problem, cudaStream_t stream) {
  const Gemm& p = problem.gemm;
  const auto size = static_cast<std::int64_t>(std::bit_ceil(static_cast<unsigned>(p.tokens)));
  const Key key{shape_of(p.rows, p.x_bytes, p.bias != nullptr), size};
  KOHO_TRY_ASSIGN(const cublasLtMatmulAlgo_t* const algorithm, this->algorithm(key, problem));
  if (algorithm == nullptr) return false;
  const cublasStatus_t status = run(problem, *algorithm, stream);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) {  // the heuristics do not always know
    log::warning("cuBLASLt refuses its FP8 GEMM of {} x {} for {} tokens; koho's own is used",
                 p.rows, p.x_bytes, p.tokens);
    algorithms_[key] = std::nullopt;
    return false;
  }
  KOHO_CUBLAS_TRY(status);
  if (scales_ == CublasLtScales::separate)
    KOHO_CUDA_TRY(launch_gemm_scale_epilogue(p, problem.sums, stream));
  return true;
}

Result<bool> CublasLtGemm::multiply(const CublasLtProblem& problem, cudaStream_t stream) {
  const Gemm& p = problem.gemm;
  const std::int64_t piece =
      scales_ == CublasLtScales::separate ? cublaslt_piece(p.rows, p.tokens) : p.tokens;
  for (std::int64_t first = 0; first < p.tokens; first += piece) {
    CublasLtProblem part = problem;
    part.gemm.tokens = static_cast<int>(std::min(piece, p.tokens - first));
    part.gemm.x = p.x + first * p.x_stride_bytes;
    part.gemm.x_scales = p.x_scales + first;
    part.gemm.out = static_cast<Bf16*>(p.out) + first * p.out_stride;
    KOHO_TRY_ASSIGN(const bool multiplied, multiply_piece(part, stream));
    if (!multiplied) return false;
  }
  return true;
}

}  // namespace koho::cuda
