// SPDX-License-Identifier: Apache-2.0
#include "bench/gemm_timing.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "bench/median.h"

namespace koho::gemm_bench {

using cuda::DeviceBlock;
using cuda::DeviceMemory;
using cuda::TileType;

namespace {

constexpr std::int64_t kRotated = 600LL << 20;  // bytes of weights that calls take in turn
constexpr std::int64_t kRandom =
    (16LL << 20) + 4096;  // random bytes of weights; the rest repeats them
constexpr int kCallsMax = 100;
constexpr int kReplays = 5;
constexpr int kAlgorithms = 6;  // that cuBLASLt's heuristics propose
constexpr int kTurns = 3;       // of koho and the best of them, one after the other

/// Bytes that are numbers of either type: none is a NaN, and bf16 stays below 2.
std::vector<std::uint8_t> random_bytes(std::int64_t count, TileType type, std::uint64_t seed) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
  std::uint64_t state = seed;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto value = static_cast<std::uint8_t>(state >> 56U);
    if (type == TileType::fp8)
      bytes[i] = (value & 0x7FU) == 0x7FU ? 0 : value;
    else
      bytes[i] = i % 2 == 0 ? value : static_cast<std::uint8_t>((value & 0x80U) | 0x3FU);
  }
  return bytes;
}

}  // namespace

Status copy_to(const DeviceBlock& block, const void* data, std::size_t bytes) {
  KOHO_CUDA_TRY(cudaMemcpy(block.as<void>(), data, bytes, cudaMemcpyHostToDevice));
  return {};
}

Result<Operands> make_operands(const std::shared_ptr<DeviceMemory>& memory,
                               const Shape& shape,
                               std::int64_t tokens_max) {
  Operands o;
  const std::int64_t element = shape.type == TileType::bf16 ? 2 : 1;
  o.matrix_bytes = static_cast<std::int64_t>(shape.rows) * shape.width * element;
  o.copies = std::max<std::int64_t>(2, kRotated / o.matrix_bytes);
  const auto allocate = [&](std::int64_t bytes) {
    return DeviceBlock::allocate(memory, bytes, "the bench");
  };
  KOHO_TRY_ASSIGN(o.weights, allocate(o.copies * o.matrix_bytes));
  KOHO_TRY_ASSIGN(o.row_scales, allocate(shape.rows * 4LL));
  KOHO_TRY_ASSIGN(o.x, allocate(tokens_max * shape.width * element));
  KOHO_TRY_ASSIGN(o.x_scales, allocate(tokens_max * 4LL));
  KOHO_TRY_ASSIGN(o.out, allocate(tokens_max * shape.rows * 4LL));
  KOHO_TRY_ASSIGN(o.workspace, allocate(kWorkspace));
  const std::int64_t weight_bytes = o.copies * o.matrix_bytes;
  const std::vector<std::uint8_t> weight = random_bytes(kRandom, shape.type, 1);
  for (std::int64_t at = 0; at < weight_bytes; at += kRandom)
    KOHO_CUDA_TRY(cudaMemcpy(o.weights.as<std::byte>() + at, weight.data(),
                             static_cast<std::size_t>(std::min(kRandom, weight_bytes - at)),
                             cudaMemcpyHostToDevice));
  const std::vector<std::uint8_t> x =
      random_bytes(tokens_max * shape.width * element, shape.type, 2);
  KOHO_TRY(copy_to(o.x, x.data(), x.size()));
  std::vector<float> scales(
      static_cast<std::size_t>(std::max<std::int64_t>(shape.rows, tokens_max)));
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.01F + 1e-5F * static_cast<float>(i);
  KOHO_TRY(copy_to(o.row_scales, scales.data(), static_cast<std::size_t>(shape.rows) * 4));
  KOHO_TRY(copy_to(o.x_scales, scales.data(), static_cast<std::size_t>(tokens_max) * 4));
  return o;
}

Timing timing_of(const Operands& o) {
  constexpr double kTogetherUs = 2000.0;
  constexpr double kLongUs = 100.0;
  const double least = 1e6 * static_cast<double>(o.matrix_bytes) / kReadCeiling;
  return {std::clamp<std::int64_t>(static_cast<std::int64_t>(kTogetherUs / least), 5, kCallsMax),
          std::chrono::milliseconds(least < kLongUs ? 0 : 50)};
}

