// SPDX-License-Identifier: Apache-2.0
// The ranks of communicator_test: their GPUs, tensors between guard bands, and the CPU's
// communicator beside the GPU's.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "comm/thread_ranks.h"
#include "comm/thread_rendezvous.h"
#include "cuda/cuda_backend.h"
#include "tests/support/environment.h"
#include "tests/support/test_devices.h"
#include "worker/device.h"

namespace koho::testing {

inline constexpr std::chrono::minutes kPatience{5};
inline constexpr std::int64_t kGuard = 4096;  // bytes on both sides of a tensor
inline constexpr std::byte kPoison{0xA5};

inline DeviceOptions test_device(std::int64_t ranks) {
  return gpu_devices(ranks, "0");
}

inline bool over_nccl() {
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

  /// Runs collectives at once, then twice from a captured graph; `before` restores what they
  /// change.
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

inline constexpr std::int64_t kHidden = 512;
inline constexpr std::int64_t kChoices = 8;
inline constexpr std::int64_t kExpertsEach = 4;  // of a rank
inline constexpr std::int64_t kColumns =
    1188;  // of a rank's logits: no multiple of 16 bytes a rank
inline constexpr std::int64_t kTokensMax = 8192;
inline constexpr std::int64_t kLogitRowsMax = 256;
inline constexpr std::int64_t kTop = 20;

/// The most rows of a case: under a sanitizer many take minutes.
inline std::int64_t rows_max() {
  return static_cast<std::int64_t>(number_from_environment("KOHO_TEST_ROWS", kTokensMax, 1));
}

inline CollectiveSizes sizes() {
  return {.tokens_max = kTokensMax,
          .hidden = kHidden,
          .logit_rows_max = kLogitRowsMax,
          .logit_columns = kColumns,
          .gathered_row_bytes = 8 + 8 * kTop,
          .dispatched_row_bytes = 2 * kHidden + kHidden + 4 + 8 * kChoices};
}

/// Runs `body` on a thread for each rank.
inline void on_ranks(std::int64_t ranks, const std::function<void(Rank&)>& body) {
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

}  // namespace koho::testing
