// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor.h"

#include <cstdint>
#include <cstdlib>

#include "base/arithmetic.h"

namespace koho {

Result<Tensor> Tensor::host(DType dtype, Shape shape) {
  constexpr std::size_t kAlignment = 64;  // one cache line, one AVX-512 register
  const auto bytes = static_cast<std::size_t>(shape.elements() * dtype_bytes(dtype));
  // calloc takes large blocks from the system, which zeroes a page when it is first touched: a
  // cache that is mostly unused costs no memory.
  void* block = std::calloc(round_up(bytes, kAlignment) + kAlignment, 1);
  if (block == nullptr)
    return make_error(ErrorCode::resource_exhausted, "cannot allocate {} bytes of host memory",
                      bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  auto* data = static_cast<std::byte*>(block) + (round_up(address, kAlignment) - address);
  return Tensor(
      data, [block](std::byte*) { std::free(block); }, dtype, shape, DeviceId{});
}

}  // namespace koho
