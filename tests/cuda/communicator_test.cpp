// SPDX-License-Identifier: Apache-2.0
// The collectives of ranks on GPUs against those of threads on the CPU, which define them: the same
// inputs, every bit of the results, guard bands around them. 2, 4 and 8 ranks, at once and replayed
// from a captured graph. KOHO_TEST_DEVICES=0,1 names the GPUs (one: all ranks share it),
// KOHO_TEST_COLLECTIVES=nccl the transport, whose sums have other bits; KOHO_TEST_ROUNDS how often
// all collectives follow each other; KOHO_TEST_ROWS the most rows of a case, for sanitizers.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/number.h"
#include "tests/cuda/communicator_rank.h"
#include "tests/cuda/communicator_rounds.h"
#include "tests/support/environment.h"
#include "tests/support/on_every_rank.h"

namespace koho::testing {
namespace {

/// How far a sum over NCCL may be from the sum in rank order, both in bf16, whose rounding errs by
/// 2^-8 of the result at most. NCCL rounds at each of the ranks - 1 additions, the sum in rank
/// order is rounded once or twice (a combined row is stored before its ranks are added), and so is
/// `magnitude`, the sum of the parts' magnitudes.
float nccl_error(std::int64_t ranks, float magnitude) {
  return static_cast<float>(ranks + 2) * 0x1p-8F * magnitude;
}

void take_magnitudes(HostTensor& tensor) {
  for (std::int64_t i = 0; i < tensor.shape.elements(); ++i)
    tensor.as<BFloat16>()[i] = to_bf16(std::fabs(to_float(tensor.as<BFloat16>()[i])));
}

/// Numbers of different exponents, so that another order of a sum has other bits.
void fill_bf16(HostTensor& tensor, std::mt19937& random) {
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.shape.elements(); ++i)
    tensor.as<BFloat16>()[i] =
        to_bf16(normal(random) * std::ldexp(1.0F, static_cast<int>(random() % 9) - 4));
}

void fill_bytes(HostTensor& tensor, std::mt19937& random) {
  for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random());
}

void fill_f32(HostTensor& tensor, std::mt19937& random) {
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.shape.elements(); ++i) tensor.as<float>()[i] = normal(random);
}

class CudaCommunicator : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    const std::size_t devices = test_device(8).devices.size();  // before the driver starts
    const auto probe = cuda_memory_bytes(0);
    if (!probe.ok() && probe.error().code == ErrorCode::not_found) GTEST_SKIP() << "no GPU";
    const char* list = std::getenv("KOHO_TEST_DEVICES");
    if (devices > 1 && std::count(list, list + std::strlen(list), ',') + 1 < GetParam())
      GTEST_SKIP() << "fewer GPUs than ranks";
  }
};

TEST_P(CudaCommunicator, AllReduceHasTheBitsOfTheSumInRankOrder) {
  on_ranks(GetParam(), [](Rank& self) {
    for (const std::int64_t rows : {0, 1, 2, 3, 8, 17, 64, 65, 256, 1024, 8192}) {
      if (rows > rows_max()) continue;
      std::mt19937 random(static_cast<unsigned>(100 * rows + self.rank));
      HostTensor values(DType::bf16, {rows, kHidden});
      fill_bf16(values, random);
      HostTensor expected = values;
      DeviceTensor device(*self.backend, values);
      HostTensor magnitude = values;
      take_magnitudes(magnitude);
      ASSERT_TRUE(self.cpu->all_reduce(expected.view()).ok());
      ASSERT_TRUE(self.cpu->all_reduce(magnitude.view()).ok());
      self.run([&] { device.write(); }, [&] { return self.gpu->all_reduce(device.view()); });
      const std::vector<std::byte> found = device.read();
      if (!over_nccl()) {
        EXPECT_EQ(found, expected.bytes) << rows << " rows, rank " << self.rank;
      }
      for (std::int64_t i = 0; i < rows * kHidden && over_nccl(); ++i) {
        const float exact = to_float(expected.as<BFloat16>()[i]);
        const float sum = to_float(reinterpret_cast<const BFloat16*>(found.data())[i]);
        ASSERT_NEAR(sum, exact, nccl_error(self.ranks, to_float(magnitude.as<BFloat16>()[i])));
      }
    }
  });
}

