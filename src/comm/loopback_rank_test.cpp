// SPDX-License-Identifier: Apache-2.0
#include "comm/loopback_rank.h"

#include <array>
#include <cstddef>

#include <gtest/gtest.h>

#include "tensor/tensor.h"

namespace koho {
namespace {

TEST(LoopbackRank, OwnsRowsWithItsOwnColumnsBesideZeros) {
  LoopbackRank rank(1, 2);  // of three rows the last
  Tensor part = *Tensor::host(DType::f32, {3, 2});
  Tensor out = *Tensor::host(DType::f32, {1, 4});
  for (std::size_t i = 0; i < 6; ++i) part.span<float>()[i] = static_cast<float>(i + 1);
  ASSERT_TRUE(rank.exchange_rows(out.view(), part.view()).ok());
  EXPECT_EQ(out.span<float>()[0], 0.0F);
  EXPECT_EQ(out.span<float>()[1], 0.0F);
  EXPECT_EQ(out.span<float>()[2], 5.0F);
  EXPECT_EQ(out.span<float>()[3], 6.0F);
  Tensor narrow = *Tensor::host(DType::f32, {1, 3});
  EXPECT_EQ(rank.exchange_rows(narrow.view(), part.view()).error().code, ErrorCode::internal);
}

TEST(LoopbackRank, GathersItsOwnRowsBesideZeros) {
  LoopbackRank rank(1, 3);
  Tensor ids = *Tensor::host(DType::i32, {6});
  for (std::int32_t& id : ids.span<std::int32_t>()) id = 7;
  const std::array tensors{ids.view()};
  ASSERT_TRUE(rank.all_gather_rows(tensors).ok());
  for (std::size_t i = 0; i < 6; ++i)
    EXPECT_EQ(ids.span<std::int32_t>()[i], i == 2 || i == 3 ? 7 : 0);
}

TEST(LoopbackRank, RefusesWhatNeedsTheOthersTokens) {
  LoopbackRank rank(0, 2);
  EXPECT_EQ(rank.dispatch({}, {}).error().code, ErrorCode::unsupported);
  EXPECT_EQ(rank.combine({}, {}).error().code, ErrorCode::unsupported);
}

TEST(LoopbackRendezvous, HearsItselfFromEveryRank) {
  LoopbackRendezvous alone(2, 4);
  const std::array mine{std::byte{1}, std::byte{2}};
  std::array<std::byte, 8> all{};
  ASSERT_TRUE(alone.all_gather(mine, all).ok());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], mine[i % 2]);
  EXPECT_EQ(alone.all_gather(mine, std::span(all).first(6)).error().code,
            ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace koho
