// SPDX-License-Identifier: Apache-2.0
#include "comm/thread_ranks.h"

#include <thread>

#include <gtest/gtest.h>

#include "tensor/number.h"
#include "tensor/tensor.h"

namespace koho {
namespace {

constexpr std::chrono::milliseconds kPatience{20000};

TEST(ThreadRanks, AllReduceSumsInRankOrderOnEveryRank) {
  auto ranks = make_thread_ranks(4, kPatience);
  std::vector<Tensor> values;
  for (int rank = 0; rank < 4; ++rank) {
    values.push_back(*Tensor::host(DType::bf16, {3, 5}));
    int i = 0;
    for (BFloat16& value : values.back().span<BFloat16>())
      value = to_bf16(static_cast<float>(rank + 10 * i++));
  }
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      for (int repeat = 0; repeat < 50; ++repeat) {
        Tensor copy = *Tensor::host(DType::bf16, {3, 5});
        std::copy(values[rank].span<BFloat16>().begin(), values[rank].span<BFloat16>().end(),
                  copy.span<BFloat16>().begin());
        ASSERT_TRUE(ranks[rank]->all_reduce(copy.view()).ok());
        for (std::size_t i = 0; i < 15; ++i)
          ASSERT_EQ(to_float(copy.span<BFloat16>()[i]),
                    round_to_bf16(6.0F + 40.0F * static_cast<float>(i)));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(ThreadRanks, AllGatherPutsTheColumnsInRankOrder) {
  auto ranks = make_thread_ranks(2, kPatience);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      Tensor part = *Tensor::host(DType::f32, {2, 3});
      for (float& value : part.span<float>()) value = static_cast<float>(rank);
      Tensor out = *Tensor::host(DType::f32, {2, 6});
      ASSERT_TRUE(ranks[rank]->all_gather_columns(out.view(), part.view()).ok());
      for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(out.span<float>()[i], i % 6 < 3 ? 0.0F : 1.0F);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(ThreadRanks, ARankThatGivesUpFreesTheOthers) {
  auto ranks = make_thread_ranks(2, kPatience);
  Tensor values = *Tensor::host(DType::bf16, {1, 1});
  std::thread other([&] { EXPECT_FALSE(ranks[0]->all_reduce(values.view()).ok()); });
  ranks[1]->give_up();
  other.join();
}

TEST(ThreadRanks, ARankThatDoesNotComeIsAnErrorForTheOthers) {
  auto ranks = make_thread_ranks(2, std::chrono::milliseconds(20));
  Tensor values = *Tensor::host(DType::bf16, {1, 1});
  const Status first = ranks[0]->all_reduce(values.view());
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.error().code, ErrorCode::unavailable);
  EXPECT_FALSE(ranks[1]->all_reduce(values.view()).ok()) << "the group stays broken";
}

}  // namespace
}  // namespace koho
