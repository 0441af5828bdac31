// SPDX-License-Identifier: Apache-2.0
// The collectives of ranks on GPUs against those of threads on the CPU, which define them: the same
// inputs, every bit of the results, guard bands around them. 2, 4 and 8 ranks, at once and replayed
// from a captured graph. KOHO_TEST_DEVICES=0,1 names the GPUs (one: all ranks share it),
// KOHO_TEST_COLLECTIVES=nccl the transport, whose sums have other bits.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm/thread_ranks.h"
#include "comm/thread_rendezvous.h"
#include "cuda/cuda_backend.h"
#include "tensor/number.h"
#include "worker/device.h"

namespace koho {
namespace {

constexpr std::chrono::minutes kPatience{5};
constexpr std::int64_t kGuard = 4096;  // bytes on both sides of a tensor
constexpr std::byte kPoison{0xA5};

DeviceOptions test_device(std::int64_t ranks) {
  DeviceOptions device;
  device.kind = DeviceKind::cuda;
  const char* list = std::getenv("KOHO_TEST_DEVICES");
  for (const char* at = list == nullptr ? "0" : list; *at != '\0'; ++at)
    if (*at >= '0' && *at <= '9') device.devices.push_back(*at - '0');
  if (device.devices.size() > 1) device.devices.resize(static_cast<std::size_t>(ranks));
  const char* transport = std::getenv("KOHO_TEST_COLLECTIVES");
  if (transport != nullptr && std::string_view(transport) == "nccl")
    device.collectives = CollectiveTransport::nccl;
  return device;
}

bool over_nccl() {
  return test_device(1).collectives == CollectiveTransport::nccl;
}

/// A tensor's bytes, as the host and the CPU's communicator have them.
struct HostTensor {
  DType dtype = DType::u8;
  Shape shape;
  std::vector<std::byte> bytes;

  HostTensor(DType type, Shape of)
      : dtype(type),
        shape(of),
        bytes(static_cast<std::size_t>(of.elements() * dtype_bytes(type)), kPoison) {}
  TensorView view() { return {bytes.data(), dtype, shape, {}}; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(bytes.data());
  }
};

/// The same on the GPU, between guard bands.
class DeviceTensor {
 public:
  DeviceTensor(Backend& backend, HostTensor& host) : backend_(&backend), host_(&host) {
    const auto bytes = static_cast<std::int64_t>(host.bytes.size());
    memory_ = *backend.allocate(DType::u8, {bytes + 2 * kGuard}, "test");
    write();
  }
  TensorView view() {
    return {memory_.view().data + kGuard, host_->dtype, host_->shape, backend_->device()};
  }
  /// The host's bytes to the GPU, poison around them.
  void write() {
    std::vector<std::byte> all(host_->bytes.size() + 2 * kGuard, kPoison);
    std::ranges::copy(host_->bytes, all.begin() + kGuard);
    ASSERT_TRUE(backend_->upload(memory_.view(), all).ok());
  }
  /// The GPU's bytes; fails the test if a guard band has changed.
  std::vector<std::byte> read() {
    std::vector<std::byte> all(host_->bytes.size() + 2 * kGuard);
    EXPECT_TRUE(backend_->download(all, memory_.view()).ok());
    const auto intact = [](std::byte b) { return b == kPoison; };
    EXPECT_TRUE(std::all_of(all.begin(), all.begin() + kGuard, intact)) << "guard before";
    EXPECT_TRUE(std::all_of(all.end() - kGuard, all.end(), intact)) << "guard behind";
    return {all.begin() + kGuard, all.end() - kGuard};
  }

 private:
  Backend* backend_;
  HostTensor* host_;
  Tensor memory_;
};

/// One rank of a test: its GPU side and its CPU side.
struct Rank {
  std::int64_t rank = 0;
  std::int64_t ranks = 0;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Communicator> gpu;
  std::unique_ptr<Communicator> cpu;
  Rendezvous* rendezvous = nullptr;

