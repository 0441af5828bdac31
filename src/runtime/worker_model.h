// SPDX-License-Identifier: Apache-2.0
// A model on its way to the worker processes: as the front names it, and as a worker opens it.
#pragma once

#include "base/error.h"
#include "runtime/loaded_model.h"
#include "worker/worker_process.h"

namespace koho {

/// Errors: unsupported (the model has no files); invalid_argument (a path that is too long).
Result<FlatModel> flat_model(const LoadedModel& model);

/// For run_worker_process(). Errors: those of the files; corrupt_data (they have changed since the
/// front opened them).
Result<WorkerModel> open_worker_model(const FlatModel& flat, DeviceKind device);

}  // namespace koho