TEST_P(CudaCommunicator, FusedAllReduceHasTheBitsOfTheTwoSteps) {
  if (over_nccl()) GTEST_SKIP() << "NCCL fuses nothing";
  on_ranks(GetParam(), [](Rank& self) {
    // A cluster a row from 4 ranks on: up to 16 and 33 rows, 1 and 2 where 4 ranks share a GPU.
    for (const std::int64_t rows : {1, 2, 3, 16, 17, 33, 34, 64, 257, 1024}) {
      if (rows > rows_max()) continue;
      std::mt19937 random(static_cast<unsigned>(rows + self.rank));
      std::mt19937 same(static_cast<unsigned>(rows));
      HostTensor block(DType::bf16, {rows, kHidden});
      HostTensor residual(DType::bf16, {rows, kHidden});
      HostTensor weight(DType::bf16, {kHidden});
      HostTensor values(DType::bf16, {rows, kHidden});
      HostTensor quantized(DType::f8_e4m3, {rows, kHidden});
      HostTensor scales(DType::f32, {rows});
      fill_bf16(block, random);
      fill_bf16(residual, same);
      fill_bf16(weight, same);
      DeviceTensor d_block(*self.backend, block), d_weight(*self.backend, weight);
      std::vector<DeviceTensor> one, two;  // residual, values, quantized, scales
      for (std::vector<DeviceTensor>* each : {&one, &two})
        for (HostTensor* host : {&residual, &values, &quantized, &scales})
          each->emplace_back(*self.backend, *host);
      const auto activation = [](std::vector<DeviceTensor>& of) {
        return Activation{
            .values = of[1].view(), .quantized = of[2].view(), .scales = of[3].view()};
      };
      self.run(
          [&] {
            d_block.write();
            for (DeviceTensor& tensor : one) tensor.write();
          },
          [&]() -> Status {
            KOHO_TRY_ASSIGN(const bool fused,
                            self.gpu->all_reduce_add_norm(activation(one), one[0].view(),
                                                          d_block.view(), d_weight.view(), 1e-5F));
            return fused ? Status() : make_error(ErrorCode::internal, "not fused");
          });
      d_block.write();
      ASSERT_TRUE(self.gpu->meet().ok());
      ASSERT_TRUE(self.gpu->all_reduce(d_block.view()).ok());
      ASSERT_TRUE(
          self.backend
              ->add_rms_norm(activation(two), two[0].view(), d_block.view(), d_weight.view(), 1e-5F)
              .ok());
      self.finish();
      for (std::size_t i = 0; i < one.size(); ++i)
        EXPECT_EQ(one[i].read(), two[i].read()) << rows << " rows, tensor " << i;
    }
  });
}

TEST_P(CudaCommunicator, ExchangeAndGatherAreThoseOfTheCpu) {
  on_ranks(GetParam(), [](Rank& self) {
    for (const std::int64_t rows : {1, 2, 3, 5, 7, 8, 9, 16, 33, 64, 255, 256}) {
      std::mt19937 random(static_cast<unsigned>(100 * rows + self.rank));
      const RowRange own = owned_rows(rows, self.rank, self.ranks);
      const std::int64_t padded = round_up(rows, self.ranks);
      HostTensor part(DType::f32, {rows, kColumns});
      HostTensor whole(DType::f32, {own.count, kColumns * self.ranks});
      HostTensor ids(DType::i32, {padded});
      HostTensor tops(DType::f32, {padded, kTop});
      fill_f32(part, random);
      fill_bytes(ids, random);
      fill_bytes(tops, random);
      DeviceTensor d_part(*self.backend, part), d_whole(*self.backend, whole),
          d_ids(*self.backend, ids), d_tops(*self.backend, tops);
      HostTensor whole_expected = whole, ids_expected = ids, tops_expected = tops;
      ASSERT_TRUE(self.cpu->exchange_rows(whole_expected.view(), part.view()).ok());
      ASSERT_TRUE(
          self.cpu->all_gather_rows(std::array{ids_expected.view(), tops_expected.view()}).ok());
      self.run(
          [&] {
            d_whole.write();
            d_ids.write();
            d_tops.write();
          },
          [&]() -> Status {
            KOHO_TRY(self.gpu->exchange_rows(d_whole.view(), d_part.view()));
            return self.gpu->all_gather_rows(std::array{d_ids.view(), d_tops.view()});
          });
      EXPECT_EQ(d_whole.read(), whole_expected.bytes) << rows << " rows, rank " << self.rank;
      EXPECT_EQ(d_ids.read(), ids_expected.bytes) << rows << " rows, rank " << self.rank;
      EXPECT_EQ(d_tops.read(), tops_expected.bytes) << rows << " rows, rank " << self.rank;
    }
  });
}

