// SPDX-License-Identifier: Apache-2.0
#include "comm/thread_ranks.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "tensor/number.h"

namespace koho {
namespace {

enum class Operation : std::uint8_t {
  none,
  all_reduce,
  exchange_rows,
  all_gather_rows,
  dispatch,
  combine
};

/// A rank's operand. Other ranks read it between two barriers only.
struct Operand {
  Operation operation = Operation::none;
  ConstTensorView tensor;  // what is summed, exchanged or sent back
  RowRoutes routes;
  std::span<const DispatchTensor> rows;
  std::span<const TensorView> gathered;
};

bool agree(const Operand& a, const Operand& b) {
  if (a.operation != b.operation) return false;
  switch (a.operation) {
    case Operation::all_reduce:
    case Operation::exchange_rows:
      return a.tensor.shape == b.tensor.shape;
    case Operation::all_gather_rows:
      return std::ranges::equal(a.gathered, b.gathered, {}, &TensorView::shape, &TensorView::shape);
    case Operation::dispatch:
      return a.rows.size() == b.rows.size() && a.routes.ids_per_rank == b.routes.ids_per_rank;
    default:
      return true;
  }
}

std::int64_t row_bytes(const ConstTensorView& view) {
  return (view.shape.rank() > 1 ? view.stride(0) : 1) * dtype_bytes(view.dtype);
}

/// Whether row t of `routes` goes to `rank`.
bool goes_to(const RowRoutes& routes, std::int64_t t, std::int64_t rank) {
  const std::int64_t choices = routes.ids.size(1);
  const std::int32_t* ids = routes.ids.as<std::int32_t>() + t * choices;
  return std::any_of(ids, ids + choices, [&](std::int32_t id) {
    return id >= 0 && (routes.ids_per_rank == 0 || id / routes.ids_per_rank == rank);
  });
}

}  // namespace

class ThreadRankGroup {
 public:
  ThreadRankGroup(std::int64_t ranks, std::chrono::milliseconds timeout)
      : arrived_from(static_cast<std::size_t>(ranks),
                     std::vector<std::int64_t>(static_cast<std::size_t>(ranks))),
        operands_(static_cast<std::size_t>(ranks)),
        ranks_(ranks),
        timeout_(timeout) {}

  /// Publishes this rank's operand and waits for the others', which stay until the next barrier.
  Status meet_with(std::int64_t rank, const Operand& operand) {
    operands_[static_cast<std::size_t>(rank)] = operand;
    KOHO_TRY(meet());
    for (const Operand& other : operands_) {
      if (agree(operand, other)) continue;
      Error error = make_error(
          ErrorCode::internal,
          "the ranks disagree on a collective: rank {} does operation {} on {}, another does {} on "
          "{}",
          rank, static_cast<int>(operand.operation), describe(operand.tensor),
          static_cast<int>(other.operation), describe(other.tensor));
      KOHO_TRY(meet());  // every rank sees a difference, and has read the operands
      return error;
    }
    return {};
  }

  /// The barrier: waits until every rank has arrived.
  Status meet() {
    std::unique_lock lock(mutex_);
    if (broken_) return gone();
    const std::int64_t round = round_;
    if (++arrived_ == ranks_) {
      arrived_ = 0;
      ++round_;
      all_here_.notify_all();
      return {};
    }
    const bool met = all_here_.wait_for(lock, timeout_, [&] { return round_ != round || broken_; });
    if (met && !broken_) return {};
    broken_ = true;
    all_here_.notify_all();
    return gone();
  }

  void give_up() {
    const std::lock_guard lock(mutex_);
    broken_ = true;
    all_here_.notify_all();
  }

  const std::vector<Operand>& operands() const { return operands_; }

  /// [to][from]: the first row at rank `to` that came from rank `from`, in the latest dispatch.
  /// Written by `to` before the barrier that ends the dispatch.
  std::vector<std::vector<std::int64_t>> arrived_from;

