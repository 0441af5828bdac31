// SPDX-License-Identifier: Apache-2.0
// What takes over where the self-test finds a fast kernel wrong, or cuBLASLt refuses a GEMM. The
// linker routes the launchers of fast kernels through this file (CMakeLists.txt), which clears the
// first row of the output of the one that is to fail. Skipped without a GPU.
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <memory>
#include <string>

#include <cublasLt.h>

#include <gtest/gtest.h>

#include "cuda/cuda_backend.h"
#include "cuda/gemm/gemm.h"
#include "cuda/kernels.h"
#include "cuda/moe/experts_thin.h"
#include "ops/op_cases.h"

namespace {

enum class Fault : std::uint8_t {
  none,
  gemm,              // the grouped decode GEMM on wgmma is wrong
  experts_down,      // the experts' down projection on wgmma is wrong
  experts_thin,      // thin experts in one kernel are wrong
  prefill_portable,  // the portable prefill GEMM is wrong
  attention,         // prefill attention on wgmma is wrong
  cublaslt,          // cuBLASLt's GEMM is wrong
  cublaslt_refuses   // cuBLASLt refuses every GEMM
};
Fault injected = Fault::none;

cudaError_t clear(
    cudaError_t launched, Fault fault, void* out, std::int64_t elements, cudaStream_t stream) {
  if (launched != cudaSuccess || injected != fault) return launched;
  return cudaMemsetAsync(out, 0, static_cast<std::size_t>(2 * elements), stream);
}

}  // namespace