  /// Runs collectives at once, then twice from a captured graph; `before` restores what they change.
  void run(const std::function<void()>& before, const std::function<Status()>& collectives) {
    before();
    ASSERT_TRUE(gpu->meet().ok());
    const Status status = collectives();
    ASSERT_TRUE(status.ok()) << status.error().message;
    finish();
    ASSERT_TRUE(gpu->meet().ok());
    auto graph = backend->capture(collectives);
    ASSERT_TRUE(graph.ok()) << graph.error().message;
    for (int replay = 0; replay < 2; ++replay) {
      ASSERT_TRUE(gpu->meet().ok());
      before();
      ASSERT_TRUE(gpu->meet().ok());
      ASSERT_TRUE((*graph)->replay().ok());
      finish();
    }
    ASSERT_TRUE(gpu->meet().ok());
  }
  void finish() {
    ASSERT_TRUE(backend->synchronize().ok());
    const Status checked = gpu->check();
    ASSERT_TRUE(checked.ok()) << checked.error().message;
  }
};

constexpr std::int64_t kHidden = 512;
constexpr std::int64_t kChoices = 8;
constexpr std::int64_t kExpertsEach = 4;  // of a rank
constexpr std::int64_t kColumns = 1188;   // of a rank's logits: no multiple of 16 bytes a rank
constexpr std::int64_t kTokensMax = 8192;
constexpr std::int64_t kLogitRowsMax = 256;
constexpr std::int64_t kTop = 20;

CollectiveSizes sizes() {
  return {.tokens_max = kTokensMax,
          .hidden = kHidden,
          .logit_rows_max = kLogitRowsMax,
          .logit_columns = kColumns,
          .gathered_row_bytes = 8 + 8 * kTop,
          .dispatched_row_bytes = 2 * kHidden + kHidden + 4 + 8 * kChoices};
}

/// Runs `body` on a thread for each rank.
void on_ranks(std::int64_t ranks, const std::function<void(Rank&)>& body) {
  const DeviceOptions device = test_device(ranks);
  ASSERT_TRUE(check_devices(device, ranks).ok());
  auto meeting = make_thread_rendezvous(ranks, kPatience);
  auto cpus = make_thread_ranks(ranks, kPatience);
  std::vector<Rank> all(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < all.size(); ++i)
    threads.emplace_back([&, i] {
      Rank& self = all[i];
      self.rank = static_cast<std::int64_t>(i);
      self.ranks = ranks;
      self.cpu = std::move(cpus[i]);
      self.rendezvous = meeting[i].get();
      auto backend =
          make_cuda_backend({.device = device_of(device, self.rank), .self_test = false});
      ASSERT_TRUE(backend.ok()) << backend.error().message;
      self.backend = std::move(*backend);
      auto gpu = make_communicator(device, *self.backend, *self.rendezvous);
      ASSERT_TRUE(gpu.ok()) << gpu.error().message;
      self.gpu = std::move(*gpu);
      const Status reserved = self.gpu->reserve(sizes());
      ASSERT_TRUE(reserved.ok()) << reserved.error().message;
      body(self);
    });
  for (std::thread& thread : threads) thread.join();
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
    const auto probe = cuda_memory_bytes(0);
    if (!probe.ok() && probe.error().code == ErrorCode::not_found) GTEST_SKIP() << "no GPU";
    const std::size_t devices = test_device(8).devices.size();
    const char* list = std::getenv("KOHO_TEST_DEVICES");
    if (devices > 1 && std::count(list, list + std::strlen(list), ',') + 1 < GetParam())
      GTEST_SKIP() << "fewer GPUs than ranks";
  }
};

TEST_P(CudaCommunicator, AllReduceHasTheBitsOfTheSumInRankOrder) {
  on_ranks(GetParam(), [](Rank& self) {
    for (const std::int64_t rows : {0, 1, 2, 3, 8, 17, 64, 65, 256, 1024, 8192}) {
      std::mt19937 random(static_cast<unsigned>(100 * rows + self.rank));
      HostTensor values(DType::bf16, {rows, kHidden});
      fill_bf16(values, random);
      HostTensor expected = values;
      DeviceTensor device(*self.backend, values);
      ASSERT_TRUE(self.cpu->all_reduce(expected.view()).ok());
      self.run([&] { device.write(); }, [&] { return self.gpu->all_reduce(device.view()); });
      const std::vector<std::byte> found = device.read();
      if (!over_nccl()) {
        EXPECT_EQ(found, expected.bytes) << rows << " rows, rank " << self.rank;
      }
      for (std::int64_t i = 0; i < rows * kHidden && over_nccl(); ++i) {
        const float exact = to_float(expected.as<BFloat16>()[i]);
        const float sum = to_float(reinterpret_cast<const BFloat16*>(found.data())[i]);
        // A rounding of 2^-9 at each of up to 8 additions of parts of up to 64.
        ASSERT_NEAR(sum, exact, 8 * 64 * 0x1p-8 + 0.01 * std::fabs(exact));
      }
    }
  });
}

TEST_P(CudaCommunicator, FusedAllReduceHasTheBitsOfTheTwoSteps) {
  if (over_nccl()) GTEST_SKIP() << "NCCL fuses nothing";
  on_ranks(GetParam(), [](Rank& self) {
    for (const std::int64_t rows : {1, 3, 16, 64, 257, 1024}) {
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

/// Dispatches and combines `counts[r]` rows of each rank r.
void check_dispatch(Rank& self, const std::vector<std::int64_t>& counts, std::int64_t each) {
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t count : counts) starts.push_back(starts.back() + count);
  const std::int64_t total = starts.back();
  const std::int64_t rows = counts[static_cast<std::size_t>(self.rank)];
  std::mt19937 random(static_cast<unsigned>(1000 * total + 10 * each + self.rank));
  Sent sent(rows, kExpertsEach * self.ranks, random);
  HostTensor out(DType::bf16, {rows, kHidden});
  fill_bf16(out, random);

  // The CPU's: arrived rows without gaps.
  std::vector<HostTensor> arrived = room(total);
  HostTensor out_expected = out;
  std::vector<DispatchTensor> tensors;
  for (std::size_t i = 0; i < arrived.size(); ++i)
    tensors.push_back({sent.all()[i]->view(), arrived[i].view()});
  const Result<std::int64_t> came =
      self.cpu->dispatch({.ids = sent.ids.view(), .ids_per_rank = each}, tensors);
  ASSERT_TRUE(came.ok());
  HostTensor results(DType::bf16, {*came, kHidden});
  for (std::int64_t t = 0; t < *came; ++t)
    make_result(results.as<BFloat16>() + t * kHidden, arrived[2].as<BFloat16>() + t * kHidden,
                self.rank);
  ASSERT_TRUE(self.cpu->combine(out_expected.view(), results.view()).ok());

  // The GPU's: rows of all ranks, some of which did not arrive.
  std::vector<HostTensor> there = room(total);
  HostTensor gpu_results(DType::bf16, {total, kHidden});
  std::vector<DeviceTensor> d_sent, d_there;
  for (HostTensor* tensor : sent.all()) d_sent.emplace_back(*self.backend, *tensor);
  for (HostTensor& tensor : there) d_there.emplace_back(*self.backend, tensor);
  DeviceTensor d_out(*self.backend, out), d_results(*self.backend, gpu_results);
  std::vector<DispatchTensor> d_tensors;
  for (std::size_t i = 0; i < there.size(); ++i)
    d_tensors.push_back({d_sent[i].view(), d_there[i].view()});
  const RowRoutes routes{.ids = d_sent[0].view(), .ids_per_rank = each, .row_starts = starts};
  const auto dispatch = [&]() -> Status {
    KOHO_TRY_ASSIGN(const std::int64_t most, self.gpu->dispatch(routes, d_tensors));
    if (most != total) return make_error(ErrorCode::internal, "{} rows, expected {}", most, total);
    return self.gpu->wait_for_dispatch();
  };
  self.run(
      [&] {
        for (DeviceTensor& tensor : d_there) tensor.write();
      },
      dispatch);
  std::vector<std::vector<std::byte>> found;
  for (DeviceTensor& tensor : d_there) found.push_back(tensor.read());
  // Absent rows of the results are NaN: nobody may read them.
  std::ranges::fill(gpu_results.bytes, std::byte{0xFF});
  std::int64_t next = 0;
  const auto* ids = reinterpret_cast<const std::int32_t*>(found[0].data());
  for (std::int64_t t = 0; t < total; ++t) {
    if (std::all_of(ids + t * kChoices, ids + (t + 1) * kChoices, [](auto id) { return id < 0; }))
      continue;
    ASSERT_LT(next, *came) << "more rows than arrive";
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::int64_t bytes = row_bytes(arrived[i]);
      std::vector<std::byte> expected(arrived[i].bytes.begin() + next * bytes,
                                      arrived[i].bytes.begin() + (next + 1) * bytes);
      auto* expected_ids = reinterpret_cast<std::int32_t*>(expected.data());
      for (std::int64_t a = 0; a < kChoices && i == 0 && each > 0; ++a)
        if (expected_ids[a] >= 0 && expected_ids[a] / each != self.rank) expected_ids[a] = -1;
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), found[i].begin() + t * bytes))
          << "row " << t << " of " << total << ", tensor " << i << ", rank " << self.rank;
    }
    make_result(gpu_results.as<BFloat16>() + t * kHidden,
                reinterpret_cast<const BFloat16*>(found[2].data()) + t * kHidden, self.rank);
    ++next;
  }
  EXPECT_EQ(next, *came);
  // NCCL adds every rank's rows, so those that did not arrive are zeros, as experts() leaves them.
  if (over_nccl())
    for (std::int64_t t = 0; t < total; ++t)
      if (std::all_of(ids + t * kChoices, ids + (t + 1) * kChoices, [](auto id) { return id < 0; }))
        std::fill_n(gpu_results.as<BFloat16>() + t * kHidden, kHidden, BFloat16{});
  d_results.write();
  self.run([&] { d_out.write(); },
           [&]() -> Status {
             KOHO_TRY(dispatch());
             return self.gpu->combine(d_out.view(), d_results.view());
           });
  const std::vector<std::byte> combined = d_out.read();
  if (!over_nccl()) {
    EXPECT_EQ(combined, out_expected.bytes) << total << " rows, rank " << self.rank;
  }
  for (std::int64_t i = 0; i < rows * kHidden && over_nccl(); ++i) {
    const float exact = to_float(out_expected.as<BFloat16>()[i]);
    const float sum = to_float(reinterpret_cast<const BFloat16*>(combined.data())[i]);
    ASSERT_NEAR(sum, exact, 8.0 + 0.01 * std::fabs(exact));
  }
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
      uneven[0] = 300;
      uneven.back() += 41;
      check_dispatch(self, uneven, each);
    }
    std::vector<std::int64_t> one_has_all(ranks, 0);
    one_has_all[0] = kTokensMax;
    check_dispatch(self, one_has_all, kExpertsEach);
    check_dispatch(self, std::vector<std::int64_t>(ranks, kTokensMax / self.ranks), kExpertsEach);
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

INSTANTIATE_TEST_SUITE_P(Ranks,
                         CudaCommunicator,
                         ::testing::Values(2, 4, 8),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace koho
