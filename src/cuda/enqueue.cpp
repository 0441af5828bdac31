// SPDX-License-Identifier: Apache-2.0
// What CudaBackend enqueues on its stream beside operators: copies, events and captured CUDA
// graphs.
#include <algorithm>
#include <cstring>
#include <utility>

#include "cuda/backend.h"

namespace koho::cuda {
namespace {

/// A stream and its GPU: the calling thread may have another one, or none yet.
struct Queue {
  cudaStream_t stream;
  int device;
};

class CudaEvent final : public Event {
 public:
  CudaEvent(cudaEvent_t event, const Queue& queue) : event_(event), queue_(queue) {}
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  ~CudaEvent() override {
    static_cast<void>(cudaSetDevice(queue_.device));
    static_cast<void>(cudaEventDestroy(event_));
  }
  Status record() override {
    KOHO_CUDA_TRY(cudaSetDevice(queue_.device));
    KOHO_CUDA_TRY(cudaEventRecord(event_, queue_.stream));
    return {};
  }
  Status wait() override {
    KOHO_CUDA_TRY(cudaSetDevice(queue_.device));
    KOHO_CUDA_TRY(cudaEventSynchronize(event_));
    return {};
  }
  bool completed() override {
    // An error counts as completed: wait() has it.
    return cudaSetDevice(queue_.device) != cudaSuccess ||
           cudaEventQuery(event_) != cudaErrorNotReady;
  }

 private:
  cudaEvent_t event_;
  Queue queue_;
};

class CudaGraph final : public CapturedGraph {
 public:
  CudaGraph(cudaGraphExec_t graph, const Queue& queue, std::shared_ptr<std::int64_t> alive)
      : graph_(graph), queue_(queue), alive_(std::move(alive)) {
    ++*alive_;
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  ~CudaGraph() override {
    static_cast<void>(cudaSetDevice(queue_.device));
    static_cast<void>(cudaGraphExecDestroy(graph_));
    --*alive_;
  }
  Status replay() override {
    KOHO_CUDA_TRY(cudaSetDevice(queue_.device));
    KOHO_CUDA_TRY(cudaGraphLaunch(graph_, queue_.stream));
    return {};
  }

 private:
  cudaGraphExec_t graph_;
  Queue queue_;
  std::shared_ptr<std::int64_t> alive_;
};

Status check_copy(const ConstTensorView& view, std::size_t bytes, const char* what) {
  if (view.packed() && static_cast<std::size_t>(view.bytes()) == bytes) return {};
  return make_error(ErrorCode::invalid_argument, "{}: {} bytes, {}", what, bytes, describe(view));
}

}  // namespace

Status CudaBackend::enqueue_upload(TensorView destination, std::span<const std::byte> source) {
  KOHO_TRY(check_copy(destination, source.size(), "upload"));
  if (source.empty()) return {};
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(cudaMemcpyAsync(destination.data, source.data(), source.size(),
                                cudaMemcpyHostToDevice, stream_));
  return {};
}

Status CudaBackend::enqueue_download(std::span<std::byte> destination, ConstTensorView source) {
  KOHO_TRY(check_copy(source, destination.size(), "download"));
  if (destination.empty()) return {};
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(cudaMemcpyAsync(destination.data(), source.data, destination.size(),
                                cudaMemcpyDeviceToHost, stream_));
  return {};
}

Status CudaBackend::upload(TensorView destination, std::span<const std::byte> source) {
  KOHO_TRY(enqueue_upload(destination, source));
  return synchronize();
}

Status CudaBackend::download(std::span<std::byte> destination, ConstTensorView source) {
  KOHO_TRY(enqueue_download(destination, source));
  return synchronize();
}

Status CudaBackend::synchronize() {
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
  return {};
}

Result<Tensor> CudaBackend::allocate_host(std::int64_t bytes) {
  KOHO_TRY(bind());
  KOHO_TRY_ASSIGN(PinnedMemory memory, allocate_pinned(bytes, "the buffers of steps"));
  std::memset(memory.get(), 0, static_cast<std::size_t>(bytes));
  return Tensor(memory.release(),
                [device = options_.device](std::byte* freed) {
                  static_cast<void>(cudaSetDevice(device));
                  const PinnedMemory gone(freed);
                },
                DType::u8, {bytes}, {});
}

Result<std::unique_ptr<Event>> CudaBackend::make_event() {
  KOHO_TRY(bind());
  cudaEvent_t event = nullptr;
  KOHO_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return std::unique_ptr<Event>(
      std::make_unique<CudaEvent>(event, Queue{stream_, options_.device}));
}

Result<MemoryUse> CudaBackend::memory_use() const {
  KOHO_TRY(bind());
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  KOHO_CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes));
  const DeviceMemory::Counts& counts = memory_->counts();
  return MemoryUse{.held_bytes = counts.bytes,
                   .free_bytes = static_cast<std::int64_t>(free_bytes),
                   .allocations = counts.allocations,
                   .purposes = counts.purposes};
}

Result<std::unique_ptr<CapturedGraph>> CudaBackend::capture(std::function<Status()> operators) {
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  const Status status = operators();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
  if (!status.ok()) {
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    return status.error();
  }
  if (ended != cudaSuccess) return cuda_error(ended, "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  if (made != cudaSuccess) return cuda_error(made, "cudaGraphInstantiate");
  auto captured =
      std::make_unique<CudaGraph>(executable, Queue{stream_, options_.device}, graphs_alive_);
  KOHO_CUDA_TRY(cudaGraphUpload(executable, stream_));
  return std::unique_ptr<CapturedGraph>(std::move(captured));
}

}  // namespace koho::cuda