/// Rows of a rank's step, and where they go.
struct Sent {
  HostTensor ids, weights, values, quantized, scales;
  Sent(std::int64_t rows, std::int64_t experts, std::mt19937& random)
      : ids(DType::i32, {rows, kChoices}),
        weights(DType::f32, {rows, kChoices}),
        values(DType::bf16, {rows, kHidden}),
        quantized(DType::f8_e4m3, {rows, kHidden}),
        scales(DType::f32, {rows}) {
    for (std::int64_t i = 0; i < rows * kChoices; ++i)
      ids.as<std::int32_t>()[i] =
          random() % 3 == 0 ? -1
                            : static_cast<std::int32_t>(random() % static_cast<unsigned>(experts));
    fill_f32(weights, random);
    fill_bf16(values, random);
    fill_bytes(quantized, random);
    fill_f32(scales, random);
  }
  std::vector<HostTensor*> all() { return {&ids, &weights, &values, &quantized, &scales}; }
};

/// Room for what arrives, in the order of Sent::all().
std::vector<HostTensor> room(std::int64_t rows) {
  std::vector<HostTensor> all;
  all.emplace_back(DType::i32, Shape{rows, kChoices});
  all.emplace_back(DType::f32, Shape{rows, kChoices});
  all.emplace_back(DType::bf16, Shape{rows, kHidden});
  all.emplace_back(DType::f8_e4m3, Shape{rows, kHidden});
  all.emplace_back(DType::f32, Shape{rows});
  return all;
}

std::int64_t row_bytes(const HostTensor& tensor) {
  const std::int64_t rows = tensor.shape[0];
  return rows == 0 ? 0 : static_cast<std::int64_t>(tensor.bytes.size()) / rows;
}

/// What a rank makes of a row: its values times a power of two of its own.
void make_result(BFloat16* result, const BFloat16* values, std::int64_t rank) {
  for (std::int64_t i = 0; i < kHidden; ++i)
    result[i] = to_bf16(to_float(values[i]) * std::ldexp(1.25F, static_cast<int>(rank) - 2));
}

bool is_absent(const std::int32_t* ids) {
  return std::all_of(ids, ids + kChoices, [](std::int32_t id) { return id < 0; });
}

