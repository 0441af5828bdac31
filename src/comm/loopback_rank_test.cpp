// SPDX-License-Identifier: Apache-2.0
#include "comm/loopback_rank.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/number.h"
#include "tensor/tensor.h"

namespace koho {
namespace {

TEST(LoopbackRank, SumsWithZerosAndGathersItsOwnColumnsAmongImpossibleOnes) {
  LoopbackRank rank(2, 4);
  auto part = Tensor::host(DType::f32, {3, 2});
  auto out = Tensor::host(DType::f32, {3, 8});
  ASSERT_TRUE(part.ok() && out.ok());
  for (int i = 0; i < 6; ++i)
    part->span<float>()[static_cast<std::size_t>(i)] = static_cast<float>(i);
  ASSERT_TRUE(rank.all_gather_columns(out->view(), part->view()).ok());
  for (int row = 0; row < 3; ++row)
    for (int column = 0; column < 8; ++column) {
      const float found = out->span<float>()[static_cast<std::size_t>(row * 8 + column)];
      if (column / 2 == 2)
        EXPECT_EQ(found, static_cast<float>(row * 2 + column % 2));
      else
        EXPECT_TRUE(std::isinf(found) && found < 0.0F);
    }

  auto values = Tensor::host(DType::bf16, {1, 2});
  ASSERT_TRUE(values.ok());
  values->span<BFloat16>()[0] = to_bf16(2.5F);
  values->span<BFloat16>()[1] = to_bf16(-1.0F);
  ASSERT_TRUE(rank.all_reduce(values->view()).ok());
  EXPECT_EQ(to_float(values->span<BFloat16>()[0]), 2.5F);
  EXPECT_EQ(to_float(values->span<BFloat16>()[1]), -1.0F);
}

TEST(LoopbackRank, RefusesWhatNeedsTheOthersTokensAndAnotherWidth) {
  LoopbackRank rank(0, 2);
  EXPECT_EQ(rank.dispatch({}, {}).error().code, ErrorCode::unsupported);
  EXPECT_EQ(rank.combine({}, {}).error().code, ErrorCode::unsupported);
  auto part = Tensor::host(DType::f32, {1, 2});
  auto out = Tensor::host(DType::f32, {1, 3});
  ASSERT_TRUE(part.ok() && out.ok());
  EXPECT_EQ(rank.all_gather_columns(out->view(), part->view()).error().code, ErrorCode::internal);
}

}  // namespace
}  // namespace koho
