// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/arithmetic.h"

namespace koho {

Result<Tensor> Tensor::host(DType dtype, Shape shape) {
  constexpr std::size_t kAlignment = 64;  // one cache line, one AVX-512 register
  const auto bytes = static_cast<std::size_t>(shape.elements() * dtype_bytes(dtype));
  const std::size_t allocated = std::max(round_up(bytes, kAlignment), kAlignment);
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, allocated));
  if (data == nullptr)
    return make_error(ErrorCode::resource_exhausted, "cannot allocate {} bytes of host memory",
                      allocated);
  std::memset(data, 0, allocated);
  return Tensor(
      data, [](std::byte* memory) { std::free(memory); }, dtype, shape, DeviceId{});
}

}  // namespace koho