/// Dispatches and combines `counts[r]` rows of each rank r.
class DispatchCheck {
 public:
  DispatchCheck(Rank& self, const std::vector<std::int64_t>& counts, std::int64_t each)
      : self_(self),
        each_(each),
        starts_(1, 0),
        rows_(counts[static_cast<std::size_t>(self.rank)]),
        total_(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})),
        random_(static_cast<unsigned>(1000 * total_ + 10 * each + self.rank)),
        sent_(rows_, kExpertsEach * self.ranks, random_),
        out_(DType::bf16, {rows_, kHidden}),
        expected_(room(total_)),
        found_(room(total_)),
        results_(DType::bf16, {total_, kHidden}),
        magnitude_(DType::bf16, {rows_, kHidden}) {
    for (const std::int64_t count : counts) starts_.push_back(starts_.back() + count);
    fill_bf16(out_, random_);
    magnitude_.bytes = out_.bytes;
  }

  void run() {
    HostTensor out_expected = out_;
    on_cpu(out_expected);
    std::vector<DeviceTensor> sent, found;
    for (HostTensor* tensor : sent_.all()) sent.emplace_back(*self_.backend, *tensor);
    for (HostTensor& tensor : found_) found.emplace_back(*self_.backend, tensor);
    DeviceTensor out(*self_.backend, out_), results(*self_.backend, results_);
    std::vector<DispatchTensor> tensors;
    for (std::size_t i = 0; i < found.size(); ++i)
      tensors.push_back({sent[i].view(), found[i].view()});
    const RowRoutes routes{.ids = sent[0].view(), .ids_per_rank = each_, .row_starts = starts_};
    const auto dispatch = [&]() -> Status {
      KOHO_TRY_ASSIGN(const std::int64_t most, self_.gpu->dispatch(routes, tensors));
      if (most != total_) return make_error(ErrorCode::internal, "{} rows", most);
      return self_.gpu->wait_for_dispatch();
    };
    self_.run(
        [&] {
          for (DeviceTensor& tensor : found) tensor.write();
        },
        dispatch);
    for (std::size_t i = 0; i < found.size(); ++i) found_[i].bytes = found[i].read();
    compare_arrived();
    results.write();
    self_.run([&] { out.write(); },
              [&]() -> Status {
                KOHO_TRY(dispatch());
                return self_.gpu->combine(out.view(), results.view());
              });
    compare_combined(out.read(), out_expected);
  }

 private:
  /// The CPU's communicator: rows arrive without gaps.
  void on_cpu(HostTensor& out) {
    std::vector<DispatchTensor> tensors;
    for (std::size_t i = 0; i < expected_.size(); ++i)
      tensors.push_back({sent_.all()[i]->view(), expected_[i].view()});
    const Result<std::int64_t> came =
        self_.cpu->dispatch({.ids = sent_.ids.view(), .ids_per_rank = each_}, tensors);
    ASSERT_TRUE(came.ok());
    came_ = *came;
    HostTensor results(DType::bf16, {came_, kHidden});
    for (std::int64_t t = 0; t < came_; ++t)
      make_result(results.as<BFloat16>() + t * kHidden, expected_[2].as<BFloat16>() + t * kHidden,
                  self_.rank);
    ASSERT_TRUE(self_.cpu->combine(out.view(), results.view()).ok());
    take_magnitudes(results);
    take_magnitudes(magnitude_);
    ASSERT_TRUE(self_.cpu->combine(magnitude_.view(), results.view()).ok());
  }

  /// The GPU's rows are those of all ranks, some of which did not arrive: nobody may read a result
  /// of those, so they are NaN. NCCL adds every rank's rows: there they are zeros, as experts()
  /// leaves them.
  void compare_arrived() {
    std::ranges::fill(results_.bytes, over_nccl() ? std::byte{0} : std::byte{0xFF});
    std::int64_t next = 0;
    for (std::int64_t t = 0; t < total_; ++t) {
      if (is_absent(found_[0].as<std::int32_t>() + t * kChoices)) continue;
      ASSERT_LT(next, came_) << "more rows than arrive";
      for (std::size_t i = 0; i < found_.size(); ++i) {
        const std::int64_t bytes = row_bytes(expected_[i]);
        std::vector<std::byte> row(expected_[i].bytes.begin() + next * bytes,
                                   expected_[i].bytes.begin() + (next + 1) * bytes);
        auto* ids = reinterpret_cast<std::int32_t*>(row.data());
        for (std::int64_t a = 0; a < kChoices && i == 0 && each_ > 0; ++a)
          if (ids[a] >= 0 && ids[a] / each_ != self_.rank) ids[a] = -1;
        ASSERT_TRUE(std::equal(row.begin(), row.end(), found_[i].bytes.begin() + t * bytes))
            << "row " << t << " of " << total_ << ", tensor " << i << ", rank " << self_.rank;
      }
      make_result(results_.as<BFloat16>() + t * kHidden, found_[2].as<BFloat16>() + t * kHidden,
                  self_.rank);
      ++next;
    }
    EXPECT_EQ(next, came_);
  }

  void compare_combined(const std::vector<std::byte>& combined, HostTensor& expected) {
    if (!over_nccl()) {
      EXPECT_EQ(combined, expected.bytes) << total_ << " rows, rank " << self_.rank;
      return;
    }
    for (std::int64_t i = 0; i < rows_ * kHidden; ++i) {
      const float exact = to_float(expected.as<BFloat16>()[i]);
      const float sum = to_float(reinterpret_cast<const BFloat16*>(combined.data())[i]);
      ASSERT_NEAR(sum, exact, nccl_error(self_.ranks, to_float(magnitude_.as<BFloat16>()[i])));
    }
  }

  Rank& self_;
  std::int64_t each_;
  std::vector<std::int64_t> starts_;
  std::int64_t rows_;   // of this rank
  std::int64_t total_;  // of all
  std::mt19937 random_;
  Sent sent_;
  HostTensor out_;
  std::vector<HostTensor> expected_, found_;  // in the order of Sent::all()
  HostTensor results_;
  HostTensor magnitude_;  // [rows, H] of the parts of a combined row
  std::int64_t came_ = 0;
};