Result<double> time_calls(cudaStream_t stream,
                          std::int64_t copies,
                          const Timing& timing,
                          const std::function<Status(std::int64_t copy)>& call) {
  KOHO_CUDA_TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  Status captured;
  for (std::int64_t i = 0; i < timing.calls && captured.ok(); ++i) captured = call(i % copies);
  cudaGraph_t graph = nullptr;
  KOHO_CUDA_TRY(cudaStreamEndCapture(stream, &graph));
  KOHO_TRY(std::move(captured));
  cudaGraphExec_t executable = nullptr;
  KOHO_CUDA_TRY(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t events[2];
  for (cudaEvent_t& event : events) KOHO_CUDA_TRY(cudaEventCreate(&event));
  std::this_thread::sleep_for(timing.rest);
  std::vector<double> times;
  for (int replay = 0; replay <= kReplays; ++replay) {
    KOHO_CUDA_TRY(cudaEventRecord(events[0], stream));
    KOHO_CUDA_TRY(cudaGraphLaunch(executable, stream));
    KOHO_CUDA_TRY(cudaEventRecord(events[1], stream));
    KOHO_CUDA_TRY(cudaStreamSynchronize(stream));
    float milliseconds = 0.0F;
    KOHO_CUDA_TRY(cudaEventElapsedTime(&milliseconds, events[0], events[1]));
    if (replay > 0) times.push_back(1e3 * milliseconds / static_cast<double>(timing.calls));
  }
  for (cudaEvent_t event : events) KOHO_CUDA_TRY(cudaEventDestroy(event));
  KOHO_CUDA_TRY(cudaGraphExecDestroy(executable));
  KOHO_CUDA_TRY(cudaGraphDestroy(graph));
  return bench::median(times);
}

Result<CublasLtTimes> time_cublaslt(cudaStream_t stream,
                                    cublasLtHandle_t handle,
                                    const Operands& o,
                                    const Shape& shape,
                                    int tokens,
                                    const std::function<Result<double>()>& koho) {
  const bool bf16 = shape.type == TileType::bf16;
  const cudaDataType_t type = bf16 ? CUDA_R_16BF : CUDA_R_8F_E4M3;
  CublasLtTimes times;
  for (const std::int8_t fast : {std::int8_t{0}, std::int8_t{1}}) {
    if (fast != 0 && bf16) continue;
    double& best = fast != 0 ? times.fast : times.accumulated;
    cublasLtMatmulDescOpaque_t operation{};
    cublasLtMatrixLayoutOpaque_t weight{};
    cublasLtMatrixLayoutOpaque_t x{};
    cublasLtMatrixLayoutOpaque_t out{};
    cublasLtMatmulPreferenceOpaque_t preference{};
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                   sizeof transposed);
    cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    const auto width = static_cast<std::uint64_t>(shape.width);
    const auto rows = static_cast<std::uint64_t>(shape.rows);
    cublasLtMatrixLayoutInit(&weight, type, width, rows, shape.width);
    cublasLtMatrixLayoutInit(&x, type, width, static_cast<std::uint64_t>(tokens), shape.width);
    cublasLtMatrixLayoutInit(&out, bf16 ? CUDA_R_32F : CUDA_R_16BF, rows,
                             static_cast<std::uint64_t>(tokens), shape.rows);
    cublasLtMatmulPreferenceInit(&preference);
    const auto bytes = static_cast<std::size_t>(kWorkspace);
    cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &bytes, sizeof bytes);
    cublasLtMatmulHeuristicResult_t found[kAlgorithms];
    int count = 0;
    if (cublasLtMatmulAlgoGetHeuristic(handle, &operation, &weight, &x, &out, &out, &preference,
                                       kAlgorithms, found, &count) != CUBLAS_STATUS_SUCCESS)
      continue;
    const float one = 1.0F;
    const float zero = 0.0F;
    const auto time_algorithm = [&](int at) {
      return time_calls(stream, o.copies, timing_of(o), [&](std::int64_t copy) -> Status {
        const cublasStatus_t status = cublasLtMatmul(
            handle, &operation, &one, o.weights.as<std::byte>() + copy * o.matrix_bytes, &weight,
            o.x.as<void>(), &x, &zero, o.out.as<void>(), &out, o.out.as<void>(), &out,
            &found[at].algo, o.workspace.as<void>(), bytes, stream);
        if (status != CUBLAS_STATUS_SUCCESS)
          return make_error(ErrorCode::device_error, "cuBLASLt: {}", cublasLtGetStatusName(status));
        return {};
      });
    };
    int chosen = -1;
    for (int i = 0; i < count; ++i) {
      const Result<double> us = time_algorithm(i);
      if (!us.ok() || (best != 0.0 && *us >= best)) continue;
      best = *us;
      chosen = i;
    }
    if (fast != 0 || chosen < 0) continue;
    std::vector<double> ours;
    std::vector<double> theirs;
    for (int turn = 0; turn < kTurns; ++turn) {
      KOHO_TRY_ASSIGN(const double us, koho());
      ours.push_back(us);
      KOHO_TRY_ASSIGN(const double library_us, time_algorithm(chosen));
      theirs.push_back(library_us);
    }
    times.koho = bench::median(ours);
    times.accumulated = bench::median(theirs);
  }
  return times;
}

}  // namespace koho::gemm_bench
