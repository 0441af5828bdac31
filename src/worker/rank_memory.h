// SPDX-License-Identifier: Apache-2.0
// What the front process and its worker processes share: two pieces of memory and some event
// descriptors. The front writes a task, later the sizes, then plans; each rank writes what its
// device has, how far it is, its results and its errors. Plain data, checked by whoever reads it:
// neither side is brought down by the other.
//
//   front → ranks   task   load task   submitted, masked, stopping   plans
//   rank → front    stage, beats, progress   device report   answered, results   error
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>

#include "base/descriptor.h"
#include "base/error.h"
#include "base/flat_text.h"
#include "base/shared_memory.h"
#include "plan/step_plan.h"
#include "worker/device.h"
#include "worker/worker.h"

namespace koho {

inline constexpr std::int64_t kWorkerRanksMax = 64;

/// Where a worker finds what; descriptors that it inherits.
enum WorkerDescriptor : int {
  kControlMemory = 3,
  kStepMemory = 4,  // empty until the sizes are known
  kWake = 5,        // an eventfd of the rank: the front wrote something
  kAnswered = 6,    // an eventfd of the front: a rank wrote something
  kFrontEnds = 7    // readable once the front is gone
};

/// A model as a worker opens it for itself; what the numbers and texts mean is the opener's.
struct FlatModel {
  std::uint32_t kind = 0;
  std::int64_t layers = 0;
  FlatText<4096> path;
  FlatText<32> quant;
  std::uint64_t identity = 0;  // of the files: a worker finds what the front found
};

/// What a worker is told at its start.
struct WorkerTask {
  FlatModel model;
  Shard shard;  // the rank is its own
  DeviceKind device = DeviceKind::cpu;
  CpuIsa isa = CpuIsa::automatic;
  std::optional<bool> deterministic;  // DeviceOptions::deterministic
  bool portable_only = false;
  CollectiveTransport collectives = CollectiveTransport::automatic;
  std::int64_t threads = 0;  // DeviceOptions::threads
  std::uint32_t num_devices = 0;
  std::array<std::int32_t, kWorkerRanksMax> devices{};
  std::uint32_t log_level = 0;
  std::uint32_t log_format = 0;
  std::int64_t beat_us = 100'000;  // how often it shows that it runs

  /// Errors: invalid_argument (too many devices, a path that is too long).
  Status set_device(const DeviceOptions& options);
  DeviceOptions device_options() const;
};

/// What it is told once the sizes are known.
struct LoadTask {
  WorkerSettings worker;  // load.shard and load.kv_pages are filled in by the worker
  PlanBounds bounds;
};

/// What a rank's device has, once all ranks have opened theirs and before any has loaded.
struct DeviceReport {
  std::int64_t total_bytes = 0;
  std::int64_t free_bytes = 0;
  std::uint32_t redecodes_output = 0;  // 1: of this device (worker/device.h)
  FlatText<128> name;
};
static_assert(std::is_trivially_copyable_v<WorkerTask> && std::is_trivially_copyable_v<LoadTask> &&
              std::is_trivially_copyable_v<DeviceReport>);

/// How far a rank is.
enum class RankStage : std::uint32_t { starting, opened, ready, failed };

/// What the front says while it runs.
struct alignas(64) FrontWords {
  std::atomic<std::uint32_t> load{0};  // 1: the load task and the step memory are there
  std::atomic<std::uint32_t> stopping{0};
  std::atomic<std::uint64_t> submitted{0};
  std::atomic<std::uint64_t> masked{0};
  std::array<std::atomic<std::uint64_t>, Worker::kStepsInFlightMax> plan_bytes{};
};

/// What a rank says.
struct alignas(64) RankWords {
  std::atomic<RankStage> stage{RankStage::starting};
  std::atomic<std::uint64_t> beats{0};
  std::atomic<std::uint64_t> answered{0};  // steps
  std::array<std::atomic<std::uint64_t>, Worker::kStepsInFlightMax> result_bytes{};
  std::atomic<std::int64_t> load_bytes_total{0};
  std::atomic<std::int64_t> load_bytes_done{0};
  DeviceReport device;  // from `opened` on
  FlatError error;      // of `failed`
};

/// The control memory. Behind it: the ranks' rendezvous.
struct Control {
  std::uint32_t magic = 0;
  std::uint32_t version = 0;
  std::uint64_t size = 0;  // of this struct: front and worker are of one build
  std::int64_t ranks = 0;
  WorkerTask task;
  LoadTask load;
  FrontWords front;
  std::array<RankWords, kWorkerRanksMax> rank;
};

/// Makes the control memory of so many ranks.
Result<SharedMemory> make_control_memory(const WorkerTask& task, std::int64_t ranks);
/// The control data in `memory`. Errors: corrupt_data (it is not of this build, or too short).
Result<Control*> control_in(const SharedMemory& memory);
std::span<std::byte> rendezvous_memory(const SharedMemory& memory);

/// Where plans and results lie in the step memory: plans first, on pages of their own, then each
/// rank's results. Step n uses place n % kStepsInFlightMax.
class StepMemoryLayout {
 public:
  StepMemoryLayout() = default;
  StepMemoryLayout(const PlanBounds& bounds, std::int64_t ranks);

  std::size_t bytes() const {
    return plans_bytes() + static_cast<std::size_t>(ranks_) * kSteps * result_bytes_;
  }
  std::size_t plans_bytes() const { return kSteps * plan_bytes_; }
  std::size_t result_bytes() const { return result_bytes_; }

  std::span<std::byte> plan(std::span<std::byte> memory, std::uint64_t step) const {
    return memory.subspan(step % kSteps * plan_bytes_, plan_bytes_);
  }
  std::span<std::byte> result(std::span<std::byte> memory,
                              std::int64_t rank,
                              std::uint64_t step) const {
    const std::size_t place = static_cast<std::size_t>(rank) * kSteps + step % kSteps;
    return memory.subspan(plans_bytes() + place * result_bytes_, result_bytes_);
  }

 private:
  static constexpr std::size_t kSteps = Worker::kStepsInFlightMax;

  std::int64_t ranks_ = 0;
  std::size_t plan_bytes_ = 0;
  std::size_t result_bytes_ = 0;
};

}  // namespace koho
