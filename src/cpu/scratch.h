// SPDX-License-Identifier: Apache-2.0
// Scratch memory of one operator: its arrays are offsets into one allocation, which reserve()
// makes. The allocation grows only for shapes that reserve() could not foresee: an operator called
// without a placed weight of its width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "base/arithmetic.h"
#include "base/error.h"

namespace koho::cpu {

/// Adds up the arrays of one operator. Each begins on a cache line.
class ScratchPlan {
 public:
  /// The offset of `count` elements.
  template <typename T>
  std::int64_t add(std::int64_t count) {
    const std::int64_t offset = bytes_;
    bytes_ += round_up<std::int64_t>(count * static_cast<std::int64_t>(sizeof(T)), 64);
    return offset;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_ = 0;
};

class Scratch {
 public:
  std::int64_t bytes() const { return bytes_; }
  /// Makes `bytes` available; what was there is lost. Errors: resource_exhausted.
  Status ensure(std::int64_t bytes) {
    if (bytes <= bytes_) return {};
    memory_.reset();
    bytes_ = 0;
    const auto size = static_cast<std::size_t>(round_up<std::int64_t>(bytes, 64));
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(64, size)));
    if (!memory_)
      return make_error(ErrorCode::resource_exhausted,
                        "no memory for {} bytes of operator scratch; lower the tokens of a step",
                        size);
    bytes_ = static_cast<std::int64_t>(size);
    return {};
  }

  /// The array at a planned offset.
  template <typename T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(memory_.get() + offset);
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::int64_t bytes_ = 0;
};

}  // namespace koho::cpu
