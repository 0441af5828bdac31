// SPDX-License-Identifier: Apache-2.0
// Copies large weights to the device while the checkpoint is read. Each thread has a stream and a
// ring of pinned memory. It takes a block of rows, copies it to staging memory on the device (or
// generates it there, for synthetic weights), and repacks it into tiles. The backend says which
// rows go where; the order is not specified. The ranks of a host divide its CPUs
// (base/host_cpus.h): a rank's threads run near its GPU, and its pinned memory lies there.
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

/// Whose weights are loaded.
struct LoaderRank {
  int device = 0;  // the GPU's number
  /// The GPUs of all ranks on this host, by rank, and this one's place; empty: it is alone.
  std::vector<int> devices;
  std::size_t rank = 0;
  LoadProgress* progress = nullptr;  // may be null
};

class Loader {
 public:
  /// Starts the threads. Errors: resource_exhausted, device_error.
  static Result<std::unique_ptr<Loader>> start(const LoaderRank& rank,
                                               const std::shared_ptr<DeviceMemory>& memory);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  ~Loader();

  /// Whether the loader takes a source: it must be a matrix that is large enough.
  static bool takes(const ConstTensorView& source);

  /// Takes a job over; its source must live until finish(). Errors: an earlier job's.
  Status put(const LoadJob& job);
  /// Waits until every job is done. Rank 0 says now and then how far it is: with a LoadProgress
  /// that is of all ranks that count in it. Errors: a job's.
  Status finish();

 private:
  struct Slot;
  class LoaderThread;

  explicit Loader(const LoaderRank& rank);
  void work(LoaderThread& loader_thread);
  /// Moves pieces until the loader stops.
  void move_pieces(LoaderThread& loader_thread);
  void tell_progress() const;

  LoaderRank rank_;
  std::vector<int> cpus_;  // of its threads
  std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<LoadJob> pieces_;
  std::int64_t working_ = 0;  // threads at a piece, or opening
  std::int64_t bytes_total_ = 0;
  std::int64_t bytes_done_ = 0;
  std::int64_t bytes_told_ = 0;  // of which the end was logged
  bool stopping_ = false;
  Status status_;
  std::vector<std::unique_ptr<LoaderThread>> threads_;
};

}  // namespace koho::cuda
