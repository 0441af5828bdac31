// SPDX-License-Identifier: Apache-2.0
// Collectives over host memory, of ranks as threads and in the form of processes: the tests hold
// for both. (Threads may use the form of processes, too.)
#include "comm/host_ranks.h"

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm/process_ranks.h"
#include "comm/thread_ranks.h"
#include "comm/thread_rendezvous.h"
#include "tensor/number.h"
#include "tensor/tensor.h"
#include "tests/support/on_every_rank.h"
#include "tests/support/patience.h"

namespace koho {
namespace {

using testing::kPatience;
using testing::on_every_rank;

enum class Form { threads, processes };

class HostRanks : public ::testing::TestWithParam<Form> {
 protected:
  static std::vector<std::unique_ptr<Communicator>> make_ranks(std::int64_t ranks,
                                                               std::chrono::milliseconds timeout) {
    auto rendezvous = make_thread_rendezvous(ranks, kPatience);
    std::vector<std::unique_ptr<Communicator>> made(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < made.size(); ++rank)
      threads.emplace_back([&, rank] {
        auto joined = GetParam() == Form::threads ? join_thread_ranks(*rendezvous[rank], timeout)
                                                  : join_process_ranks(*rendezvous[rank], timeout);
        ASSERT_TRUE(joined.ok()) << joined.error().message;
        made[rank] = std::move(*joined);
      });
    for (std::thread& thread : threads) thread.join();
    return made;
  }
};

INSTANTIATE_TEST_SUITE_P(Forms,
                         HostRanks,
                         ::testing::Values(Form::threads, Form::processes),
                         [](const auto& form) {
                           return form.param == Form::threads ? "Threads" : "Processes";
                         });

TEST_P(HostRanks, AllReduceSumsInRankOrderOnEveryRank) {
  auto ranks = make_ranks(4, kPatience);
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

TEST_P(HostRanks, ExchangeGivesEachRankWholeRows) {
  // Five rows over two ranks: three and two. Value: 100 * row + column.
  auto ranks = make_ranks(2, kPatience);
  on_every_rank(2, [&](std::size_t rank) {
    Tensor part = *Tensor::host(DType::f32, {5, 3});
    for (std::size_t i = 0; i < 15; ++i)
      part.span<float>()[i] = static_cast<float>(100 * (i / 3) + 3 * rank + i % 3);
    const RowRange mine = owned_rows(5, static_cast<std::int64_t>(rank), 2);
    EXPECT_EQ(mine.count, rank == 0 ? 3 : 2);
    Tensor out = *Tensor::host(DType::f32, {mine.count, 6});
    ASSERT_TRUE(ranks[rank]->exchange_rows(out.view(), part.view()).ok());
    for (std::size_t i = 0; i < static_cast<std::size_t>(out.view().elements()); ++i)
      EXPECT_EQ(out.span<float>()[i],
                static_cast<float>(100 * (static_cast<std::size_t>(mine.first) + i / 6) + i % 6));
  });
}

TEST_P(HostRanks, ExchangeOfFewerRowsThanRanksGivesTheLastRanksNone) {
  EXPECT_EQ(owned_rows(1, 0, 4).count, 1);
  for (std::int64_t rank = 1; rank < 4; ++rank) EXPECT_EQ(owned_rows(1, rank, 4).count, 0);
  EXPECT_EQ(owned_rows(5, 3, 4).count, 0);  // two each: the third has one
  EXPECT_EQ(owned_rows(0, 0, 4).count, 0);
}

TEST_P(HostRanks, GatherFillsInTheRowsOfTheOtherRanks) {
  auto ranks = make_ranks(3, kPatience);
  on_every_rank(3, [&](std::size_t rank) {
    Tensor ids = *Tensor::host(DType::i32, {6});
    Tensor pairs = *Tensor::host(DType::f32, {6, 2});
    for (std::size_t i = 2 * rank; i < 2 * rank + 2; ++i) {
      ids.span<std::int32_t>()[i] = static_cast<std::int32_t>(i);
      pairs.span<float>()[2 * i] = pairs.span<float>()[2 * i + 1] = static_cast<float>(i);
    }
    const std::array tensors{ids.view(), pairs.view()};
    ASSERT_TRUE(ranks[rank]->all_gather_rows(tensors).ok());
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(ids.span<std::int32_t>()[i], static_cast<std::int32_t>(i));
      EXPECT_EQ(pairs.span<float>()[2 * i + 1], static_cast<float>(i));
    }
  });
}

Tensor integers(std::int64_t rows, std::int64_t columns, const std::vector<std::int32_t>& values) {
  Tensor tensor = *Tensor::host(DType::i32, {rows, columns});
  std::copy(values.begin(), values.end(), tensor.span<std::int32_t>().begin());
  return tensor;
}

/// Ids of each rank's rows, two a row, and names for rows: 100 * rank + row.
struct Sent {
  Tensor ids;
  Tensor names;
  Sent(std::size_t rank, std::int64_t rows, const std::vector<std::int32_t>& values)
      : ids(integers(rows, 2, values)), names(*Tensor::host(DType::f32, {rows})) {
    for (std::int64_t row = 0; row < rows; ++row)
      names.span<float>()[static_cast<std::size_t>(row)] =
          static_cast<float>(100 * rank) + static_cast<float>(row);
  }
};

/// Three ranks with four ids each; rank 2 has no row.
std::vector<Sent> three_senders() {
  std::vector<Sent> senders;
  senders.emplace_back(0, 3, std::vector<std::int32_t>{0, 1, 5, 11, -1, -1});
  senders.emplace_back(1, 2, std::vector<std::int32_t>{8, 3, 4, -1});
  senders.emplace_back(2, 0, std::vector<std::int32_t>{});
  return senders;
}

TEST_P(HostRanks, DispatchSendsARowOnceToEachRankThatHoldsOneOfItsIds) {
  auto ranks = make_ranks(3, kPatience);
  std::vector<Sent> senders = three_senders();
  const std::vector<std::vector<float>> expected{{0, 100}, {1, 101}, {1, 100}};
  on_every_rank(3, [&](std::size_t rank) {
    Tensor ids = *Tensor::host(DType::i32, {8, 2});
    Tensor names = *Tensor::host(DType::f32, {8});
    for (int repeat = 0; repeat < 50; ++repeat) {
      const std::array rows{DispatchTensor{senders[rank].ids.view(), ids.view()},
                            DispatchTensor{senders[rank].names.view(), names.view()}};
      const Result<std::int64_t> arrived =
          ranks[rank]->dispatch({.ids = senders[rank].ids.view(), .ids_per_rank = 4}, rows);
      ASSERT_TRUE(arrived.ok());
      ASSERT_EQ(*arrived, 2);
      for (std::size_t row = 0; row < 2; ++row)
        EXPECT_EQ(names.span<float>()[row], expected[rank][row]) << "rank " << rank;
      if (rank == 2) {
        EXPECT_EQ(ids.span<std::int32_t>()[2], 8);
        EXPECT_EQ(ids.span<std::int32_t>()[3], 3);
      }
    }
  });
}

TEST_P(HostRanks, CombineAddsTheSumOfWhatEachRankMadeOfARow) {
  auto ranks = make_ranks(3, kPatience);
  std::vector<Sent> senders = three_senders();
  on_every_rank(3, [&](std::size_t rank) {
    Tensor names = *Tensor::host(DType::f32, {8});
    const std::array rows{DispatchTensor{senders[rank].names.view(), names.view()}};
    const Result<std::int64_t> arrived =
        ranks[rank]->dispatch({.ids = senders[rank].ids.view(), .ids_per_rank = 4}, rows);
    ASSERT_TRUE(arrived.ok());
    // Rank r makes (name + 1) * 2^r of a row.
    Tensor results = *Tensor::host(DType::bf16, {*arrived, 1});
    for (std::size_t row = 0; row < 2; ++row)
      results.span<BFloat16>()[row] =
          to_bf16((names.span<float>()[row] + 1.0F) * static_cast<float>(1U << rank));
    const std::int64_t own = senders[rank].ids.view().size(0);
    Tensor out = *Tensor::host(DType::bf16, {own, 1});
    for (BFloat16& value : out.span<BFloat16>()) value = to_bf16(1000.0F);
    ASSERT_TRUE(ranks[rank]->combine(out.view(), results.view()).ok());
    // Rank 0's rows: the first stays, the second goes to 1 and 2, the third nowhere. Rank 1's: the
    // first goes to 2 and 0, the second to itself.
    const std::vector<std::vector<float>> sums{{1, 4 + 8, 0}, {101 + 404, 204}, {}};
    for (std::size_t row = 0; row < sums[rank].size(); ++row)
      EXPECT_EQ(to_float(out.span<BFloat16>()[row]),
                round_to_bf16(1000.0F + round_to_bf16(sums[rank][row])))
          << "rank " << rank << " row " << row;
  });
}

TEST_P(HostRanks, DispatchToAllSendsEveryRowEverywhere) {
  auto ranks = make_ranks(3, kPatience);
  std::vector<Sent> senders = three_senders();
  on_every_rank(3, [&](std::size_t rank) {
    Tensor names = *Tensor::host(DType::f32, {8});
    const std::array rows{DispatchTensor{senders[rank].names.view(), names.view()}};
    const Result<std::int64_t> arrived =
        ranks[rank]->dispatch({.ids = senders[rank].ids.view(), .ids_per_rank = 0}, rows);
    ASSERT_TRUE(arrived.ok());
    ASSERT_EQ(*arrived, 4);  // the row without ids stays at home
    const std::vector<float> expected{0, 1, 100, 101};
    for (std::size_t row = 0; row < 4; ++row) EXPECT_EQ(names.span<float>()[row], expected[row]);
  });
}

TEST_P(HostRanks, MoreRowsThanThereIsRoomForAreAnError) {
  auto ranks = make_ranks(3, kPatience);
  std::vector<Sent> senders = three_senders();
  on_every_rank(3, [&](std::size_t rank) {
    Tensor names = *Tensor::host(DType::f32, {rank == 1 ? 1 : 8});
    const std::array rows{DispatchTensor{senders[rank].names.view(), names.view()}};
    const Result<std::int64_t> arrived =
        ranks[rank]->dispatch({.ids = senders[rank].ids.view(), .ids_per_rank = 4}, rows);
    if (rank != 1) return;
    ASSERT_FALSE(arrived.ok());
    EXPECT_EQ(arrived.error().code, ErrorCode::resource_exhausted);
  });
}

TEST_P(HostRanks, OperandsMayGrowAndShrink) {
  auto ranks = make_ranks(3, kPatience);
  on_every_rank(3, [&](std::size_t rank) {
    for (const std::int64_t columns : {1, 100, 70'000, 3, 300'000, 2}) {
      Tensor values = *Tensor::host(DType::bf16, {2, columns});
      for (BFloat16& value : values.span<BFloat16>()) value = to_bf16(static_cast<float>(rank + 1));
      ASSERT_TRUE(ranks[rank]->all_reduce(values.view()).ok());
      for (const BFloat16& value : values.span<BFloat16>()) ASSERT_EQ(to_float(value), 6.0F);
    }
  });
}

TEST_P(HostRanks, RanksThatDisagreeAreToldSo) {
  auto ranks = make_ranks(3, kPatience);
  on_every_rank(3, [&](std::size_t rank) {
    Tensor values = *Tensor::host(DType::bf16, {rank == 2 ? 3 : 2, 4});
    const Status shapes = ranks[rank]->all_reduce(values.view());
    ASSERT_FALSE(shapes.ok());
    EXPECT_EQ(shapes.error().code, ErrorCode::internal);
    Tensor out = *Tensor::host(DType::f32, {1, 3});
    Tensor part = *Tensor::host(DType::f32, {1, 1});
    Tensor equal = *Tensor::host(DType::bf16, {1, 1});
    const Status operations = rank == 0 ? ranks[rank]->exchange_rows(out.view(), part.view())
                                        : ranks[rank]->all_reduce(equal.view());
    EXPECT_FALSE(operations.ok());
    Tensor again = *Tensor::host(DType::bf16, {2, 4});
    EXPECT_TRUE(ranks[rank]->all_reduce(again.view()).ok()) << "the group still works";
  });
}

TEST_P(HostRanks, ARankThatGivesUpFreesTheOthers) {
  auto ranks = make_ranks(2, kPatience);
  Tensor values = *Tensor::host(DType::bf16, {1, 1});
  std::thread other([&] { EXPECT_FALSE(ranks[0]->all_reduce(values.view()).ok()); });
  ranks[1]->give_up();
  other.join();
}

TEST_P(HostRanks, ARankThatDoesNotComeIsAnErrorForTheOthers) {
  auto ranks = make_ranks(2, std::chrono::milliseconds(20));
  Tensor values = *Tensor::host(DType::bf16, {1, 1});
  const Status first = ranks[0]->all_reduce(values.view());
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.error().code, ErrorCode::unavailable);
  EXPECT_FALSE(ranks[1]->all_reduce(values.view()).ok()) << "the group stays broken";
}

}  // namespace
}  // namespace koho
