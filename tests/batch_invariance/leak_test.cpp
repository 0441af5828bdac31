// SPDX-License-Identifier: Apache-2.0
// 10,000 steps of the real executor, worker and CPU backend over thousands of requests, one in ten
// cancelled: every page comes back, resident memory stays, and no step allocates once it is warm
// (submission excepted). A small model of random weights, with the embedded model's tokenizer.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "tests/batch_invariance/soak_engine.h"
#include "tests/support/resident_memory.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_checkpoint.h"
#include "worker/device.h"

namespace {

// Of this program, in all threads, while `counting`.
std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

[[gnu::noinline]] void* counted_allocate(std::size_t size, std::size_t alignment) {
  void* memory = alignment > alignof(std::max_align_t)
                     ? std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment)
                     : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1);
  return memory;
}

[[gnu::noinline]] void counted_free(void* memory) {
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) {
  return counted_allocate(size, 0);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted_allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  counted_free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  counted_free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  counted_free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  counted_free(memory);
}

namespace koho::testing {
namespace {

TEST(Leak, TenThousandStepsLeaveNothingAndAllocateNothing) {
  const TemporaryDirectory directory;
  write_checkpoint(directory.path(), {});
  const auto engine = SoakEngine::open(
      directory.path(), [] { return make_backend({.threads = 1}, 0, 1); }, counting);
  ASSERT_NE(engine, nullptr);
  constexpr std::int64_t kSteps = 10'000;
  // The buffers of slots, streams and in-flight steps grow to the largest that each has had.
  engine->run(kSteps / 2);
  const long resident = resident_kib();
  const Statistics before = engine->loop().statistics();
  const std::int64_t requests = engine->requests();
  allocations = 0;
  engine->run(kSteps);
  EXPECT_EQ(allocations, 0);
  EXPECT_LE(resident_kib(), resident + resident / 50) << "resident memory in KiB";
  expect_all_kinds_of_work(before, engine->loop().statistics(), engine->requests() - requests);
  std::printf("%ld -> %ld KiB resident\n", resident, resident_kib());
}

}  // namespace
}  // namespace koho::testing
