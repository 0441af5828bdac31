// SPDX-License-Identifier: Apache-2.0
// A rank's shared memory holds what it brings to the collective under way: a header, then the bytes
// of its tensors. Rank 0's also holds the barrier.
#include "comm/process_ranks.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <string>
#include <type_traits>
#include <unistd.h>
#include <vector>

#include "base/arithmetic.h"
#include "base/shared_memory.h"
#include "comm/host_ranks.h"
#include "comm/shared_barrier.h"

namespace koho {
namespace {

constexpr std::size_t kRowsMax = 16;  // tensors of a dispatch
constexpr std::size_t kAlignment = 64;

/// A tensor in a rank's memory: its view, whose data is of no use to others, and where it begins.
struct SharedTensor {
  ConstTensorView view;
  std::uint64_t offset;
};
static_assert(std::is_trivially_copyable_v<SharedTensor>);

/// The beginning of a rank's memory. Behind it: [ranks] arrived_from, then the tensors.
struct Header {
  SharedBarrierState barrier;  // rank 0's is everybody's
  std::uint64_t bytes;         // of the memory: others map it again when it has grown
  HostOperation operation;
  SharedTensor tensor;
  SharedTensor ids;
  std::int64_t ids_per_rank;
  std::uint64_t num_rows;
  std::array<SharedTensor, kRowsMax> rows;
};

/// Where a process finds another one's memory.
struct Address {
  std::int64_t pid = 0;
  std::int64_t descriptor = 0;
};

Result<SharedMemory> open_memory(const Address& at) {
  const std::string path = fmt::format("/proc/{}/fd/{}", at.pid, at.descriptor);
  Descriptor descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!descriptor.is_open())
    return make_error(ErrorCode::io_error, "another rank's memory, {}, cannot be opened: {}", path,
                      std::strerror(errno));
  return SharedMemory::open(std::move(descriptor));
}

class ProcessRankGroup final : public HostRankGroup {
 public:
  static Result<std::unique_ptr<ProcessRankGroup>> join(Rendezvous& rendezvous,
                                                        std::chrono::milliseconds timeout) {
    std::unique_ptr<ProcessRankGroup> group(new ProcessRankGroup());
    const auto ranks = static_cast<std::size_t>(rendezvous.ranks());
    group->rank_ = static_cast<std::size_t>(rendezvous.rank());
    group->tensors_at_ = round_up(sizeof(Header) + ranks * sizeof(std::int64_t), std::size_t{4096});
    KOHO_TRY_ASSIGN(SharedMemory own, SharedMemory::create("koho rank", group->tensors_at_));
    const Address mine{.pid = getpid(), .descriptor = own.descriptor()};
    std::vector<Address> all(ranks);
    KOHO_TRY(rendezvous.all_gather(std::as_bytes(std::span(&mine, 1)),
                                   std::as_writable_bytes(std::span(all))));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (rank == group->rank_) {
        group->memories_.push_back(std::move(own));
        continue;
      }
      KOHO_TRY_ASSIGN(SharedMemory other, open_memory(all[rank]));
      if (other.bytes().size() < group->tensors_at_)
        return make_error(ErrorCode::internal, "rank {}'s memory has {} bytes", rank,
                          other.bytes().size());
      group->memories_.push_back(std::move(other));
    }
    // The barrier must not move when rank 0's memory grows: it gets a mapping of its own.
    KOHO_TRY_ASSIGN(group->barrier_memory_,
                    SharedMemory::open(
                        Descriptor(fcntl(group->memories_[0].descriptor(), F_DUPFD_CLOEXEC, 3))));
    group->barrier_.emplace(
        reinterpret_cast<Header*>(group->barrier_memory_.bytes().data())->barrier,
        rendezvous.ranks(), timeout);
    group->operands_.resize(ranks);
    group->rows_.resize(ranks * kRowsMax);
    KOHO_TRY(rendezvous.all_gather({}, {}));  // all have opened all memories
    return group;
  }

  Result<std::span<const HostOperand>> exchange(const HostOperand& mine) override {
    KOHO_TRY(show(mine));
    KOHO_TRY(meet());
    for (std::size_t rank = 0; rank < memories_.size(); ++rank) {
      if (rank == rank_) {
        operands_[rank] = mine;
      } else {
        KOHO_TRY(see(rank).with_context("what rank " + std::to_string(rank) + " brings"));
      }
    }
    return std::span<const HostOperand>(operands_);
  }

  Status meet() override { return barrier_->meet(); }

  std::span<std::int64_t> arrived_from(std::int64_t to) override {
    std::byte* memory = memories_[static_cast<std::size_t>(to)].bytes().data();
    return {reinterpret_cast<std::int64_t*>(memory + sizeof(Header)), memories_.size()};
  }

  void give_up() override { barrier_->give_up(); }

 private:
  ProcessRankGroup() = default;

