// SPDX-License-Identifier: Apache-2.0
#include "cuda/load/loader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "base/arithmetic.h"
#include "base/host_cpus.h"
#include "base/log.h"
#include "cuda/gemm/tiled_layout.h"
#include "cuda/load/synthetic_weights.h"

namespace koho::cuda {
namespace {

constexpr std::int64_t kPieceBytes = 4 << 20;
constexpr std::int64_t kJobBytesMin = 1 << 20;  // below, the backend copies on its own stream
constexpr std::int64_t kRowsStep = 8;           // of a piece: what interleaving keeps together
constexpr std::size_t kThreadsMin = 2;          // one copies while the other waits for a page
constexpr std::size_t kThreadsMax = 14;         // on an H200 more threads load no faster
constexpr int kSlots = 2;
constexpr std::chrono::seconds kTellEvery{2};

std::int64_t row_bytes_of(const ConstTensorView& view) {
  return view.size(1) * dtype_bytes(view.dtype);
}

double gb(std::int64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

/// The CPUs on which this rank's threads run.
std::vector<int> cpus_of(const LoaderRank& rank) {
  const std::vector<int> devices =
      rank.devices.empty() ? std::vector<int>{rank.device} : rank.devices;
  std::vector<std::optional<int>> nodes;
  std::vector<std::vector<int>> cpus;
  for (const int device : devices) {
    std::array<char, 32> bus_id{};
    // A bus id that the driver does not tell is an unknown node.
    static_cast<void>(
        cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device));
    nodes.push_back(numa_node_of_pci(bus_id.data()));
    cpus.push_back(nodes.back() ? cpus_of_numa_node(*nodes.back()) : std::vector<int>());
  }
  return share_of_cpus(rank.devices.empty() ? 0 : rank.rank, nodes, cpus, allowed_cpus());
}

}  // namespace

/// The pinned and the staging memory of one piece.
struct Loader::Slot {
  PinnedMemory pinned;
  DeviceBlock staging;
  cudaEvent_t free = nullptr;  // the slot's last piece has been copied
};

/// A thread with its stream and its ring of slots.
class Loader::LoaderThread {
 public:
  LoaderThread() = default;
  LoaderThread(const LoaderThread&) = delete;
  LoaderThread& operator=(const LoaderThread&) = delete;
  ~LoaderThread() {
    if (thread.joinable()) thread.join();
    if (stream_ != nullptr) static_cast<void>(cudaStreamSynchronize(stream_));
    for (Slot& slot : slots_)
      if (slot.free != nullptr) static_cast<void>(cudaEventDestroy(slot.free));
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  }

  /// What one thread does for all: device memory is handed out to one at a time.
  Status allocate_staging(const std::shared_ptr<DeviceMemory>& memory) {
    for (Slot& slot : slots_) {
      KOHO_TRY_ASSIGN(slot.staging,
                      DeviceBlock::allocate(memory, kPieceBytes, "staging of weights"));
    }
    return {};
  }

  /// The rest, on the thread itself: pinned memory lies on the node of the thread that asks for it.
  Status open(int device) {
    KOHO_CUDA_TRY(cudaSetDevice(device));
    KOHO_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (Slot& slot : slots_) {
      KOHO_TRY_ASSIGN(slot.pinned, allocate_pinned(kPieceBytes, "weights on their way"));
      KOHO_CUDA_TRY(cudaEventCreateWithFlags(&slot.free, cudaEventDisableTiming));
    }
    return {};
  }