extern "C" {

cudaError_t __real__ZN4koho4cuda31launch_gemm_grouped_decode_sm90ERKNS0_4GemmEiP11CUstream_st(
    const koho::cuda::Gemm& p, int multiprocessors, cudaStream_t stream);
cudaError_t __wrap__ZN4koho4cuda31launch_gemm_grouped_decode_sm90ERKNS0_4GemmEiP11CUstream_st(
    const koho::cuda::Gemm& p, int multiprocessors, cudaStream_t stream) {
  return clear(__real__ZN4koho4cuda31launch_gemm_grouped_decode_sm90ERKNS0_4GemmEiP11CUstream_st(
                   p, multiprocessors, stream),
               Fault::gemm, p.out, p.out_stride, stream);
}

cudaError_t __real__ZN4koho4cuda25launch_experts_down_wgmmaERKNS0_4GemmEiP11CUstream_st(
    const koho::cuda::Gemm& p, int multiprocessors, cudaStream_t stream);
cudaError_t __wrap__ZN4koho4cuda25launch_experts_down_wgmmaERKNS0_4GemmEiP11CUstream_st(
    const koho::cuda::Gemm& p, int multiprocessors, cudaStream_t stream) {
  return clear(__real__ZN4koho4cuda25launch_experts_down_wgmmaERKNS0_4GemmEiP11CUstream_st(
                   p, multiprocessors, stream),
               Fault::experts_down, p.out, p.out_stride, stream);
}

cudaError_t __real__ZN4koho4cuda19launch_experts_thinERKNS0_11ExpertsThinEiP11CUstream_st(
    const koho::cuda::ExpertsThin& experts, int multiprocessors, cudaStream_t stream);
cudaError_t __wrap__ZN4koho4cuda19launch_experts_thinERKNS0_11ExpertsThinEiP11CUstream_st(
    const koho::cuda::ExpertsThin& experts, int multiprocessors, cudaStream_t stream) {
  return clear(__real__ZN4koho4cuda19launch_experts_thinERKNS0_11ExpertsThinEiP11CUstream_st(
                   experts, multiprocessors, stream),
               Fault::experts_thin, experts.down.out, experts.down.out_stride, stream);
}

cudaError_t __real__ZN4koho4cuda28launch_gemm_prefill_portableERKNS0_4GemmEiP11CUstream_st(
    const koho::cuda::Gemm& p, int multiprocessors, cudaStream_t stream);
cudaError_t __wrap__ZN4koho4cuda28launch_gemm_prefill_portableERKNS0_4GemmEiP11CUstream_st(
    const koho::cuda::Gemm& p, int multiprocessors, cudaStream_t stream) {
  return clear(__real__ZN4koho4cuda28launch_gemm_prefill_portableERKNS0_4GemmEiP11CUstream_st(
                   p, multiprocessors, stream),
               Fault::prefill_portable, p.out, p.out_stride, stream);
}

cudaError_t __real__ZN4koho4cuda22launch_attention_wgmmaERKNS0_9AttentionEP11CUstream_st(
    const koho::cuda::Attention& p, cudaStream_t stream);
cudaError_t __wrap__ZN4koho4cuda22launch_attention_wgmmaERKNS0_9AttentionEP11CUstream_st(
    const koho::cuda::Attention& p, cudaStream_t stream) {
  return clear(
      __real__ZN4koho4cuda22launch_attention_wgmmaERKNS0_9AttentionEP11CUstream_st(p, stream),
      Fault::attention, p.out, p.width, stream);
}

decltype(cublasLtMatmul) __real_cublasLtMatmul;
cublasStatus_t __wrap_cublasLtMatmul(cublasLtHandle_t handle,
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
                                     std::size_t workspace_bytes,
                                     cudaStream_t stream) {
  if (injected == Fault::cublaslt_refuses) return CUBLAS_STATUS_NOT_SUPPORTED;
  const cublasStatus_t status =
      __real_cublasLtMatmul(handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout,
                            d, d_layout, algorithm, workspace, workspace_bytes, stream);
  constexpr std::int64_t kElements = 64;  // of bf16, or half as many of f32
  return clear(cudaSuccess, Fault::cublaslt, d, kElements, stream) == cudaSuccess
             ? status
             : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"

namespace koho::testing {
namespace {

/// A fast path that fails, and how it shows that another one runs.
struct Fallback {
  const char* name;
  Fault fault;
  CudaOptions options;
  const char* said = "";   // in the backend's description
  const char* op_case;     // that the path would run
  OpCaseOptions promises;  // of what runs instead
  bool tells = true;       // whether the fast path itself breaks them
  bool hopper = false;     // the path is Hopper's
};

// An FP8 wgmma aligns 33 terms to the largest and drops what lies more than 13 bits below.
constexpr OpCaseOptions kOwn{.accumulation_error = 33.0 / 8192.0};
constexpr OpCaseOptions kPortable{};
constexpr OpCaseOptions kPortableAttention{.large_batch_invariant = false,
                                           .accumulation_error = 33.0 / 8192.0,
                                           .chain_error = 0x1p-23,
                                           .attention_weight_error = 0x1p-8,
                                           .attention_weight_step = 0x1p-38,
                                           .decode_matches_prefill = false};
constexpr const char* kMany = "linear_fp8_channel_many";
constexpr const char* kNoLibrary = ", without cuBLASLt";

const Fallback kFallbacks[] = {{.name = "cuBLASLt",
                                .fault = Fault::cublaslt,
                                .options = {.deterministic = false},
                                .said = kNoLibrary,
                                .op_case = kMany,
                                .promises = kOwn},
                               {.name = "cuBLASLt with scalar scales",
                                .fault = Fault::cublaslt,
                                .options = {.portable_only = true},
                                .said = kNoLibrary,
                                .op_case = kMany,
                                .promises = kPortable},
                               {.name = "a GEMM that cuBLASLt refuses",
                                .fault = Fault::cublaslt_refuses,
                                .options = {.deterministic = false},
                                .op_case = kMany,
                                .promises = kOwn},
                               {.name = "a GEMM that cuBLASLt with scalar scales refuses",
                                .fault = Fault::cublaslt_refuses,
                                .options = {.portable_only = true},
                                .op_case = kMany,
                                .promises = kPortable},
                               {.name = "GEMMs on wgmma",
                                .fault = Fault::gemm,
                                .options = {.deterministic = true},
                                .said = ", portable GEMM",
                                .op_case = "linear_fp8_channel",
                                .promises = kPortable,
                                .hopper = true},
                               {.name = "the experts' down projection",
                                .fault = Fault::experts_down,
                                .options = {},
                                .said = ", portable GEMM",
                                .op_case = "experts_fp8_one",
                                .promises = kPortable,
                                .tells = false,
                                .hopper = true},
                               {.name = "thin experts of few tokens",
                                .fault = Fault::experts_thin,
                                .options = {},
                                .said = ", portable GEMM",
                                .op_case = "experts_fp8_one",
                                .promises = kPortable,
                                .tells = false,
                                .hopper = true},
                               {.name = "the portable prefill GEMM",
                                .fault = Fault::prefill_portable,
                                .options = {.portable_only = true},
                                .said = ", without the portable prefill GEMM",
                                .op_case = "experts_fp8_many",
                                .promises = kPortable,
                                .tells = false},
                               {.name = "attention on wgmma",
                                .fault = Fault::attention,
                                .options = {},
                                .said = ", portable attention",
                                .op_case = "attention_prompt_bf16",
                                .promises = kPortableAttention,
                                .tells = false,
                                .hopper = true}};

class SelfTestFaults : public ::testing::TestWithParam<Fallback> {
 protected:
  ~SelfTestFaults() override { injected = Fault::none; }
};

TEST_P(SelfTestFaults, LetOtherKernelsRun) {
  const Fallback& fallback = GetParam();
  Result<std::unique_ptr<Backend>> right = make_cuda_backend(fallback.options);
  if (!right.ok() && right.error().code == ErrorCode::not_found) GTEST_SKIP() << "no GPU";
  ASSERT_TRUE(right.ok()) << right.error().message;
  const std::string gpu = (*right)->description();
  if (fallback.hopper && gpu.find("H100") == std::string::npos &&
      gpu.find("H200") == std::string::npos)
    GTEST_SKIP() << gpu << " is not Hopper";
  EXPECT_EQ(gpu.find(','), std::string::npos) << "the self-test finds a fault of its own: " << gpu;
  const auto op_case = std::find_if(op_cases().begin(), op_cases().end(), [&](const OpCase& one) {
    return one.name == fallback.op_case;
  });
  ASSERT_NE(op_case, op_cases().end());
  constexpr std::uint64_t kTellingRounds = 16;  // some seeds have shapes that all paths run alike
  bool broken = false;
  for (std::uint64_t seed = 1; fallback.tells && !broken && seed <= kTellingRounds; ++seed)
    broken = !op_case->run(**right, seed, fallback.promises).empty();
  EXPECT_EQ(broken, fallback.tells);

  // The self-test itself must pass where only the later GEMMs are refused.
  if (fallback.fault != Fault::cublaslt_refuses) injected = fallback.fault;
  Result<std::unique_ptr<Backend>> opened = make_cuda_backend(fallback.options);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  injected = fallback.fault;
  EXPECT_EQ((*opened)->description(), gpu + fallback.said);
  constexpr std::uint64_t kRounds = 4;
  for (std::uint64_t seed = 1; seed <= kRounds; ++seed)
    EXPECT_EQ(op_case->run(**opened, seed, fallback.promises), "") << "seed " << seed;
}

/// The name's letters and digits.
std::string test_name(const ::testing::TestParamInfo<Fallback>& tested) {
  std::string name;
  for (const char letter : std::string(tested.param.name))
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0) name += letter;
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, SelfTestFaults, ::testing::ValuesIn(kFallbacks), test_name);

}  // namespace
}  // namespace koho::testing
