// SPDX-License-Identifier: Apache-2.0
// What a worker process can do wrong, one thing at a time: end while nothing is computed, stop,
// hang in a step, write anything into the shared memory, fail at its start.
#include <atomic>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "engine/worker_group.h"
#include "plan/flat_result.h"
#include "runtime/runtime.h"
#include "tests/processes/process_list.h"
#include "tests/processes/worker_engine.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_directory.h"

namespace koho::testing {
namespace {

class WorkerFaults : public ::testing::Test {
 protected:
  void SetUp() override { write_worker_model(directory_.path()); }

  std::unique_ptr<WorkerEngine> start(std::int64_t silence_us_max = 10'000'000,
                                      std::int64_t step_deadline_us = 600'000'000) {
    return WorkerEngine::start(directory_.path(), {.program = KOHO_BINARY,
                                                   .silence_us_max = silence_us_max,
                                                   .step_deadline_us = step_deadline_us});
  }
  static bool recovers(WorkerEngine& engine, std::uint64_t times = 1) {
    return comes_true([&] {
      const Statistics now = engine.engine().statistics();
      return now.recoveries >= times && now.device_up;
    });
  }
  KnownAnswer answer_of_threads(std::size_t index) {
    const auto threads = WorkerEngine::start(directory_.path(), {});
    return read_answer(*threads->submit(index));
  }

  TemporaryDirectory directory_;
};

TEST_F(WorkerFaults, AWorkerThatEndsWhileNothingIsComputedIsReplacedAtOnce) {
  const auto engine = start();
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(read_answer(*engine->submit(2)), answer_of_threads(2));
  kill(engine->processes().processes()[1], SIGKILL);
  EXPECT_TRUE(recovers(*engine));
  EXPECT_EQ(read_answer(*engine->submit(3)), answer_of_threads(3));
}

TEST_F(WorkerFaults, AStoppedWorkerIsNoticedByItsSilence) {
  const auto engine = start(2'000'000);
  ASSERT_NE(engine, nullptr);
  const auto stream = engine->submit(5);
  kill(engine->processes().processes()[0], SIGSTOP);
  EXPECT_TRUE(recovers(*engine));
  EXPECT_EQ(read_answer(*stream), answer_of_threads(5));
}

TEST_F(WorkerFaults, AStepBeyondItsDeadlineIsAHang) {
  // Nothing is said about silence: only the deadline can notice.
  const auto engine = start(1'000'000'000, 1'000'000);
  ASSERT_NE(engine, nullptr);
  const auto stream = engine->submit(5);
  kill(engine->processes().processes()[1], SIGSTOP);
  EXPECT_TRUE(recovers(*engine));
  EXPECT_EQ(read_answer(*stream), answer_of_threads(5));
}

TEST_F(WorkerFaults, TheTerminalsSignalsAreTheFrontsToAnswer) {
  const auto engine = start();
  ASSERT_NE(engine, nullptr);
  for (const pid_t process : engine->processes().processes())
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) kill(process, signal);
  EXPECT_EQ(read_answer(*engine->submit(1)), answer_of_threads(1));
  EXPECT_EQ(engine->engine().statistics().device_failures, 0U);
}

/// Another process' shared memory, mapped through its descriptor.
struct ForeignMemory {
  std::byte* data = nullptr;
  std::size_t size = 0;

