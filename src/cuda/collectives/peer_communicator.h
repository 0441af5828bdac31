// SPDX-License-Identifier: Apache-2.0
// The communicator of 2, 4 or 8 GPUs, or of ranks that share one, whose memory all ranks can
// access: peer pointers within a process, CUDA IPC between processes. All collectives are kernels
// that CUDA graphs capture.
//
// A rank owns one buffer that the others write to (exchange slots of all_reduce_norm.h and windows
// of row_exchange.h) and a word of host memory in which its kernels report a failed wait.
//
// Why no rank overwrites a window that its owner still reads: between two uses of a window lies a
// collective in which every rank waits for every other, enqueued behind the owner's reading.
// Logits: the all-gather of what was sampled, or the next step's all-reduces. Sampled rows: the
// next step's exchange of logits. Dispatched rows: combine()'s barrier. Results that combine()
// reads: the next dispatch's barrier.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/rendezvous.h"
#include "cuda/backend.h"
#include "cuda/collectives/all_reduce_norm.h"
#include "cuda/collectives/links.h"
#include "cuda/collectives/row_exchange.h"
#include "cuda/device/runtime.h"

namespace koho::cuda {

/// CollectiveHostState in page-locked memory that the GPU writes to.
class HostState {
 public:
  static Result<std::shared_ptr<HostState>> make(int device);
  HostState(const HostState&) = delete;
  HostState& operator=(const HostState&) = delete;
  ~HostState();

  CollectiveHostState* on_device() const { return on_device_; }
  /// What the GPU has reported, if anything. Threads: any.
  CollectiveFault fault() const;
  /// Makes the GPU's waits abort. Threads: any.
  void end_waits();

 private:
  HostState(CollectiveHostState* state, int device) : state_(state), device_(device) {}
  CollectiveHostState* state_;
  CollectiveHostState* on_device_ = nullptr;
  int device_;
};

class PeerCommunicator final : public Communicator {
 public:
  /// Requires: rendezvous outlives this. Errors: unsupported (a number of ranks); device_error.
  static Result<std::unique_ptr<Communicator>> create(const BackendPlace& place,
                                                      Links links,
                                                      Rendezvous& rendezvous);
  ~PeerCommunicator() override;

  std::int64_t rank() const override { return group_.rank; }
  std::int64_t ranks() const override { return group_.layout.ranks; }
  Status reserve(const CollectiveSizes& sizes) override;
  Status meet() override;
  Status all_reduce(TensorView values) override;
  Result<bool> all_reduce_add_norm(const Activation& out,
                                   TensorView residual,
                                   TensorView block_output,
                                   ConstTensorView weight,
                                   float eps) override;
  Status exchange_rows(TensorView out, ConstTensorView part) override;
  Status all_gather_rows(std::span<const TensorView> tensors) override;
  Result<std::int64_t> dispatch(const RowRoutes& routes,
                                std::span<const DispatchTensor> rows) override;
  Status wait_for_dispatch() override;
  Status combine(TensorView out, ConstTensorView results) override;
  Status check() override;
  void give_up() override;

 private:
  /// Bytes from a rank's buffer to its windows.
  struct Windows {
    std::int64_t logits = 0;
    std::int64_t gathered = 0;
    std::int64_t dispatched = 0;
    std::int64_t combined = 0;
    std::int64_t end = 0;
  };

  PeerCommunicator(const BackendPlace& place, Links links, Rendezvous& rendezvous);
  Status start();
  Status bind() const;
  Windows windows() const;
  /// Maps the other ranks' buffers.
  Status open_buffers();
  /// Times a copy to the next rank's buffer and reports the links.
  Status measure_links();
  /// All rows of tensors to this rank's own memory.
  Status copy_out(std::span<const RowTensor> tensors, std::int64_t rows, cudaStream_t stream);
  PushRows push_to_all() const;

  BackendPlace place_;
  Links links_;
  Rendezvous* rendezvous_;
  PeerGroup group_;
  CollectiveSizes sizes_;
  Windows windows_;
  DeviceBlock buffer_;
  std::vector<void*> mapped_;  // of other processes, to be closed
  std::atomic<bool> gave_up_{false};
  std::shared_ptr<HostState> host_;
  std::vector<std::shared_ptr<HostState>> same_process_;  // of all ranks in this process
  cudaStream_t dispatch_stream_ = nullptr;
  cudaStream_t abort_stream_ = nullptr;
  cudaEvent_t fork_ = nullptr;
  cudaEvent_t join_ = nullptr;
  RowRoutes routes_;  // of the latest dispatch
  std::int64_t first_row_ = 0;
};

}  // namespace koho::cuda
