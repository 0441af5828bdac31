// SPDX-License-Identifier: Apache-2.0
#include "cuda/collectives/peer_communicator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <new>

#include <fmt/format.h>

#include "base/arithmetic.h"
#include "base/log.h"
#include "cuda/views.h"

namespace koho::cuda {
namespace {

constexpr std::uint64_t kTimeoutNs = 60'000'000'000;  // of a kernel's wait for another rank
constexpr std::int64_t kWindowAlignment = 256;

std::int64_t row_bytes_of(const ConstTensorView& view) {
  return (view.shape.rank() > 1 ? view.stride(0) : 1) * dtype_bytes(view.dtype);
}

const std::uint8_t* address_of(const ConstTensorView& view) {
  return reinterpret_cast<const std::uint8_t*>(view.data);
}

std::string_view phase_name(std::uint32_t phase) {
  switch (static_cast<ExchangePhase>(phase)) {
    case ExchangePhase::one_shot:
      return "a one-shot all-reduce";
    case ExchangePhase::reduce_scatter:
      return "an all-reduce's reduce-scatter";
    case ExchangePhase::all_gather:
      return "an all-reduce's all-gather";
    case ExchangePhase::row_barrier:
      return "an exchange of rows";
  }
  return "a collective";
}

}  // namespace

Result<std::shared_ptr<HostState>> HostState::make(int device) {
  void* memory = nullptr;
  KOHO_CUDA_TRY(cudaHostAlloc(&memory, sizeof(CollectiveHostState),
                              cudaHostAllocMapped | cudaHostAllocPortable));
  std::shared_ptr<HostState> state(new HostState(new (memory) CollectiveHostState{}, device));
  void* on_device = nullptr;
  KOHO_CUDA_TRY(cudaHostGetDevicePointer(&on_device, memory, 0));
  state->on_device_ = static_cast<CollectiveHostState*>(on_device);
  return state;
}

HostState::~HostState() {
  static_cast<void>(cudaSetDevice(device_));
  static_cast<void>(cudaFreeHost(state_));
}

CollectiveFault HostState::fault() const {
  const std::atomic_ref<std::uint32_t> kind(state_->fault.kind);
  CollectiveFault fault;
  if (kind.load(std::memory_order_acquire) != 0) fault = state_->fault;
  return fault;
}

void HostState::end_waits() {
  std::atomic_ref<std::uint32_t>(state_->abort).store(1, std::memory_order_release);
}

Result<std::unique_ptr<Communicator>> PeerCommunicator::create(const BackendPlace& place,
                                                               Links links,
                                                               Rendezvous& rendezvous) {
  std::unique_ptr<PeerCommunicator> made(new PeerCommunicator(place, std::move(links), rendezvous));
  KOHO_TRY(made->start());
  return std::unique_ptr<Communicator>(std::move(made));
}

PeerCommunicator::PeerCommunicator(const BackendPlace& place, Links links, Rendezvous& rendezvous)
    : place_(place), links_(std::move(links)), rendezvous_(&rendezvous) {
  group_.layout.ranks = static_cast<int>(rendezvous.ranks());
  group_.rank = static_cast<int>(rendezvous.rank());
  group_.shares_gpu = links_.ranks_on_gpu > 1;
  group_.loopback = links_.loopback;
  group_.timeout_ns = kTimeoutNs;
}

PeerCommunicator::~PeerCommunicator() {
  if (!bind().ok()) return;
  static_cast<void>(cudaStreamSynchronize(place_.stream));
  for (cudaStream_t stream : {dispatch_stream_, abort_stream_}) {
    if (stream == nullptr) continue;
    static_cast<void>(cudaStreamSynchronize(stream));
    static_cast<void>(cudaStreamDestroy(stream));
  }
  for (cudaEvent_t event : {fork_, join_})
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  if (mapped_.empty()) return;
  for (void* memory : mapped_) static_cast<void>(cudaIpcCloseMemHandle(memory));
  // No rank frees memory that another one still maps. After give_up() nobody may come.
  if (!gave_up_) static_cast<void>(meet());
}

Status PeerCommunicator::bind() const {
  KOHO_CUDA_TRY(cudaSetDevice(place_.device));
  return {};
}

Status PeerCommunicator::start() {
  if (ranks() != 2 && ranks() != 4 && ranks() != 8)
    return make_error(ErrorCode::unsupported,
                      "collectives through peer memory have 2, 4 or 8 ranks, found {}", ranks());
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(cudaStreamCreateWithFlags(&dispatch_stream_, cudaStreamNonBlocking));
  KOHO_CUDA_TRY(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming));
  KOHO_CUDA_TRY(cudaEventCreateWithFlags(&join_, cudaEventDisableTiming));
  KOHO_TRY_ASSIGN(host_, HostState::make(place_.device));
  group_.host = host_->on_device();
  return {};
}