 private:
  static Error gone() {
    return make_error(ErrorCode::unavailable, "a rank left the group or did not come in time");
  }

  std::vector<Operand> operands_;  // by rank; stable between two barriers
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::int64_t ranks_;
  std::chrono::milliseconds timeout_;
  std::int64_t arrived_ = 0;
  std::int64_t round_ = 0;
  bool broken_ = false;
};

namespace {

class ThreadRank final : public Communicator {
 public:
  ThreadRank(std::shared_ptr<ThreadRankGroup> group, std::int64_t rank, std::int64_t ranks)
      : group_(std::move(group)), rank_(rank), ranks_(ranks) {}

  std::int64_t rank() const override { return rank_; }
  std::int64_t ranks() const override { return ranks_; }
  Status reserve(const CollectiveSizes& /*sizes*/) override { return {}; }
  Status meet() override { return group_->meet(); }

  Status all_reduce(TensorView values) override {
    KOHO_TRY(group_->meet_with(rank_, {Operation::all_reduce, values, {}, {}, {}}));
    const auto count = static_cast<std::size_t>(values.elements());
    rounded_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0.0F;
      for (const Operand& operand : group_->operands())
        sum += to_float(operand.tensor.as<BFloat16>()[i]);
      rounded_[i] = to_bf16(sum);
    }
    KOHO_TRY(group_->meet());  // all ranks have read the operands
    if (count > 0) std::memcpy(values.data, rounded_.data(), count * sizeof(BFloat16));
    return {};
  }

  Result<bool> all_reduce_add_norm(const Activation& /*out*/,
                                   TensorView /*residual*/,
                                   TensorView /*block_output*/,
                                   ConstTensorView /*weight*/,
                                   float /*eps*/) override {
    return false;
  }

  Status exchange_rows(TensorView out, ConstTensorView part) override {
    KOHO_TRY(group_->meet_with(rank_, {Operation::exchange_rows, part, {}, {}, {}}));
    const RowRange mine = owned_rows(part.size(0), rank_, ranks_);
    std::int64_t column = 0;
    for (const Operand& operand : group_->operands()) {
      const std::int64_t width = operand.tensor.size(1);
      const TensorView target = out.slice(1, column, width);
      for (std::int64_t row = 0; row < mine.count; ++row)
        std::memcpy(target.at(row).data, operand.tensor.at(mine.first + row).data,
                    static_cast<std::size_t>(width) * sizeof(float));
      column += width;
    }
    return group_->meet();
  }

  Status all_gather_rows(std::span<const TensorView> tensors) override {
    KOHO_TRY(group_->meet_with(rank_, {Operation::all_gather_rows, {}, {}, {}, tensors}));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::int64_t bytes = tensors[i].bytes() / ranks_;
      for (std::int64_t from = 0; from < ranks_; ++from) {
        if (from == rank_ || bytes == 0) continue;
        const Operand& operand = group_->operands()[static_cast<std::size_t>(from)];
        std::memcpy(tensors[i].data + from * bytes, operand.gathered[i].data + from * bytes,
                    static_cast<std::size_t>(bytes));
      }
    }
    return group_->meet();
  }

  Result<std::int64_t> dispatch(const RowRoutes& routes,
                                std::span<const DispatchTensor> rows) override {
    KOHO_TRY(group_->meet_with(rank_, {Operation::dispatch, {}, routes, rows, {}}));
    std::vector<std::int64_t>& starts = group_->arrived_from[static_cast<std::size_t>(rank_)];
    const std::int64_t room = rows[0].to.size(0);
    std::int64_t arrived = 0;
    for (std::size_t from = 0; from < starts.size(); ++from) {
      const Operand& operand = group_->operands()[from];
      starts[from] = arrived;
      for (std::int64_t t = 0; t < operand.routes.ids.size(0); ++t) {
        if (!goes_to(operand.routes, t, rank_)) continue;
        for (std::size_t i = 0; i < rows.size() && arrived < room; ++i) {
          const std::int64_t bytes = row_bytes(rows[i].to);
          std::memcpy(rows[i].to.data + arrived * bytes, operand.rows[i].from.data + t * bytes,
                      static_cast<std::size_t>(bytes));
        }
        ++arrived;
      }
    }
    routes_ = routes;
    KOHO_TRY(group_->meet());
    if (arrived > room)
      return make_error(ErrorCode::resource_exhausted, "rank {} has room for {} rows, {} arrive",
                        rank_, room, arrived);
    return arrived;
  }

