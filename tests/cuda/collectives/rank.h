// SPDX-License-Identifier: Apache-2.0
// One rank of collectives_bench: its GPU, buffers with guard bands, calls of the collectives and
// their reference. A file for each of its measurements: rank_checks.cpp, rank_soak.cpp,
// rank_faults.cpp, rank_times.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "cuda/collectives/all_reduce_norm.h"
#include "cuda/kernels.h"
#include "tests/cuda/collectives/group.h"
#include "tests/cuda/collectives/test_data.h"

namespace koho::cuda::collectives_bench {

constexpr std::int64_t kElementsMax = 8192 * 5120;
constexpr std::int64_t kWidthMax = 10'240;
constexpr std::int64_t kGuard = 4096;  // bytes on both sides of a buffer
constexpr int kPoison = 0xA5;
constexpr float kEps = 1e-5F;

struct Guarded {
  std::uint8_t* all = nullptr;  // guard, data, guard
  std::int64_t bytes = 0;       // of the data, most

  void allocate(std::int64_t of) {
    bytes = (of + 255) / 256 * 256;
    CHECK_CUDA(cudaMalloc(&all, static_cast<std::size_t>(bytes + 2 * kGuard)));
  }
  template <typename T>
  T* data() const {
    return reinterpret_cast<T*>(all + kGuard);
  }
};

/// The outputs of a fused call or of its reference.
struct Outputs {
  Guarded residual, values, quantized, scales, block_quantized, block_scales, sum;

  void allocate() {
    const std::int64_t blocks = kElementsMax / 64 + 8192 * 4;
    residual.allocate(2 * kElementsMax + 8192 * 64);
    values.allocate(2 * kElementsMax + 8192 * 64);
    sum.allocate(2 * kElementsMax);
    quantized.allocate(kElementsMax + 8192 * 64);
    block_quantized.allocate(kElementsMax + 8192 * 64);
    scales.allocate(4 * 65'536);
    block_scales.allocate(4 * blocks);
  }
};

struct Case {
  std::int64_t rows = 1;
  std::int64_t width = 5120;
  std::int64_t pad = 0;   // elements between rows
  int outputs = 7;        // bits: values, quantized, block_quantized
  bool in_place = false;  // plain: the sum takes the addend's place
  int ctas = 0;           // fused, one-shot: AllReduceNorm::ctas_per_row_max
  std::int64_t stride() const { return width + pad; }
  std::int64_t blocks() const { return quant_blocks(width); }
};

RowOutputs outputs_of(const Outputs& o, const Case& c, std::int64_t first_row = 0);

struct Part {
  const Guarded* buffer;
  std::int64_t bytes;
  const char* name;
};

/// The buffers that a call writes.
std::vector<Part> parts_of(const Outputs& o, const Case& c, bool fused);
std::string described(const CollectiveFault& fault);

class Rank {
 public:
  explicit Rank(int rank) : rank_(rank) {}
  void run();

 private:
  void set_up();
  void reset(std::uint32_t first_epoch);
  void generate(Bf16* to, std::uint32_t seed, int of, const Case& c, std::int64_t stride);
  void poison(const Outputs& o, const Case& c, bool fused);
  void compare(const Case& c, bool fused, int check);
  void reference(const Case& c, std::uint32_t seed, bool fused);
  cudaError_t call(const Case& c,
                   AllReduceAlgorithm algorithm,
                   bool fused,
                   std::int64_t first_row = 0);
  cudaGraphExec_t capture(const std::function<void()>& body);
  void launch(cudaGraphExec_t graph) { CHECK_CUDA(cudaGraphLaunch(graph, stream_)); }
  void sync(const char* what);
  void count_wrong(const std::vector<std::string>& names);
  void checks();
  void enqueue_check(const Case& c,
                     AllReduceAlgorithm algorithm,
                     bool fused,
                     std::uint32_t seed,
                     std::vector<std::string>& names);
  void compare_ranks(std::int64_t rows, std::int64_t width);
  long long check_shape(std::int64_t rows, std::int64_t width, std::uint32_t& seed);
  void check_after_fault(AllReduceAlgorithm algorithm, std::int64_t rows);
  void check_cpu(const Case& c, std::uint32_t seed);
  void soak(std::uint32_t first_epoch);
  void faults();
  void link();
  void times();
  double time(int calls, int replays, const std::function<void()>& one);

  int rank_;
  int multiprocessors_ = 0;
  cudaStream_t stream_ = nullptr;
  PeerGroup group_;
  CollectiveHostState* host_state_ = nullptr;
  Guarded x_, weight_;
  Outputs actual_, expected_;
  Difference* differences_ = nullptr;
  unsigned long long* digest_ = nullptr;
};

}  // namespace koho::cuda::collectives_bench