PeerCommunicator::Windows PeerCommunicator::windows() const {
  Windows windows;
  std::int64_t end = round_up<std::int64_t>(group_.layout.total_bytes, kWindowAlignment);
  const auto take = [&end](std::int64_t bytes) {
    const std::int64_t at = end;
    end += round_up(bytes, kWindowAlignment);
    return at;
  };
  const std::int64_t owned = ceil_div(sizes_.logit_rows_max, ranks());
  windows.logits = take(4 * owned * ranks() * sizes_.logit_columns);
  // A row's tensors lie apart, each aligned.
  windows.gathered =
      take(owned * ranks() * sizes_.gathered_row_bytes + kRowTensorsMax * kWindowAlignment);
  const bool dispatches = sizes_.dispatched_row_bytes > 0;
  windows.dispatched = take(sizes_.tokens_max * sizes_.dispatched_row_bytes +
                            (dispatches ? kRowTensorsMax * kWindowAlignment : 0));
  windows.combined = take(dispatches ? 2 * sizes_.tokens_max * sizes_.hidden : 0);
  windows.end = end;
  return windows;
}

Status PeerCommunicator::reserve(const CollectiveSizes& sizes) {
  KOHO_TRY(bind());
  sizes_ = sizes;
  group_.layout = exchange_layout(
      static_cast<int>(ranks()), sizes.hidden,
      exchange_channels(links_.multiprocessors, static_cast<int>(links_.ranks_on_gpu)));
  windows_ = windows();
  KOHO_TRY_ASSIGN(buffer_, DeviceBlock::allocate(place_.memory, windows_.end, "collectives"));
  KOHO_TRY(open_buffers());
  KOHO_TRY(measure_links());
  if (links_.loopback)  // nobody fills the others' parts of the windows
    KOHO_CUDA_TRY(cudaMemsetAsync(buffer_.as<void>(), 0, static_cast<std::size_t>(windows_.end),
                                  place_.stream));
  KOHO_CUDA_TRY(launch_reset_exchange(group_, 0, place_.stream));
  KOHO_CUDA_TRY(cudaStreamSynchronize(place_.stream));
  return meet();  // nobody sends before all buffers are reset
}

Status PeerCommunicator::meet() {
  KOHO_TRY_ASSIGN(const std::vector<char> all, all_gather_values(*rendezvous_, char{1}));
  return {};
}

Status PeerCommunicator::open_buffers() {
  struct Shared {
    cudaIpcMemHandle_t handle{};
    void* address = nullptr;                           // in the same process
    const std::shared_ptr<HostState>* host = nullptr;  // likewise
    std::int64_t bytes = 0;
  };
  Shared mine{.address = buffer_.as<void>(), .host = &host_, .bytes = windows_.end};
  const auto self = static_cast<std::size_t>(group_.rank);
  const auto elsewhere = [&](std::size_t rank) { return !links_.same_process(self, rank); };
  bool processes = false;
  for (std::size_t rank = 0; rank < links_.places.size(); ++rank)
    processes = processes || elsewhere(rank);
  if (processes) {
    KOHO_CUDA_TRY(cudaIpcGetMemHandle(&mine.handle, buffer_.as<void>()));
    // NOTE: threads go without: a GPU that all ranks share has few queues for streams, and a
    // stream behind another rank's in one queue would wait for ever.
    if (abort_stream_ == nullptr)
      KOHO_CUDA_TRY(cudaStreamCreateWithFlags(&abort_stream_, cudaStreamNonBlocking));
  }
  KOHO_TRY_ASSIGN(const std::vector<Shared> all, all_gather_values(*rendezvous_, mine));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].bytes != windows_.end)
      return make_error(ErrorCode::internal, "rank {} exchanges {} bytes, rank {} {}", rank,
                        all[rank].bytes, self, windows_.end);
    void* address = all[rank].address;
    if (elsewhere(rank)) {
      const cudaError_t opened =
          cudaIpcOpenMemHandle(&address, all[rank].handle, cudaIpcMemLazyEnablePeerAccess);
      if (opened != cudaSuccess)
        return cuda_error(opened, fmt::format("cudaIpcOpenMemHandle (rank {}'s buffer)", rank));
      mapped_.push_back(address);
    } else {
      same_process_.push_back(*all[rank].host);
    }
    group_.buffers[rank] = static_cast<std::uint8_t*>(address);
  }
  return meet();  // what `mine` points to must stay until all have read it
}

