// SPDX-License-Identifier: Apache-2.0
// What the last steps did: kept always, read when something went wrong.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace koho {

struct StepRecord {
  enum class Outcome : std::uint8_t { in_flight, collected, lost };

  std::int64_t step = 0;
  std::int64_t launched_us = 0;
  std::int64_t collected_us = 0;  // or when it was lost
  std::int32_t sequences = 0;
  std::int32_t decodes = 0;
  std::int32_t tokens = 0;
  std::int32_t samples = 0;
  std::int32_t preempted = 0;
  std::int32_t copies = 0;
  std::int32_t waiting = 0;
  std::int32_t pages_free = 0;
  std::int32_t pages_idle = 0;
  Outcome outcome = Outcome::in_flight;
};

/// A ring of the last kSteps records. Threads: any.
class FlightRecorder {
 public:
  static constexpr std::size_t kSteps = 256;

  void launched(const StepRecord& record);
  void ended(std::int64_t step, StepRecord::Outcome outcome, std::int64_t now_us);
  /// Oldest first.
  std::vector<StepRecord> records() const;

 private:
  mutable std::mutex mutex_;
  std::array<StepRecord, kSteps> ring_;
  std::uint64_t count_ = 0;
};

/// One JSON object.
std::string to_json(const StepRecord& record);

}  // namespace koho
