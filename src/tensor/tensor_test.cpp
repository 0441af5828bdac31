// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor.h"

#include <gtest/gtest.h>

namespace koho {
namespace {

TEST(Tensor, SlicesAndRowsPointIntoTheSameMemory) {
  Tensor tensor = *Tensor::host(DType::i32, {3, 4});
  for (int i = 0; i < 12; ++i) tensor.span<std::int32_t>()[static_cast<std::size_t>(i)] = i;
  const TensorView middle = tensor.view().slice(1, 1, 2);
  EXPECT_EQ(to_string(middle.shape), "[3, 2]");
  EXPECT_FALSE(middle.packed());
  EXPECT_TRUE(middle.rows_packed());
  EXPECT_EQ(middle.at(2).as<std::int32_t>()[0], 9);
  EXPECT_EQ(middle.at(2).shape, Shape({2}));
}

TEST(Tensor, DescribesDTypeAndShape) {
  EXPECT_EQ(describe(Tensor::host(DType::bf16, {2, 5})->view()), "BF16 [2, 5]");
}

TEST(Tensor, HostMemoryIsAlignedAndZero) {
  Tensor tensor = *Tensor::host(DType::u8, {7});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.view().data) % 64, 0U);
  for (const std::uint8_t byte : tensor.span<std::uint8_t>()) EXPECT_EQ(byte, 0);
}

TEST(TensorDeathTest, ASliceOutsideTheAxisAborts) {
  Tensor tensor = *Tensor::host(DType::u8, {7});
  EXPECT_DEATH(tensor.view().slice(0, 5, 3), "check failed");
}

}  // namespace
}  // namespace koho
