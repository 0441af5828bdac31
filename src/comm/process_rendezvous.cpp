// SPDX-License-Identifier: Apache-2.0
// A barrier, then each rank's part.
#include "comm/process_rendezvous.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "comm/shared_barrier.h"

namespace koho {
namespace {

struct Part {
  std::uint64_t size;
  std::array<std::byte, Rendezvous::kBytesMax> bytes;
};

constexpr std::size_t kPartsAt = 64;
static_assert(sizeof(SharedBarrierState) <= kPartsAt && std::is_trivially_copyable_v<Part>);

class ProcessRendezvous final : public Rendezvous {
 public:
  ProcessRendezvous(std::span<std::byte> shared,
                    std::int64_t rank,
                    std::int64_t ranks,
                    std::chrono::milliseconds timeout)
      : barrier_(*reinterpret_cast<SharedBarrierState*>(shared.data()), ranks, timeout),
        parts_(reinterpret_cast<Part*>(shared.data() + kPartsAt), static_cast<std::size_t>(ranks)),
        rank_(rank) {}

  std::int64_t rank() const override { return rank_; }
  std::int64_t ranks() const override { return std::ssize(parts_); }

  Status all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (mine.size() > kBytesMax || all.size() != mine.size() * parts_.size())
      return make_error(ErrorCode::invalid_argument,
                        "{} bytes of each of {} ranks do not fit in {} (a rank has {} at most)",
                        mine.size(), parts_.size(), all.size(), kBytesMax);
    Part& part = parts_[static_cast<std::size_t>(rank_)];
    part.size = mine.size();
    std::ranges::copy(mine, part.bytes.begin());
    KOHO_TRY(barrier_.meet());
    const bool equal =
        std::ranges::all_of(parts_, [&](const Part& other) { return other.size == mine.size(); });
    auto to = all.begin();
    for (const Part& other : parts_)
      if (equal) to = std::copy_n(other.bytes.begin(), mine.size(), to);
    KOHO_TRY(barrier_.meet());  // all ranks have read the parts
    if (equal) return {};
    return make_error(ErrorCode::internal, "the ranks disagree on how many bytes they exchange");
  }

  void give_up() override { barrier_.give_up(); }

 private:
  SharedBarrier barrier_;
  std::span<Part> parts_;
  std::int64_t rank_;
};

}  // namespace

std::size_t process_rendezvous_bytes(std::int64_t ranks) {
  return kPartsAt + static_cast<std::size_t>(ranks) * sizeof(Part);
}

std::unique_ptr<Rendezvous> make_process_rendezvous(std::span<std::byte> shared,
                                                    std::int64_t rank,
                                                    std::int64_t ranks,
                                                    std::chrono::milliseconds timeout) {
  KOHO_CHECK_LE(process_rendezvous_bytes(ranks), shared.size());
  return std::make_unique<ProcessRendezvous>(shared, rank, ranks, timeout);
}

}  // namespace koho