  Status wait_for_dispatch() override { return {}; }

  Status combine(TensorView out, ConstTensorView results) override {
    KOHO_TRY(group_->meet_with(rank_, {Operation::combine, results, {}, {}, {}}));
    const auto width = static_cast<std::size_t>(out.size(1));
    next_.clear();
    for (const std::vector<std::int64_t>& starts : group_->arrived_from)
      next_.push_back(starts[static_cast<std::size_t>(rank_)]);
    sums_.resize(width);
    for (std::int64_t t = 0; t < out.size(0); ++t) {
      std::fill(sums_.begin(), sums_.end(), 0.0F);
      for (std::int64_t rank = 0; rank < ranks_; ++rank) {
        if (!goes_to(routes_, t, rank)) continue;
        const auto at = static_cast<std::size_t>(rank);
        const BFloat16* result =
            group_->operands()[at].tensor.as<BFloat16>() + next_[at]++ * out.size(1);
        for (std::size_t i = 0; i < width; ++i) sums_[i] += to_float(result[i]);
      }
      BFloat16* row = out.as<BFloat16>() + t * out.size(1);
      for (std::size_t i = 0; i < width; ++i)
        row[i] = to_bf16(to_float(row[i]) + round_to_bf16(sums_[i]));
    }
    return group_->meet();
  }

  Status check() override { return {}; }
  void give_up() override { group_->give_up(); }

 private:
  std::shared_ptr<ThreadRankGroup> group_;
  std::int64_t rank_;
  std::int64_t ranks_;
  RowRoutes routes_;  // of the latest dispatch
  std::vector<BFloat16> rounded_;
  std::vector<float> sums_;
  std::vector<std::int64_t> next_;  // by rank: its next result for one of our rows
};

}  // namespace

Result<std::unique_ptr<Communicator>> join_thread_ranks(Rendezvous& rendezvous,
                                                        std::chrono::milliseconds timeout) {
  // Rank 0 makes the group; the others copy its owner from an address that is valid until all have.
  std::shared_ptr<ThreadRankGroup> group;
  if (rendezvous.rank() == 0)
    group = std::make_shared<ThreadRankGroup>(rendezvous.ranks(), timeout);
  const std::shared_ptr<ThreadRankGroup>* mine = &group;
  std::vector<const std::shared_ptr<ThreadRankGroup>*> all(
      static_cast<std::size_t>(rendezvous.ranks()));
  KOHO_TRY(rendezvous.all_gather(std::as_bytes(std::span(&mine, 1)),
                                 std::as_writable_bytes(std::span(all))));
  if (rendezvous.rank() != 0) group = *all[0];
  KOHO_TRY(rendezvous.all_gather(std::as_bytes(std::span(&mine, 1)),
                                 std::as_writable_bytes(std::span(all))));
  return std::unique_ptr<Communicator>(
      std::make_unique<ThreadRank>(std::move(group), rendezvous.rank(), rendezvous.ranks()));
}

std::vector<std::unique_ptr<Communicator>> make_thread_ranks(std::int64_t ranks,
                                                             std::chrono::milliseconds timeout) {
  auto group = std::make_shared<ThreadRankGroup>(ranks, timeout);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    communicators.push_back(std::make_unique<ThreadRank>(group, rank, ranks));
  return communicators;
}

}  // namespace koho
