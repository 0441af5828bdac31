// SPDX-License-Identifier: Apache-2.0
// What the program `koho worker` does: one rank in a process of its own. It opens its device and
// the model, reports, loads once the front has decided the sizes, and runs steps until the front
// says stop. If the front is gone it ends at once, whatever it computes. It decides nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/error.h"
#include "model/config.h"
#include "model/weights.h"
#include "ops/synthetic_tensor.h"
#include "worker/rank_memory.h"

namespace koho {

/// A model as a worker needs it.
struct WorkerModel {
  std::shared_ptr<const void> owner;  // of what the others point to
  const ModelConfig* config = nullptr;
  const ModelSources* sources = nullptr;
  const SyntheticAddressMap* synthetic = nullptr;
};

using OpenWorkerModel = std::function<Result<WorkerModel>(const FlatModel&, DeviceKind)>;

/// Runs rank `rank` on the descriptors that the front gave (WorkerDescriptor) until it is told to
/// stop. A failure before the first step is reported to the front; the process then waits to be
/// ended. Errors: invalid_argument, corrupt_data: this process was not started by koho's front.
Status run_worker_process(std::int64_t rank, const OpenWorkerModel& open_model);

}  // namespace koho