  Status move(const LoadJob& piece) {
    Slot& slot = slots_[next_++ % kSlots];
    KOHO_CUDA_TRY(cudaEventSynchronize(slot.free));
    const std::int64_t rows = piece.source.size(0);
    const std::int64_t row_bytes = row_bytes_of(piece.source);
    const auto bytes = static_cast<std::size_t>(rows * row_bytes);
    if (piece.synthetic) {
      KOHO_CUDA_TRY(launch_synthetic_weights(
          {.out = slot.staging.as<void>(),
           .key = piece.place.tensor.key,
           .first = piece.place.first,
           .row_stride = piece.source.stride(0),
           .rows = rows,
           .columns = piece.source.size(1),
           .factor = piece.place.tensor.factor,
           .offset = piece.place.tensor.offset,
           .element_bytes = static_cast<int>(dtype_bytes(piece.source.dtype))},
          stream_));
    } else {
      gather(slot.pinned.get(), piece.source, row_bytes);
      KOHO_CUDA_TRY(cudaMemcpyAsync(slot.staging.as<void>(), slot.pinned.get(), bytes,
                                    cudaMemcpyHostToDevice, stream_));
    }
    if (piece.copy != nullptr)
      KOHO_CUDA_TRY(cudaMemcpyAsync(piece.copy, slot.staging.as<void>(), bytes,
                                    cudaMemcpyDeviceToDevice, stream_));
    if (piece.repack.tiles != nullptr) {
      Repack repack = piece.repack;
      repack.source = slot.staging.as<const std::uint8_t>();
      repack.source_stride_bytes = row_bytes;
      repack.rows = rows;
      repack.row_bytes = row_bytes;
      KOHO_CUDA_TRY(launch_repack(repack, stream_));
    }
    KOHO_CUDA_TRY(cudaEventRecord(slot.free, stream_));
    return {};
  }

  Status settle() {
    KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
    return {};
  }

  std::thread thread;

 private:
  /// Asks the kernel to map a file's pages at once instead of one page fault after the other. A
  /// hint.
  static void map_in(const std::byte* data, std::size_t bytes) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<std::uintptr_t>(data) / page * page;
    const auto end = reinterpret_cast<std::uintptr_t>(data) + bytes;
    static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ));
  }

  static void gather(void* target, const ConstTensorView& source, std::int64_t row_bytes) {
    const std::int64_t stride = source.stride(0) * dtype_bytes(source.dtype);
    if (stride == row_bytes) {
      map_in(source.data, static_cast<std::size_t>(source.size(0) * row_bytes));
      std::memcpy(target, source.data, static_cast<std::size_t>(source.size(0) * row_bytes));
      return;
    }
    for (std::int64_t row = 0; row < source.size(0); ++row)
      std::memcpy(static_cast<std::byte*>(target) + row * row_bytes, source.data + row * stride,
                  static_cast<std::size_t>(row_bytes));
  }

  cudaStream_t stream_ = nullptr;
  std::array<Slot, kSlots> slots_;
  std::size_t next_ = 0;
};

bool Loader::takes(const ConstTensorView& source) {
  return source.shape.rank() == 2 && source.rows_packed() && source.bytes() >= kJobBytesMin &&
         kRowsStep * row_bytes_of(source) <= kPieceBytes;
}

Result<std::unique_ptr<Loader>> Loader::start(const LoaderRank& rank,
                                              const std::shared_ptr<DeviceMemory>& memory) {
  std::unique_ptr<Loader> loader(new Loader(rank));
  loader->start_ = std::chrono::steady_clock::now();
  loader->cpus_ = cpus_of(rank);
  const std::size_t threads = std::clamp(loader->cpus_.size(), kThreadsMin, kThreadsMax);
  for (std::size_t i = 0; i < threads; ++i) {
    auto loader_thread = std::make_unique<LoaderThread>();
    KOHO_TRY(loader_thread->allocate_staging(memory));
    loader->threads_.push_back(std::move(loader_thread));
  }
  loader->working_ = static_cast<std::int64_t>(threads);
  for (std::unique_ptr<LoaderThread>& loader_thread : loader->threads_)
    loader_thread->thread =
        std::thread([&self = *loader, &own = *loader_thread] { self.work(own); });
  return loader;
}

Loader::Loader(const LoaderRank& rank) : rank_(rank) {}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