  Header& header(std::size_t rank) {
    return *reinterpret_cast<Header*>(memories_[rank].bytes().data());
  }

  /// Copies this rank's operand to its memory.
  Status show(const HostOperand& mine) {
    if (mine.rows.size() > kRowsMax)
      return make_error(ErrorCode::internal, "{} tensors are dispatched at once, {} at most may be",
                        mine.rows.size(), kRowsMax);
    std::size_t bytes = tensors_at_;
    const auto place = [&bytes](const ConstTensorView& view) {
      const SharedTensor shared{.view = view, .offset = bytes};
      bytes = round_up(bytes + bytes_of(view), kAlignment);
      return shared;
    };
    Header next{};
    next.operation = mine.operation;
    next.tensor = place(mine.tensor);
    next.ids = place(mine.routes.ids);
    next.ids_per_rank = mine.routes.ids_per_rank;
    next.num_rows = mine.rows.size();
    for (std::size_t i = 0; i < mine.rows.size(); ++i) next.rows[i] = place(mine.rows[i].from);
    SharedMemory& memory = memories_[rank_];
    // Twice as much as is needed, so that it grows a few times only.
    if (bytes > memory.bytes().size()) KOHO_TRY(memory.grow(round_up(2 * bytes, kAlignment)));
    const auto copy = [&memory](const SharedTensor& shared) -> Status {
      if (shared.view.empty()) return {};
      if (!shared.view.packed())
        return make_error(ErrorCode::internal, "a collective on {}, which is not packed",
                          describe(shared.view));
      std::memcpy(memory.bytes().data() + shared.offset, shared.view.data, bytes_of(shared.view));
      return {};
    };
    KOHO_TRY(copy(next.tensor));
    KOHO_TRY(copy(next.ids));
    for (std::size_t i = 0; i < next.num_rows; ++i) KOHO_TRY(copy(next.rows[i]));
    Header& shown = header(rank_);
    shown.bytes = memory.bytes().size();
    shown.operation = next.operation;
    shown.tensor = next.tensor;
    shown.ids = next.ids;
    shown.ids_per_rank = next.ids_per_rank;
    shown.num_rows = next.num_rows;
    shown.rows = next.rows;
    return {};
  }

  /// Reads another rank's operand from its memory.
  Status see(std::size_t rank) {
    SharedMemory& memory = memories_[rank];
    if (header(rank).bytes > memory.bytes().size()) KOHO_TRY(memory.map_whole());
    const Header& shown = header(rank);
    HostOperand& operand = operands_[rank];
    const std::span<DispatchTensor> rows = std::span(rows_).subspan(rank * kRowsMax, kRowsMax);
    if (shown.num_rows > kRowsMax)
      return make_error(ErrorCode::corrupt_data, "{} tensors at once", shown.num_rows);
    operand.operation = shown.operation;
    operand.routes.ids_per_rank = shown.ids_per_rank;
    KOHO_TRY_ASSIGN(operand.tensor, view_in(memory, shown.tensor));
    KOHO_TRY_ASSIGN(operand.routes.ids, view_in(memory, shown.ids));
    for (std::size_t i = 0; i < shown.num_rows; ++i) {
      KOHO_TRY_ASSIGN(rows[i].from, view_in(memory, shown.rows[i]));
    }
    operand.rows = rows.first(shown.num_rows);
    return {};
  }

  static Result<ConstTensorView> view_in(SharedMemory& memory, const SharedTensor& shared) {
    ConstTensorView view = shared.view;
    if (view.empty()) return view;
    const std::size_t bytes = memory.bytes().size();
    if (shared.offset > bytes || bytes_of(view) > bytes - shared.offset)
      return make_error(ErrorCode::corrupt_data, "{} at {} of {} bytes", describe(view),
                        shared.offset, bytes);
    view.data = memory.bytes().data() + shared.offset;
    return view;
  }

  static std::size_t bytes_of(const ConstTensorView& view) {
    return view.empty() ? 0 : static_cast<std::size_t>(view.bytes());
  }

  std::size_t rank_ = 0;
  std::size_t tensors_at_ = 0;
  std::vector<SharedMemory> memories_;  // by rank
  SharedMemory barrier_memory_;
  std::optional<SharedBarrier> barrier_;
  std::vector<HostOperand> operands_;  // by rank
  std::vector<DispatchTensor> rows_;   // [ranks, kRowsMax] of the others
};

}  // namespace

Result<std::unique_ptr<Communicator>> join_process_ranks(Rendezvous& rendezvous,
                                                         std::chrono::milliseconds timeout) {
  KOHO_TRY_ASSIGN(std::unique_ptr<ProcessRankGroup> group,
                  ProcessRankGroup::join(rendezvous, timeout));
  return make_host_rank(std::move(group), rendezvous.rank(), rendezvous.ranks());
}

}  // namespace koho
