// SPDX-License-Identifier: Apache-2.0
// What koho asks of cuBLASLt and makes of its answers; the library is the test's own. Which mode a
// GPU has, GEMMs in pieces, algorithms chosen before the first GEMM, and no GEMM without an
// algorithm. No GPU.
#include "cuda/gemm/cublaslt_gemm.h"

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace {

/// A matrix or operation as the library was given it.
struct Asked {
  std::int64_t rows = 0, columns = 0, tokens = 0;
  bool own_scales = false;  // row and column scales
  bool bias = false;
  cudaDataType out = CUDA_R_16BF;
  const void* x = nullptr;
  void* d = nullptr;
};

/// The library: what it was asked, and what it answers.
struct Library {
  bool has_own_scales = true;
  bool has_scalar = true;
  std::int64_t no_algorithm_tokens = 0;  // for so many tokens there is none
  std::int64_t refused_tokens = 0;       // and so many are refused when they are multiplied
  std::vector<Asked> chosen, multiplied;
  std::vector<std::pair<koho::cuda::Gemm, const float*>> scaled;
};
Library* library = nullptr;

struct Operation {
  bool own_scales, bias;
};
struct Layout {
  cudaDataType type;
  std::int64_t rows, columns;
};
template <typename Value>
Value read(const void* opaque) {
  Value value;
  std::memcpy(&value, opaque, sizeof value);
  return value;
}
template <typename Value>
void write(void* opaque, const Value& value) {
  std::memcpy(opaque, &value, sizeof value);
}
Asked asked_of(const void* operation, const void* weight, const void* x, const void* out) {
  const auto o = read<Operation>(operation);
  return {.rows = read<Layout>(weight).columns,
          .columns = read<Layout>(weight).rows,
          .tokens = read<Layout>(x).columns,
          .own_scales = o.own_scales,
          .bias = o.bias,
          .out = read<Layout>(out).type};
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(library);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) {
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t) {
  return "a status";
}
cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t operation,
                                               size_t,
                                               cublasComputeType_t,
                                               cudaDataType_t) {
  write(operation, Operation{false, false});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value,
                                              size_t) {
  auto o = read<Operation>(operation);
  if (attribute == CUBLASLT_MATMUL_DESC_A_SCALE_MODE)
    o.own_scales = read<std::int32_t>(value) == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  if (attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER) o.bias = true;
  write(operation, o);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout,
                                                 size_t,
                                                 cudaDataType type,
                                                 uint64_t rows,
                                                 uint64_t columns,
                                                 int64_t) {
  write(layout, Layout{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*,
                                                    size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t weight,
                                              cublasLtMatrixLayout_t x,
                                              cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t,
                                              int,
                                              cublasLtMatmulHeuristicResult_t*,
                                              int* count) {
  const Asked asked = asked_of(operation, weight, x, out);
  library->chosen.push_back(asked);
  *count = 0;
  if (!(asked.own_scales ? library->has_own_scales : library->has_scalar))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  *count = asked.tokens == library->no_algorithm_tokens ? 0 : 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t,
                              cublasLtMatmulDesc_t operation,
                              const void*,
                              const void*,
                              cublasLtMatrixLayout_t weight,
                              const void* x,
                              cublasLtMatrixLayout_t x_layout,
                              const void*,
                              const void*,
                              cublasLtMatrixLayout_t,
                              void* d,
                              cublasLtMatrixLayout_t out,
                              const cublasLtMatmulAlgo_t*,
                              void*,
                              size_t,
                              cudaStream_t) {
  Asked asked = asked_of(operation, weight, x_layout, out);
  asked.x = x;
  asked.d = d;
  if (asked.tokens == library->refused_tokens) return CUBLAS_STATUS_NOT_SUPPORTED;
  library->multiplied.push_back(asked);
  return CUBLAS_STATUS_SUCCESS;
}

// The linker has koho call these (CMakeLists.txt).
cudaError_t __wrap_cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t __wrap_cudaMalloc(void** data, size_t bytes) {
  *data = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t __wrap_cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t __wrap_cudaMemsetAsync(void*, int, size_t, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}

}  // extern "C"

namespace koho::cuda {

/// The next kernel.
cudaError_t launch_gemm_scale_epilogue(const Gemm& parameters, const float* sums, cudaStream_t) {
  library->scaled.push_back({parameters, sums});
  return cudaSuccess;
}

namespace {

constexpr std::int64_t kRows[] = {16, 112, 1792, 3584, 5120, 14336, 24576, 151552, 1 << 20};

TEST(CublasLtPieces, FitTheMemoryReservedForMoreTokens) {
  for (const std::int64_t rows : kRows)
    for (std::int64_t tokens = 129; tokens < 20000; tokens += 61) {
      const std::int64_t piece = cublaslt_piece(rows, tokens);
      EXPECT_EQ(piece % 16, 0);
      EXPECT_LE(4 * rows * std::min(piece, tokens), cublaslt_sums_bytes(rows, tokens));
      EXPECT_LE(cublaslt_sums_bytes(rows, tokens), cublaslt_sums_bytes(rows, tokens + 61));
      EXPECT_LE(piece, cublaslt_tokens_max(rows));
    }
}

TEST(CublasLtPieces, AreFewAndAlike) {
  for (const std::int64_t rows : kRows)
    for (std::int64_t tokens = 129; tokens < 20000; tokens += 61) {
      const std::int64_t piece = cublaslt_piece(rows, tokens);
      const std::int64_t pieces = ceil_div(tokens, piece);
      EXPECT_LE(pieces, ceil_div(tokens, cublaslt_tokens_max(rows)));
      const std::int64_t last = tokens - (pieces - 1) * piece;
      EXPECT_GT(last, 0);
      EXPECT_GE(last, piece - 16 * pieces);
    }
}

TEST(CublasLtPieces, TakeLittleMemory) {
  for (const std::int64_t rows : {1792, 5120, 14336, 24576})
    EXPECT_LE(cublaslt_sums_bytes(rows, 131072), kCublasLtSumsBytes);
  EXPECT_EQ(cublaslt_piece(3584, 4096), 4096);
  EXPECT_EQ(cublaslt_piece(3584, 8192), 4096);
  EXPECT_EQ(cublaslt_piece(14336, 4096), 1024);
}

class CublasLtGemmTest : public ::testing::Test {
 protected:
  CublasLtGemmTest() { library = &answers; }
  ~CublasLtGemmTest() override { library = nullptr; }

  std::unique_ptr<CublasLtGemm> open(CublasLtScales scales) {
    Result<std::unique_ptr<CublasLtGemm>> opened =
        CublasLtGemm::open(std::make_shared<DeviceMemory>(0), scales);
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    answers.chosen.clear();
    return opened.ok() ? std::move(*opened) : nullptr;
  }

  /// Operands that nobody touches, only their places.
  static CublasLtProblem problem_of(int tokens, int rows, int columns, bool bias) {
    CublasLtProblem problem;
    Gemm& p = problem.gemm;
    p.x = reinterpret_cast<const std::uint8_t*>(0x10000000);
    p.x_bytes = columns;
    p.x_stride_bytes = columns + 16;
    p.x_scales = reinterpret_cast<const float*>(0x20000000);
    p.row_scales = reinterpret_cast<const float*>(0x30000000);
    p.bias = bias ? reinterpret_cast<const Bf16*>(0x40000000) : nullptr;
    p.tokens = tokens;
    p.rows = rows;
    p.out = reinterpret_cast<void*>(0x50000000);
    p.out_stride = rows + 8;
    problem.weight = reinterpret_cast<const void*>(0x60000000);
    problem.sums = reinterpret_cast<float*>(0x70000000);
    return problem;
  }

  Library answers;
};

TEST_F(CublasLtGemmTest, IsNotOpenedInAModeThatTheGpuHasNot) {
  answers.has_own_scales = false;
  const auto opened = CublasLtGemm::open(std::make_shared<DeviceMemory>(0), CublasLtScales::fused);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::unsupported);
  EXPECT_NE(open(CublasLtScales::separate), nullptr);
}

TEST_F(CublasLtGemmTest, ScalesAndAddsTheBiasItselfWhereItCan) {
  const auto opened = open(CublasLtScales::fused);
  const CublasLtProblem whole = problem_of(30000, 24576, 512, true);
  const Result<bool> multiplied = opened->multiply(whole, nullptr);
  ASSERT_TRUE(multiplied.ok() && *multiplied);
  ASSERT_EQ(answers.multiplied.size(), 1U);  // in one piece
  EXPECT_TRUE(answers.multiplied[0].own_scales && answers.multiplied[0].bias);
  EXPECT_EQ(answers.multiplied[0].out, CUDA_R_16BF);
  EXPECT_EQ(answers.multiplied[0].d, whole.gemm.out);
  EXPECT_TRUE(answers.scaled.empty());
}

TEST_F(CublasLtGemmTest, LeavesScalesAndBiasToTheNextKernelPieceByPiece) {
  const auto opened = open(CublasLtScales::separate);
  for (const int tokens : {129, 1000, 1171, 4096, 5555}) {
    answers.multiplied.clear();
    answers.scaled.clear();
    const CublasLtProblem whole = problem_of(tokens, 14336, 512, true);
    const Result<bool> multiplied = opened->multiply(whole, nullptr);
    ASSERT_TRUE(multiplied.ok() && *multiplied);
    ASSERT_EQ(answers.multiplied.size(), answers.scaled.size());
    EXPECT_EQ(answers.multiplied.size() > 1, tokens > cublaslt_tokens_max(14336));
    std::int64_t at = 0;
    for (std::size_t i = 0; i < answers.scaled.size(); ++i) {
      const Asked& made = answers.multiplied[i];
      const auto& [p, sums] = answers.scaled[i];
      EXPECT_FALSE(made.own_scales || made.bias);
      EXPECT_EQ(made.out, CUDA_R_32F);
      EXPECT_EQ(made.d, whole.sums);
      EXPECT_EQ(sums, whole.sums);
      EXPECT_EQ(made.tokens, p.tokens);
      EXPECT_LE(4 * made.tokens * made.rows, cublaslt_sums_bytes(14336, tokens));
      EXPECT_EQ(made.x, whole.gemm.x + at * whole.gemm.x_stride_bytes);
      EXPECT_EQ(p.x_scales, whole.gemm.x_scales + at);
      EXPECT_EQ(p.out, static_cast<Bf16*>(whole.gemm.out) + at * whole.gemm.out_stride);
      EXPECT_EQ(p.bias, whole.gemm.bias);
      at += p.tokens;
    }
    EXPECT_EQ(at, tokens);
  }
}

TEST_F(CublasLtGemmTest, ChoosesNothingAnyMoreAfterItIsPrepared) {
  for (const CublasLtScales scales : {CublasLtScales::fused, CublasLtScales::separate}) {
    const auto opened = open(scales);
    opened->expect(14336, 512, true);
    opened->expect(1792, 512, false);
    const std::int64_t tokens_max = 8192 + 24;
    ASSERT_TRUE(opened->prepare(tokens_max, nullptr).ok());
    EXPECT_FALSE(answers.chosen.empty());
    EXPECT_EQ(answers.multiplied.size(), answers.chosen.size());  // each ran once
    for (const Asked& small : answers.multiplied) EXPECT_LE(small.tokens * small.rows, 128 * 256);
    answers.chosen.clear();
    for (int tokens = 129; tokens <= tokens_max; tokens += 37) {
      const Result<bool> large = opened->multiply(problem_of(tokens, 14336, 512, true), nullptr);
      const Result<bool> small = opened->multiply(problem_of(tokens, 1792, 512, false), nullptr);
      ASSERT_TRUE(large.ok() && *large && small.ok() && *small);
    }
    EXPECT_TRUE(answers.chosen.empty());
    answers.multiplied.clear();
  }
}

TEST_F(CublasLtGemmTest, SaysSoWhereThereIsNoAlgorithm) {
  answers.no_algorithm_tokens = 512;
  const auto opened = open(CublasLtScales::fused);
  for (int i = 0; i < 3; ++i) {
    const Result<bool> multiplied = opened->multiply(problem_of(300, 1024, 512, false), nullptr);
    ASSERT_TRUE(multiplied.ok());
    EXPECT_FALSE(*multiplied);
  }
  EXPECT_EQ(answers.chosen.size(), 1U);  // asked once
  const Result<bool> other = opened->multiply(problem_of(200, 1024, 512, false), nullptr);
  EXPECT_TRUE(other.ok() && *other);
}

TEST_F(CublasLtGemmTest, SaysSoWhereCublasLtRefusesWhatItChose) {
  for (const CublasLtScales scales : {CublasLtScales::fused, CublasLtScales::separate}) {
    answers = {};
    answers.refused_tokens = 300;
    const auto opened = open(scales);
    const Result<bool> refused = opened->multiply(problem_of(300, 1024, 512, false), nullptr);
    ASSERT_TRUE(refused.ok());
    EXPECT_FALSE(*refused);
    EXPECT_TRUE(answers.scaled.empty());
    const Result<bool> again = opened->multiply(problem_of(301, 1024, 512, false), nullptr);
    EXPECT_TRUE(again.ok() && !*again);  // of the same algorithm, which is not asked for again
    EXPECT_TRUE(answers.multiplied.empty());
  }
}

}  // namespace
}  // namespace koho::cuda