Status Loader::put(const LoadJob& job) {
  const std::int64_t row_bytes = row_bytes_of(job.source);
  const std::int64_t rows_each = kPieceBytes / row_bytes / kRowsStep * kRowsStep;
  {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return status_.error();
    if (rank_.progress != nullptr) rank_.progress->expect(job.source.bytes());
    for (std::int64_t row = 0; row < job.source.size(0); row += rows_each) {
      LoadJob piece = job;
      piece.source = job.source.slice(0, row, std::min(rows_each, job.source.size(0) - row));
      piece.place.first += row * job.source.stride(0);
      if (piece.repack.tiles != nullptr)
        piece.repack.first_row += piece.repack.interleave == 0 ? row : 2 * row;
      if (piece.copy != nullptr) piece.copy += row * row_bytes;
      pieces_.push_back(piece);
    }
    bytes_total_ += job.source.bytes();
  }
  changed_.notify_all();
  return {};
}

void Loader::work(LoaderThread& loader_thread) {
  static_cast<void>(keep_thread_on(cpus_));  // elsewhere it is as right, and slower
  Status opened = loader_thread.open(rank_.device);
  {
    const std::lock_guard lock(mutex_);
    --working_;
    if (!opened.ok() && status_.ok()) {
      status_ = std::move(opened);
      pieces_.clear();
    }
  }
  changed_.notify_all();
  move_pieces(loader_thread);
}

void Loader::move_pieces(LoaderThread& loader_thread) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !status_.ok() || !pieces_.empty(); });
    if (stopping_ || !status_.ok()) return;
    const LoadJob piece = pieces_.front();
    pieces_.pop_front();
    ++working_;
    lock.unlock();
    Status status = loader_thread.move(piece);
    lock.lock();
    --working_;
    bytes_done_ += piece.source.bytes();
    if (rank_.progress != nullptr) rank_.progress->arrived(piece.source.bytes());
    if (!status.ok() && status_.ok()) {
      status_ = std::move(status);
      pieces_.clear();
    }
    if (!status_.ok() || (pieces_.empty() && working_ == 0)) changed_.notify_all();
  }
}

void Loader::tell_progress() const {
  if (rank_.rank != 0) return;
  LoadProgress::Now now;
  if (rank_.progress != nullptr) {
    now = rank_.progress->now();
  } else {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    now = {.bytes_total = bytes_total_,
           .bytes_done = bytes_done_,
           .gb_per_s = gb(bytes_done_) / elapsed.count()};
    now.left_s = gb(bytes_total_ - bytes_done_) / now.gb_per_s;
  }
  if (now.bytes_done == 0) return;  // no rate yet
  log::info("weights: {:.1f} of {:.1f} GB on the device{}, {:.1f} GB/s, {:.0f} s left",
            gb(now.bytes_done), gb(now.bytes_total), rank_.devices.size() > 1 ? "s" : "",
            now.gb_per_s, now.left_s);
}

Status Loader::finish() {
  {
    std::unique_lock lock(mutex_);
    const auto done = [this] { return pieces_.empty() && working_ == 0; };
    while (!changed_.wait_for(lock, kTellEvery, done)) tell_progress();
    if (!status_.ok()) return status_.error();
  }
  for (std::unique_ptr<LoaderThread>& loader_thread : threads_) KOHO_TRY(loader_thread->settle());
  if (bytes_total_ == bytes_told_) return {};
  bytes_told_ = bytes_total_;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  const std::string of_rank =
      rank_.devices.size() > 1 ? fmt::format(" of rank {}", rank_.rank) : std::string();
  log::info("weights{}: {:.1f} GB on the device after {:.2f} s, {:.1f} GB/s, {} threads", of_rank,
            gb(bytes_total_), elapsed.count(), gb(bytes_total_) / elapsed.count(), threads_.size());
  return {};
}

}  // namespace koho::cuda
