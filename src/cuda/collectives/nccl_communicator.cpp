// SPDX-License-Identifier: Apache-2.0 Rows go to all ranks at dispatch, since the host does not
// know which are wanted where, and what is another rank's is masked there; the way back is a sum on
// the sender.
#include "cuda/collectives/nccl_communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <dlfcn.h>
#include <mutex>
#include <vector>

#include <nccl.h>

#include "base/arithmetic.h"
#include "base/log.h"
#include "cuda/collectives/links.h"
#include "cuda/collectives/row_exchange.h"
#include "cuda/views.h"

namespace koho::cuda {
namespace {

/// NCCL's functions that are used.
struct Nccl {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRank) init_rank = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) end = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
};

template <typename Function>
bool find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

/// Opens the library, which stays open: it has threads of its own.
Result<Nccl> open_nccl() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return make_error(ErrorCode::unsupported, "NCCL is not installed: {}", dlerror());
  Nccl nccl;
  if (find(library, nccl.get_version, "ncclGetVersion") &&
      find(library, nccl.get_unique_id, "ncclGetUniqueId") &&
      find(library, nccl.init_rank, "ncclCommInitRank") &&
      find(library, nccl.destroy, "ncclCommDestroy") && find(library, nccl.end, "ncclCommAbort") &&
      find(library, nccl.async_error, "ncclCommGetAsyncError") &&
      find(library, nccl.error_string, "ncclGetErrorString") &&
      find(library, nccl.last_error, "ncclGetLastError") &&
      find(library, nccl.group_start, "ncclGroupStart") &&
      find(library, nccl.group_end, "ncclGroupEnd") &&
      find(library, nccl.all_reduce, "ncclAllReduce") &&
      find(library, nccl.all_gather, "ncclAllGather") &&
      find(library, nccl.broadcast, "ncclBroadcast") && find(library, nccl.reduce, "ncclReduce") &&
      find(library, nccl.send, "ncclSend") && find(library, nccl.receive, "ncclRecv"))
    return nccl;
  return make_error(ErrorCode::unsupported, "libnccl.so.2 is too old: {}", dlerror());
}

