// SPDX-License-Identifier: Apache-2.0
// Copies large weights to the device while the checkpoint is read. Each thread has a stream and a
// ring of pinned memory. It takes a block of rows, copies it to staging memory on the device (or
// generates it there, for synthetic weights), and repacks it into tiles. The backend says which
// rows go where; the order is not specified.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/load_progress.h"
#include "cuda/device/runtime.h"
#include "cuda/load/repack.h"
#include "ops/synthetic_tensor.h"
#include "tensor/tensor_view.h"

namespace koho::cuda {

/// Rows of one matrix and where they go: into tiles, as they are, or both.
struct LoadJob {
  ConstTensorView source;  // [rows, columns] on the host, rows packed; or a synthetic one
  bool synthetic = false;
  SyntheticAddressMap::Place place;  // of the source, if synthetic
  Repack repack;                     // tiles null: none; source and rows are filled in
  std::uint8_t* copy = nullptr;      // [rows, columns] packed on the device, or null
};

class Loader {
 public:
  /// Starts the threads. `device` is the GPU's number, `progress` may be null.
  static Result<std::unique_ptr<Loader>> start(int device,
                                               const std::shared_ptr<DeviceMemory>& memory,
                                               LoadProgress* progress);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  ~Loader();

  /// Whether the loader takes a source: it must be a matrix that is large enough.
  static bool takes(const ConstTensorView& source);

  /// Takes a job over; its source must live until finish(). Errors: an earlier job's.
  Status put(const LoadJob& job);
  /// Waits until every job is done, and says now and then how far it is. Errors: a job's.
  Status finish();

 private:
  struct Slot;
  class LoaderThread;

  Loader() = default;
  void work(LoaderThread& loader_thread);

  int device_ = 0;
  LoadProgress* progress_ = nullptr;
  std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<LoadJob> pieces_;
  std::int64_t working_ = 0;  // threads at a piece
  std::int64_t bytes_total_ = 0;
  std::int64_t bytes_done_ = 0;
  std::int64_t bytes_told_ = 0;  // of which the end was logged
  bool stopping_ = false;
  Status status_;
  std::vector<std::unique_ptr<LoaderThread>> threads_;
};

}  // namespace koho::cuda
