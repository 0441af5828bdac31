// SPDX-License-Identifier: Apache-2.0
// Generates synthetic weights on the device (tensor/synthetic_values.h): the same numbers as on the
// host, element by element. Eight elements per thread; bound by integer arithmetic.
#include "cuda/device/launch.cuh"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/load/synthetic_weights.h"
#include "tensor/synthetic_values.h"

namespace koho::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;

template <typename Element>
__global__ void synthetic_weights_kernel(const SyntheticWeights p) {
  pdl_begin();
  const std::int64_t groups = (p.columns + kEach - 1) / kEach;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= p.rows * groups) return;
  const std::int64_t row = index / groups;
  const std::int64_t column = index % groups * kEach;
  const auto first = static_cast<std::uint64_t>(p.first + row * p.row_stride + column);
  Element* out = static_cast<Element*>(p.out) + row * p.columns + column;
  const int count = static_cast<int>(min(p.columns - column, static_cast<std::int64_t>(kEach)));
  for (int i = 0; i < count; ++i) {
    const auto bell = static_cast<float>(
        synthetic::bell(synthetic::word(p.key, first + static_cast<std::uint64_t>(i))));
    const float value = __fadd_rn(p.offset, __fmul_rn(p.factor, bell));
    if constexpr (sizeof(Element) == 1)
      out[i] = to_e4m3(value);
    else
      out[i] = to_bf16(value);
  }
}

}  // namespace

cudaError_t launch_synthetic_weights(const SyntheticWeights& p, cudaStream_t stream) {
  const std::int64_t threads = p.rows * ((p.columns + kEach - 1) / kEach);
  if (threads == 0) return cudaSuccess;
  const LaunchShape shape{dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)),
                          dim3(kThreads)};
  return p.element_bytes == 1
             ? launch_kernel(synthetic_weights_kernel<std::uint8_t>, shape, stream, p)
             : launch_kernel(synthetic_weights_kernel<Bf16>, shape, stream, p);
}

const void* kernel_of::synthetic_weights() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