Status PeerCommunicator::measure_links() {
  const std::size_t next = static_cast<std::size_t>(group_.rank + 1) % links_.places.size();
  const auto bytes = static_cast<std::size_t>(
      std::min<std::int64_t>(group_.layout.total_bytes / 2, 64 << 20) / 16 * 16);
  double gb_per_s = 0.0;
  if (links_.from_here[next] != LinkKind::same_gpu) {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    KOHO_CUDA_TRY(cudaEventCreate(&begin));
    KOHO_CUDA_TRY(cudaEventCreate(&end));
    constexpr int kCopies = 4;
    for (int i = 0; i <= kCopies; ++i) {  // the first warms up
      if (i == 1) KOHO_CUDA_TRY(cudaEventRecord(begin, place_.stream));
      KOHO_CUDA_TRY(cudaMemcpyAsync(group_.buffers[next] + bytes, group_.buffers[group_.rank],
                                    bytes, cudaMemcpyDeviceToDevice, place_.stream));
    }
    KOHO_CUDA_TRY(cudaEventRecord(end, place_.stream));
    KOHO_CUDA_TRY(cudaStreamSynchronize(place_.stream));
    float ms = 0.0F;
    KOHO_CUDA_TRY(cudaEventElapsedTime(&ms, begin, end));
    KOHO_CUDA_TRY(cudaEventDestroy(begin));
    KOHO_CUDA_TRY(cudaEventDestroy(end));
    gb_per_s = kCopies * static_cast<double>(bytes) / (1e6 * ms);
  }
  KOHO_TRY_ASSIGN(const std::vector<double> all, all_gather_values(*rendezvous_, gb_per_s));
  if (group_.rank != 0) return {};
  const auto [low, high] = std::ranges::minmax(all);
  log::info("collectives through peer memory: {}{}", links_.description(),
            high > 0.0 ? fmt::format(", {:.0f} to {:.0f} GB/s to the next rank", low, high) : "");
  return {};
}

Status PeerCommunicator::all_reduce(TensorView values) {
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(launch_all_reduce({.group = &group_,
                                   .x = bf16(values),
                                   .out = values.as<Bf16>(),
                                   .elements = values.elements()},
                                  place_.stream));
  return {};
}

Result<bool> PeerCommunicator::all_reduce_add_norm(const Activation& out,
                                                   TensorView residual,
                                                   TensorView block_output,
                                                   ConstTensorView weight,
                                                   float eps) {
  const RowOutputs outputs = row_outputs_of(out);
  const AllReduceNorm reduce{.group = &group_,
                             .x = bf16(block_output),
                             .residual = residual.as<Bf16>(),
                             .residual_stride = residual.stride(0),
                             .weight = bf16(weight),
                             .eps = eps,
                             .rows = residual.size(0),
                             .width = residual.size(1)};
  if (!all_reduce_norm_supports(outputs, reduce)) return false;
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(launch_all_reduce_norm(outputs, reduce, place_.stream));
  return true;
}

PushRows PeerCommunicator::push_to_all() const {
  PushRows push;
  std::copy_n(group_.buffers, ranks(), push.receivers);
  push.receiver_count = static_cast<int>(ranks());
  push.first_receiver = (group_.rank + 1) % static_cast<int>(ranks());
  return push;
}