#define KOHO_NCCL_TRY(expr)                                              \
  do {                                                                   \
    if (const ncclResult_t koho_nccl = (expr); koho_nccl != ncclSuccess) \
      return error_of(koho_nccl, #expr);                                 \
  } while (false)

constexpr std::int64_t kConnectBytes = 256;  // of a message that only connects

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const BackendPlace& place, const Nccl& nccl, Rendezvous& rendezvous)
      : place_(place),
        nccl_(nccl),
        rendezvous_(&rendezvous),
        rank_(rendezvous.rank()),
        ranks_(rendezvous.ranks()) {}

  ~NcclCommunicator() override {
    if (comm_ == nullptr || !bind().ok()) return;
    if (gave_up_.load()) return;  // aborted: the communicator is gone
    static_cast<void>(cudaStreamSynchronize(place_.stream));
    static_cast<void>(healthy() ? nccl_.destroy(comm_) : nccl_.end(comm_));
  }

  Status join() {
    KOHO_TRY(bind());
    struct Id {
      ncclUniqueId id{};
      bool made = false;
    } mine;
    ncclResult_t made = ncclSuccess;
    if (rank_ == 0) made = nccl_.get_unique_id(&mine.id);
    mine.made = rank_ == 0 && made == ncclSuccess;
    KOHO_TRY_ASSIGN(const std::vector<Id> all, all_gather_values(*rendezvous_, mine));
    KOHO_NCCL_TRY(made);
    if (!all[0].made)
      return make_error(ErrorCode::unavailable, "rank 0 has no id for NCCL's communicator");
    const ncclResult_t joined =
        nccl_.init_rank(&comm_, static_cast<int>(ranks_), all[0].id, static_cast<int>(rank_));
    if (joined != ncclSuccess) comm_ = nullptr;
    if (joined == ncclInvalidUsage)
      return make_error(ErrorCode::unsupported,
                        "NCCL refuses these ranks: {}. Two ranks on one GPU need NCCL 2.30 and "
                        "NCCL_MULTI_RANK_GPU_ENABLE=1",
                        nccl_.last_error(nullptr));
    KOHO_NCCL_TRY(joined);
    int version = 0;
    KOHO_NCCL_TRY(nccl_.get_version(&version));
    if (rank_ == 0)
      log::info("collectives through NCCL {}.{}.{}: {} ranks", version / 10'000,
                version / 100 % 100, version % 100, ranks_);
    return {};
  }

  std::int64_t rank() const override { return rank_; }
  std::int64_t ranks() const override { return ranks_; }

  Status reserve(const CollectiveSizes& sizes) override {
    const std::int64_t logits =
        4 * ceil_div(sizes.logit_rows_max, ranks_) * ranks_ * sizes.logit_columns;
    const std::int64_t combined =
        sizes.dispatched_row_bytes > 0 ? 2 * sizes.tokens_max * sizes.hidden : 0;
    KOHO_TRY_ASSIGN(scratch_,
                    DeviceBlock::allocate(place_.memory,
                                          std::max({logits, combined, 2 * ranks_ * kConnectBytes}),
                                          "collectives"));
    return connect();
  }

  Status meet() override {
    KOHO_TRY_ASSIGN(const std::vector<char> all, all_gather_values(*rendezvous_, char{1}));
    return {};
  }

  Status all_reduce(TensorView values) override {
    KOHO_TRY(usable());
    if (values.elements() == 0) return {};
    KOHO_NCCL_TRY(nccl_.all_reduce(values.data, values.data,
                                   static_cast<std::size_t>(values.elements()), ncclBfloat16,
                                   ncclSum, comm_, place_.stream));
    return {};
  }

  Status exchange_rows(TensorView out, ConstTensorView part) override {
    KOHO_TRY(usable());
    const std::int64_t columns = part.size(1);
    const std::int64_t own = out.size(0);
    auto* const arrived = scratch_.as<float>();
    KOHO_NCCL_TRY(nccl_.group_start());
    for (int peer = 0; peer < ranks_; ++peer) {
      const RowRange rows = owned_rows(part.size(0), peer, ranks_);
      if (rows.count > 0)
        KOHO_NCCL_TRY(nccl_.send(part.as<const float>() + rows.first * columns,
                                 static_cast<std::size_t>(rows.count * columns), ncclFloat32, peer,
                                 comm_, place_.stream));
      if (own > 0)
        KOHO_NCCL_TRY(nccl_.receive(arrived + peer * own * columns,
                                    static_cast<std::size_t>(own * columns), ncclFloat32, peer,
                                    comm_, place_.stream));
    }
    KOHO_NCCL_TRY(nccl_.group_end());
    const auto width = static_cast<std::size_t>(4 * columns);
    for (std::int64_t peer = 0; peer < ranks_ && own > 0; ++peer)
      KOHO_CUDA_TRY(cudaMemcpy2DAsync(
          out.as<float>() + peer * columns, width * static_cast<std::size_t>(ranks_),
          arrived + peer * own * columns, width, width, static_cast<std::size_t>(own),
          cudaMemcpyDeviceToDevice, place_.stream));
    return {};
  }

  Status all_gather_rows(std::span<const TensorView> tensors) override {
    KOHO_TRY(usable());
    KOHO_NCCL_TRY(nccl_.group_start());
    for (const TensorView& tensor : tensors) {
      const std::int64_t bytes = tensor.bytes() / ranks_;
      KOHO_NCCL_TRY(nccl_.all_gather(tensor.data + rank_ * bytes, tensor.data,
                                     static_cast<std::size_t>(bytes), ncclUint8, comm_,
                                     place_.stream));
    }
    KOHO_NCCL_TRY(nccl_.group_end());
    return {};
  }

  Result<std::int64_t> dispatch(const RowRoutes& routes,
                                std::span<const DispatchTensor> rows) override {
    KOHO_TRY(usable());
    if (std::cmp_not_equal(routes.row_starts.size(), ranks_ + 1))
      return make_error(ErrorCode::invalid_argument,
                        "NCCL needs to know the rows of every rank, found {} of {}",
                        routes.row_starts.size(), ranks_ + 1);
    const std::int64_t total = routes.row_starts.back();
    if (total > rows[0].to.size(0))
      return make_error(ErrorCode::resource_exhausted, "rank {} has room for {} rows, {} arrive",
                        rank_, rows[0].to.size(0), total);
    starts_.assign(routes.row_starts.begin(), routes.row_starts.end());
    routes_ = routes;
    KOHO_NCCL_TRY(nccl_.group_start());
    for (const DispatchTensor& tensor : rows) {
      const std::int64_t bytes =
          (tensor.to.shape.rank() > 1 ? tensor.to.stride(0) : 1) * dtype_bytes(tensor.to.dtype);
      for (int from = 0; from < ranks_; ++from) {
        const std::int64_t count = rows_of(from);
        if (count == 0) continue;
        KOHO_NCCL_TRY(nccl_.broadcast(tensor.from.data, tensor.to.data + first_of(from) * bytes,
                                      static_cast<std::size_t>(count * bytes), ncclUint8, from,
                                      comm_, place_.stream));
      }
    }
    KOHO_NCCL_TRY(nccl_.group_end());
    for (const DispatchTensor& tensor : rows)
      if (tensor.from.data == routes.ids.data && routes.ids_per_rank > 0)
        KOHO_CUDA_TRY(launch_mask_ids(tensor.to.as<std::int32_t>(), total * routes.ids.size(1),
                                      rank_ * routes.ids_per_rank, routes.ids_per_rank,
                                      place_.stream));
    return total;
  }

  Status wait_for_dispatch() override { return {}; }  // it is on the backend's stream

  Status combine(TensorView out, ConstTensorView results) override {
    KOHO_TRY(usable());
    const std::int64_t width = results.size(1);
    auto* const sums = scratch_.as<Bf16>();
    KOHO_NCCL_TRY(nccl_.group_start());
    for (int to = 0; to < ranks_; ++to) {
      const std::int64_t count = rows_of(to) * width;
      if (count == 0) continue;
      KOHO_NCCL_TRY(nccl_.reduce(bf16(results) + first_of(to) * width, sums,
                                 static_cast<std::size_t>(count), ncclBfloat16, ncclSum, to, comm_,
                                 place_.stream));
    }
    KOHO_NCCL_TRY(nccl_.group_end());
    CombineRows add{.out = out.as<Bf16>(),
                    .ranks = 1,
                    .rows = out.size(0),
                    .width = width,
                    .ids = i32(routes_.ids),
                    .choices = static_cast<int>(routes_.ids.size(1)),
                    .ids_per_rank = 0};
    add.results[0] = reinterpret_cast<const std::uint8_t*>(sums);
    KOHO_CUDA_TRY(launch_combine_rows(add, place_.stream));
    return {};
  }

  Status check() override {
    if (gave_up_.load()) return gone();
    const std::lock_guard lock(mutex_);
    ncclResult_t error = ncclSuccess;
    KOHO_NCCL_TRY(nccl_.async_error(comm_, &error));
    if (error == ncclRemoteError)
      return make_error(ErrorCode::unavailable, "NCCL: another rank left: {}",
                        nccl_.last_error(comm_));
    if (error != ncclSuccess && error != ncclInProgress) return error_of(error, "a collective");
    return {};
  }

  void give_up() override {
    if (gave_up_.exchange(true)) return;
    // A rank that is inside an NCCL call holds nothing that abort needs, so a busy lock is no
    // reason to wait for ever.
    const std::unique_lock lock(mutex_, std::chrono::seconds(1));
    if (comm_ != nullptr && bind().ok()) static_cast<void>(nccl_.end(comm_));
  }

 private:
  static Error gone() {
    return make_error(ErrorCode::unavailable, "the collectives were given up");
  }
  Error error_of(ncclResult_t result, std::string_view call) const {
    return make_error(result == ncclRemoteError ? ErrorCode::unavailable : ErrorCode::device_error,
                      "NCCL: {} ({}) from {}", nccl_.error_string(result), nccl_.last_error(comm_),
                      call.substr(0, call.find('(')));
  }
  Status bind() const {
    KOHO_CUDA_TRY(cudaSetDevice(place_.device));
    return {};
  }
  Status usable() const {
    if (gave_up_.load()) return gone();
    return bind();
  }
  bool healthy() const {
    ncclResult_t error = ncclSuccess;
    return nccl_.async_error(comm_, &error) == ncclSuccess && error == ncclSuccess;
  }
  /// Calls what connects a rank with all others. Without it the first collective would, and that
  /// call would wait on the host for a rank that does not come.
  Status connect() {
    KOHO_TRY(meet());
    KOHO_TRY(usable());
    auto* const memory = scratch_.as<std::uint8_t>();
    KOHO_CUDA_TRY(cudaMemsetAsync(memory, 0, static_cast<std::size_t>(2 * ranks_ * kConnectBytes),
                                  place_.stream));
    KOHO_NCCL_TRY(nccl_.all_reduce(memory, memory, kConnectBytes / 2, ncclBfloat16, ncclSum, comm_,
                                   place_.stream));
    KOHO_NCCL_TRY(nccl_.group_start());
    for (int peer = 0; peer < ranks_; ++peer) {
      KOHO_NCCL_TRY(nccl_.send(memory + peer * kConnectBytes, kConnectBytes, ncclUint8, peer, comm_,
                               place_.stream));
      KOHO_NCCL_TRY(nccl_.receive(memory + (ranks_ + peer) * kConnectBytes, kConnectBytes,
                                  ncclUint8, peer, comm_, place_.stream));
    }
    KOHO_NCCL_TRY(nccl_.group_end());
    KOHO_CUDA_TRY(cudaStreamSynchronize(place_.stream));
    return {};
  }
  std::int64_t first_of(int rank) const { return starts_[static_cast<std::size_t>(rank)]; }
  std::int64_t rows_of(int rank) const { return first_of(rank + 1) - first_of(rank); }

  BackendPlace place_;
  Nccl nccl_;
  Rendezvous* rendezvous_;
  std::int64_t rank_;
  std::int64_t ranks_;
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> gave_up_{false};
  std::timed_mutex mutex_;  // of check() and give_up()
  DeviceBlock scratch_;
  RowRoutes routes_;                  // of the latest dispatch
  std::vector<std::int64_t> starts_;  // its row_starts
};

}  // namespace

Result<std::unique_ptr<Communicator>> make_nccl_communicator(const BackendPlace& place,
                                                             Rendezvous& rendezvous) {
  // NVLink multicast has hung: it stays off unless a user says otherwise. NCCL reads it once.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  const Result<Nccl> nccl = open_nccl();
  // All ranks learn of one without the library before any waits for it.
  KOHO_TRY_ASSIGN(const std::vector<char> found,
                  all_gather_values(rendezvous, static_cast<char>(nccl.ok() ? 1 : 0)));
  if (!nccl.ok()) return nccl.error();
  for (std::size_t rank = 0; rank < found.size(); ++rank)
    if (found[rank] == 0)
      return make_error(ErrorCode::unavailable, "rank {} could not open NCCL", rank);
  auto made = std::make_unique<NcclCommunicator>(place, *nccl, rendezvous);
  KOHO_TRY(made->join());
  return std::unique_ptr<Communicator>(std::move(made));
}

}  // namespace koho::cuda