void check_dispatch(Rank& self, const std::vector<std::int64_t>& counts, std::int64_t each) {
  DispatchCheck(self, counts, each).run();
}

TEST_P(CudaCommunicator, DispatchAndCombineAreThoseOfTheCpu) {
  on_ranks(GetParam(), [](Rank& self) {
    const auto ranks = static_cast<std::size_t>(self.ranks);
    for (const std::int64_t each : {kExpertsEach, std::int64_t{0}}) {
      check_dispatch(self, std::vector<std::int64_t>(ranks, 1), each);
      check_dispatch(self, std::vector<std::int64_t>(ranks, 16), each);
      std::vector<std::int64_t> uneven(ranks, 0);
      uneven[1] = 7;
      check_dispatch(self, uneven, each);
      uneven[0] = std::min<std::int64_t>(rows_max(), 300);
      uneven.back() += 41;
      check_dispatch(self, uneven, each);
    }
    std::vector<std::int64_t> one_has_all(ranks, 0);
    one_has_all[0] = rows_max();
    check_dispatch(self, one_has_all, kExpertsEach);
    check_dispatch(self, std::vector<std::int64_t>(ranks, rows_max() / self.ranks), kExpertsEach);
  });
}

TEST_P(CudaCommunicator, EveryCollectiveIsRightRoundAfterRound) {
  const auto rounds =
      static_cast<std::int64_t>(number_from_environment("KOHO_TEST_ROUNDS", 200, 1));
  const DeviceOptions device = test_device(GetParam());
  ASSERT_TRUE(check_devices(device, GetParam()).ok());
  const auto meeting = make_thread_rendezvous(GetParam(), kPatience);
  on_every_rank(meeting.size(), [&](std::size_t rank) {
    const Status status = run_rounds(*meeting[rank], rounds);
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.error().message;
    if (!status.ok()) meeting[rank]->give_up();
  });
}

TEST_P(CudaCommunicator, ARankThatGivesUpFreesTheOthersAndTheyAreTold) {
  on_ranks(GetParam(), [](Rank& self) {
    HostTensor values(DType::bf16, {4, kHidden});
    DeviceTensor device(*self.backend, values);
    ASSERT_TRUE(self.gpu->meet().ok());
    if (self.rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the others wait by now
      self.gpu->give_up();
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    ASSERT_TRUE(self.gpu->all_reduce(device.view()).ok());
    if (over_nccl()) self.gpu->give_up();
    static_cast<void>(self.backend->synchronize());
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
    const Status checked = self.gpu->check();
    ASSERT_FALSE(checked.ok());
    EXPECT_EQ(checked.error().code, ErrorCode::unavailable);
  });
}

/// Prints microseconds of an all-reduce, replayed in graphs of 20; with KOHO_TEST_TIMES=1 only.
TEST_P(CudaCommunicator, TimesOfAllReduce) {
  if (std::getenv("KOHO_TEST_TIMES") == nullptr) GTEST_SKIP() << "without KOHO_TEST_TIMES";
  on_ranks(GetParam(), [](Rank& self) {
    constexpr std::int64_t kCalls = 20;
    for (const std::int64_t rows : {1, 16, 64, 256, 1024, 4096, 8192, 40'960, 81'920}) {
      HostTensor values(DType::bf16, {rows, kHidden});
      std::ranges::fill(values.bytes, std::byte{0});
      DeviceTensor device(*self.backend, values);
      const auto calls = [&]() -> Status {
        for (std::int64_t i = 0; i < kCalls; ++i) KOHO_TRY(self.gpu->all_reduce(device.view()));
        return {};
      };
      self.run([] {}, calls);
      auto graph = self.backend->capture(calls);
      ASSERT_TRUE(graph.ok());
      std::vector<double> us;
      for (int i = 0; i < 7; ++i) {
        ASSERT_TRUE(self.gpu->meet().ok());
        const auto start = std::chrono::steady_clock::now();
        ASSERT_TRUE((*graph)->replay().ok());
        self.finish();
        us.push_back(
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                .count() /
            kCalls);
      }
      std::ranges::sort(us);
      if (self.rank == 0)
        std::printf("all-reduce of %lld bytes: %.1f us\n",
                    static_cast<long long>(2 * rows * kHidden), us[us.size() / 2]);
      ASSERT_TRUE(self.gpu->meet().ok());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         CudaCommunicator,
                         ::testing::Values(2, 4, 8),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace koho::testing