  ForeignMemory(pid_t process, int descriptor) {
    const int file =
        open(fmt::format("/proc/{}/fd/{}", process, descriptor).c_str(), O_RDWR | O_CLOEXEC);
    struct stat info {};
    if (file < 0 || fstat(file, &info) != 0) return;
    void* mapped = mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ | PROT_WRITE,
                        MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return;
    data = static_cast<std::byte*>(mapped);
    size = static_cast<std::size_t>(info.st_size);
  }
  ~ForeignMemory() {
    if (data != nullptr) munmap(data, size);
  }
};

TEST_F(WorkerFaults, WhatABrokenWorkerWritesHarmsNobody) {
  // Of the second rank, whose results are only compared: with wrong bytes in them the step fails,
  // and is computed anew. An answer that is taken back is missed at the step's deadline only.
  const auto engine = start(10'000'000, 2'000'000);
  ASSERT_NE(engine, nullptr);
  std::vector<KnownAnswer> known;
  for (std::size_t index = 0; index < 6; ++index) known.push_back(answer_of_threads(index));
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    std::vector<std::shared_ptr<OutputStream>> streams;
    for (std::size_t index = 0; index < 6; ++index) streams.push_back(engine->submit(index));
    // What the round before wrote may end the workers only now.
    std::optional<ForeignMemory> control;
    std::optional<ForeignMemory> steps;
    ASSERT_TRUE(comes_true([&] {
      const std::vector<pid_t> processes = engine->processes().processes();
      if (processes.size() != 2) return false;
      control.emplace(processes[1], kControlMemory);
      steps.emplace(processes[1], kStepMemory);
      return control->data != nullptr && steps->data != nullptr;
    }));
    // The last bytes of the step memory are the second rank's two results, with room for the
    // logits of eight rows each.
    const std::size_t result =
        (flat_result_bytes(8, engine->engine().limits().vocabulary) + 63) / 64 * 64;
    auto* words = reinterpret_cast<Control*>(control->data);
    for (int i = 0; i < 200; ++i) {
      steps->data[steps->size - (1 + random() % 2) * result + random() % flat_result_bytes(8)] =
          static_cast<std::byte>(random());
      if (i % 20 == 0)
        words->rank[1].result_bytes[random() % 2].store(random() % 2 == 0 ? random() : 1U << 31U);
      if (i % 50 == 0) words->rank[1].answered.store(random() % 1000);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
    }
    for (std::size_t index = 0; index < 6; ++index)
      EXPECT_EQ(read_answer(*streams[index]), known[index]);
    EXPECT_TRUE(comes_true([&] { return engine->engine().statistics().device_up; }));
  }
  EXPECT_GT(engine->engine().statistics().device_failures, 3U);
  EXPECT_EQ(engine->engine().statistics().requests_failed, 0U);
}

TEST_F(WorkerFaults, AStartThatCannotSucceedSaysWhyAndLeavesNothing) {
  const std::size_t descriptors = num_descriptors();
  RuntimeOptions options{.ranks = 2, .executor = ExecutorKind::process, .context_max = 256};
  options.worker = "/no/such/koho";
  auto runtime = Runtime::start(directory_.path(), options);
  ASSERT_FALSE(runtime.ok());
  EXPECT_NE(runtime.error().message.find("/no/such/koho"), std::string::npos);
  options.worker = "/bin/true";  // ends at once
  runtime = Runtime::start(directory_.path(), options);
  ASSERT_FALSE(runtime.ok());
  EXPECT_EQ(runtime.error().code, ErrorCode::device_error);
  EXPECT_NE(runtime.error().message.find("ended with exit code 0"), std::string::npos)
      << runtime.error().message;
  options.worker = KOHO_BINARY;
  options.ranks = 64;
  runtime = Runtime::start(directory_.path(), options);
  ASSERT_FALSE(runtime.ok());
  EXPECT_EQ(runtime.error().code, ErrorCode::unsupported) << runtime.error().message;
  options.ranks = 2;
  options.device.threads = 1'000'000;  // which only the workers find out
  runtime = Runtime::start(directory_.path(), options);
  ASSERT_FALSE(runtime.ok());
  EXPECT_EQ(runtime.error().message.rfind("rank ", 0), 0U) << runtime.error().message;
  EXPECT_TRUE(children_of(getpid()).empty());
  EXPECT_EQ(num_descriptors(), descriptors);
}

TEST_F(WorkerFaults, OfRanksThatFailToStartTheOneThatFailedOfItselfIsNamed) {
  const std::filesystem::path idle = directory_.path() / "idle";
  std::ofstream(idle) << "#!/bin/sh\nexec sleep 60\n";
  std::filesystem::permissions(idle, std::filesystem::perms::owner_all);
  const std::atomic<bool> cancelled{false};
  // Rank 0 learns of rank 1's failure, and tells, before rank 1 has told; or nobody tells more.
  for (const bool told : {true, false}) {
    WorkerGroupSettings settings;
    settings.program = idle;
    settings.ranks = 2;
    auto group = WorkerGroup::spawn(settings);
    ASSERT_TRUE(group.ok()) << group.error().message;
    const ForeignMemory memory((*group)->pid(0), kControlMemory);
    ASSERT_NE(memory.data, nullptr);
    auto* control = reinterpret_cast<Control*>(memory.data);
    const auto fail = [&](std::size_t rank, const Error& error) {
      control->rank[rank].error.set(error);
      control->rank[rank].stage.store(RankStage::failed);
    };
    fail(0, make_error(ErrorCode::unavailable, "another rank left"));
    std::thread cause([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      if (told) fail(1, make_error(ErrorCode::resource_exhausted, "no memory"));
    });
    const Status status = (*group)->wait_for(RankStage::opened, nullptr, cancelled);
    cause.join();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().message, told ? "rank 1: no memory" : "rank 0: another rank left");
  }
}

TEST_F(WorkerFaults, FilesThatWereReplacedAreNotLoadedIntoARunningEngine) {
  const auto engine = start();
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(read_answer(*engine->submit(1)), answer_of_threads(1));
  const auto config = directory_.path() / "config.json";
  std::filesystem::rename(config, directory_.path() / "elsewhere.json");
  kill(engine->processes().processes()[0], SIGKILL);
  ASSERT_TRUE(comes_true([&] { return !engine->engine().statistics().device_up; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(engine->engine().statistics().device_up);
  // As soon as they are back, so is the engine.
  std::filesystem::rename(directory_.path() / "elsewhere.json", config);
  EXPECT_TRUE(recovers(*engine));
  EXPECT_EQ(read_answer(*engine->submit(1)), answer_of_threads(1));
}

}  // namespace
}  // namespace koho::testing