Status PeerCommunicator::copy_out(std::span<const RowTensor> tensors,
                                  std::int64_t rows,
                                  cudaStream_t stream) {
  PushRows push;
  std::ranges::copy(tensors, push.tensors);
  push.tensor_count = static_cast<int>(tensors.size());
  push.rows = rows;
  push.receiver_count = 1;  // from null: `to` is an address
  KOHO_CUDA_TRY(launch_push_rows(push, stream));
  return {};
}

Status PeerCommunicator::exchange_rows(TensorView out, ConstTensorView part) {
  KOHO_TRY(bind());
  const std::int64_t rows = part.size(0);
  const std::int64_t bytes = 4 * part.size(1);
  const std::int64_t whole = bytes * ranks();
  if (rows > sizes_.logit_rows_max || part.size(1) != sizes_.logit_columns)
    return make_error(ErrorCode::invalid_argument,
                      "{} rows of {} columns to exchange, there is room for {} of {}", rows,
                      part.size(1), sizes_.logit_rows_max, sizes_.logit_columns);
  PushRows push = push_to_all();
  push.pattern = RowPattern::owners;
  push.rows = rows;
  push.each = ceil_div(rows, ranks());
  push.tensor_count = 1;
  push.tensors[0] = {.from = address_of(part),
                     .from_stride = bytes,
                     .row_bytes = bytes,
                     .to = windows_.logits + rank() * bytes,
                     .to_stride = whole};
  KOHO_CUDA_TRY(launch_push_rows(push, place_.stream));
  KOHO_CUDA_TRY(launch_row_barrier(group_, 0, place_.stream));
  const std::array own{
      RowTensor{.from = group_.buffers[group_.rank] + windows_.logits,
                .from_stride = whole,
                .row_bytes = whole,
                .to = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(out.data)),
                .to_stride = whole}};
  return copy_out(own, out.size(0), place_.stream);
}

Status PeerCommunicator::all_gather_rows(std::span<const TensorView> tensors) {
  KOHO_TRY(bind());
  const std::int64_t rows = tensors[0].size(0);  // of all ranks
  const std::int64_t each = rows / ranks();
  PushRows push = push_to_all();
  push.rows = each;
  std::array<RowTensor, kRowTensorsMax> back;
  std::int64_t at = windows_.gathered;
  for (const TensorView& tensor : tensors) {
    const std::int64_t bytes = row_bytes_of(tensor);
    const auto i = static_cast<std::size_t>(push.tensor_count++);
    const std::int64_t mine = rank() * each * bytes;
    push.tensors[i] = {address_of(tensor) + mine, bytes, bytes, at + mine, bytes};
    back[i] = {group_.buffers[group_.rank] + at, bytes, bytes,
               static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(tensor.data)), bytes};
    at += round_up(rows * bytes, kWindowAlignment);
  }
  if (at > windows_.dispatched)
    return make_error(ErrorCode::invalid_argument, "no room to gather {} rows", rows);
  KOHO_CUDA_TRY(launch_push_rows(push, place_.stream));
  KOHO_CUDA_TRY(launch_row_barrier(group_, 0, place_.stream));
  return copy_out(std::span(back).first(tensors.size()), rows, place_.stream);
}

