// SPDX-License-Identifier: Apache-2.0
// The same requests alone and under every kind of load: together, shuffled, in chunks, cached,
// preempted and resumed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpu/cpu_backend.h"
#include "tests/batch_invariance/requests.h"
#include "worker/device.h"

namespace koho::testing {

/// Whether KOHO_BATCH_INVARIANCE=all asks for the long runs.
bool is_full_run();

/// 30 requests in a plain run, 200 in a long one.
inline constexpr std::size_t kRequestsFew = 30;
std::size_t num_requests();

/// What every run of a comparison has in common.
struct EngineSetup {
  DeviceKind device = DeviceKind::cpu;
  std::optional<bool> deterministic{};  // of a GPU
  CpuIsa isa = CpuIsa::automatic;
  std::int64_t ranks = 1;
  DType kv_dtype = DType::bf16;
  std::size_t requests = num_requests();
};

/// Options for models/tiny in this setup: 1,024 tokens of context, 1,024 pages.
RuntimeOptions options_of(const EngineSetup& setup);
/// models/tiny under an engine, or null and a failure.
std::unique_ptr<Runtime> start(const RuntimeOptions& options);

struct SoloRun {
  std::vector<Request> requests;
  std::vector<Seen> seen;
};

/// One request at a time, its prompt in one step, nothing cached, one thread a rank.
SoloRun run_alone(const EngineSetup& setup);

/// How many requests got something else than alone; the first three are described in `words`.
std::size_t count_different(const std::vector<Seen>& found,
                            const SoloRun& expected,
                            std::vector<std::string>& words);
/// None may.
void expect_same(const std::vector<Seen>& found, const SoloRun& expected, const std::string& when);

/// All requests in each kind of load, compared with `alone`. Each load has to be what it says.
/// With `report`, differences are not failures: a line a load counts them.
void compare(const EngineSetup& setup, bool every_case, bool report = false);

}  // namespace koho::testing