Result<std::int64_t> PeerCommunicator::dispatch(const RowRoutes& routes,
                                                std::span<const DispatchTensor> rows) {
  KOHO_TRY(bind());
  if (std::cmp_not_equal(routes.row_starts.size(), ranks() + 1))
    return make_error(ErrorCode::invalid_argument,
                      "GPUs need to know the rows of every rank, found {} of {}",
                      routes.row_starts.size(), ranks() + 1);
  const std::int64_t total = routes.row_starts.back();
  if (total > sizes_.tokens_max || total > rows[0].to.size(0))
    return make_error(ErrorCode::resource_exhausted, "rank {} has room for {} rows, {} may arrive",
                      rank(), std::min(sizes_.tokens_max, rows[0].to.size(0)), total);
  routes_ = routes;
  first_row_ = routes.row_starts[static_cast<std::size_t>(rank())];
  PushRows push = push_to_all();
  push.pattern = RowPattern::routed;
  push.rows = routes.ids.size(0);
  push.ids = i32(routes.ids);
  push.choices = static_cast<int>(routes.ids.size(1));
  push.ids_per_rank = routes.ids_per_rank;
  std::array<RowTensor, kRowTensorsMax> back;
  std::int64_t at = windows_.dispatched;
  for (const DispatchTensor& tensor : rows) {
    const std::int64_t bytes = row_bytes_of(tensor.to);
    const auto i = static_cast<std::size_t>(push.tensor_count++);
    push.tensors[i] = {address_of(tensor.from), bytes, bytes, at + first_row_ * bytes, bytes};
    back[i] = {group_.buffers[group_.rank] + at, bytes, bytes,
               static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(tensor.to.data)), bytes};
    at += round_up(total * bytes, kWindowAlignment);
  }
  if (at > windows_.combined)
    return make_error(ErrorCode::invalid_argument, "no room for rows of so many bytes");
  KOHO_CUDA_TRY(cudaEventRecord(fork_, place_.stream));
  KOHO_CUDA_TRY(cudaStreamWaitEvent(dispatch_stream_, fork_));
  KOHO_CUDA_TRY(launch_push_rows(push, dispatch_stream_));
  KOHO_CUDA_TRY(launch_row_barrier(group_, 1, dispatch_stream_));
  KOHO_TRY(copy_out(std::span(back).first(rows.size()), total, dispatch_stream_));
  KOHO_CUDA_TRY(cudaEventRecord(join_, dispatch_stream_));
  return total;
}

Status PeerCommunicator::wait_for_dispatch() {
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(cudaStreamWaitEvent(place_.stream, join_));
  return {};
}

Status PeerCommunicator::combine(TensorView out, ConstTensorView results) {
  KOHO_TRY(bind());
  const std::int64_t bytes = 2 * results.size(1);
  if (results.size(1) != sizes_.hidden)
    return make_error(ErrorCode::invalid_argument, "rows of {} elements to combine, expected {}",
                      results.size(1), sizes_.hidden);
  const std::array window{RowTensor{address_of(results), bytes, bytes,
                                    static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(
                                        group_.buffers[group_.rank] + windows_.combined)),
                                    bytes}};
  KOHO_TRY(copy_out(window, results.size(0), place_.stream));
  KOHO_CUDA_TRY(launch_row_barrier(group_, 0, place_.stream));
  CombineRows combine{.out = out.as<Bf16>(),
                      .ranks = static_cast<int>(ranks()),
                      .rows = out.size(0),
                      .width = out.size(1),
                      .ids = i32(routes_.ids),
                      .choices = static_cast<int>(routes_.ids.size(1)),
                      .ids_per_rank = routes_.ids_per_rank};
  for (int rank = 0; rank < combine.ranks; ++rank)
    combine.results[rank] = group_.buffers[rank] + windows_.combined + first_row_ * bytes;
  KOHO_CUDA_TRY(launch_combine_rows(combine, place_.stream));
  return {};
}

Status PeerCommunicator::check() {
  const CollectiveFault fault = host_->fault();
  switch (static_cast<FaultKind>(fault.kind)) {
    case FaultKind::none:
      return {};
    case FaultKind::timed_out:
      return make_error(ErrorCode::unavailable,
                        "rank {} waited {} s for rank {} in {} (channel {}, epoch {})", fault.rank,
                        kTimeoutNs / 1'000'000'000, fault.waited_for, phase_name(fault.phase),
                        fault.channel, fault.epoch);
    case FaultKind::aborted_by_peer:
      return make_error(ErrorCode::unavailable,
                        "another rank ended the collectives; rank {} waited for rank {} in {}",
                        fault.rank, fault.waited_for, phase_name(fault.phase));
    case FaultKind::aborted_by_host:
      break;
  }
  return make_error(ErrorCode::unavailable,
                    "the collectives were given up; rank {} waited for rank {} in {}", fault.rank,
                    fault.waited_for, phase_name(fault.phase));
}

void PeerCommunicator::give_up() {
  gave_up_ = true;
  host_->end_waits();
  for (const std::shared_ptr<HostState>& state : same_process_) state->end_waits();
  const bool others = same_process_.size() < links_.places.size() && !mapped_.empty();
  // Where the GPU does not answer, the other processes' waits time out.
  if (others && bind().ok()) static_cast<void>(launch_abort_group(group_, abort_stream_));
}

}  // namespace koho::cuda
