// SPDX-License-Identifier: Apache-2.0
// Sums, columns, rows to the ranks and back. Between two barriers every rank reads what the others
// brought.
#include "comm/host_ranks.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "tensor/number.h"

namespace koho {
namespace {

const Shape& shape_of(const DispatchTensor& tensor) {
  return tensor.from.shape;
}

bool agree(const HostOperand& a, const HostOperand& b) {
  if (a.operation != b.operation) return false;
  switch (a.operation) {
    case HostOperation::all_reduce:
    case HostOperation::exchange_rows:
      return a.tensor.shape == b.tensor.shape;
    case HostOperation::all_gather_rows:
      return std::ranges::equal(a.rows, b.rows, {}, shape_of, shape_of);
    case HostOperation::dispatch:
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

class HostRank final : public Communicator {
 public:
  HostRank(std::unique_ptr<HostRankGroup> group, std::int64_t rank, std::int64_t ranks)
      : group_(std::move(group)), rank_(rank), ranks_(ranks) {}

  std::int64_t rank() const override { return rank_; }
  std::int64_t ranks() const override { return ranks_; }
  Status reserve(const CollectiveSizes& /*sizes*/) override { return {}; }
  Status meet() override { return group_->meet(); }

  Status all_reduce(TensorView values) override {
    KOHO_TRY_ASSIGN(const Operands operands, exchange({HostOperation::all_reduce, values, {}, {}}));
    const auto count = static_cast<std::size_t>(values.elements());
    rounded_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0.0F;
      for (const HostOperand& operand : operands) sum += to_float(operand.tensor.as<BFloat16>()[i]);
      rounded_[i] = to_bf16(sum);
    }
    KOHO_TRY(group_->meet());  // all ranks have read the operands
    if (count > 0) std::memcpy(values.data, rounded_.data(), count * sizeof(BFloat16));
    return {};
  }

  Status exchange_rows(TensorView out, ConstTensorView part) override {
    KOHO_TRY_ASSIGN(const Operands operands,
                    exchange({HostOperation::exchange_rows, part, {}, {}}));
    const RowRange mine = owned_rows(part.size(0), rank_, ranks_);
    std::int64_t column = 0;
    for (const HostOperand& operand : operands) {
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
    gathered_.clear();
    for (const TensorView& tensor : tensors) {
      const std::int64_t each = tensor.size(0) / ranks_;
      gathered_.push_back({tensor.slice(0, rank_ * each, each), {}});
    }
    KOHO_TRY_ASSIGN(const Operands operands,
                    exchange({HostOperation::all_gather_rows, {}, {}, gathered_}));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::int64_t bytes = tensors[i].bytes() / ranks_;
      for (std::int64_t from = 0; from < ranks_; ++from)
        if (from != rank_ && bytes > 0)
          std::memcpy(tensors[i].data + from * bytes,
                      operands[static_cast<std::size_t>(from)].rows[i].from.data,
                      static_cast<std::size_t>(bytes));
    }
    return group_->meet();
  }

  Result<std::int64_t> dispatch(const RowRoutes& routes,
                                std::span<const DispatchTensor> rows) override {
    KOHO_TRY_ASSIGN(const Operands operands, exchange({HostOperation::dispatch, {}, routes, rows}));
    const std::span<std::int64_t> starts = group_->arrived_from(rank_);
    const std::int64_t room = rows[0].to.size(0);
    std::int64_t arrived = 0;
    for (std::size_t from = 0; from < starts.size(); ++from) {
      const HostOperand& operand = operands[from];
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
    KOHO_TRY_ASSIGN(const Operands operands, exchange({HostOperation::combine, results, {}, {}}));
    const auto width = static_cast<std::size_t>(out.size(1));
    next_.clear();
    for (std::int64_t to = 0; to < ranks_; ++to)
      next_.push_back(group_->arrived_from(to)[static_cast<std::size_t>(rank_)]);
    sums_.resize(width);
    for (std::int64_t t = 0; t < out.size(0); ++t) {
      std::fill(sums_.begin(), sums_.end(), 0.0F);
      for (std::int64_t rank = 0; rank < ranks_; ++rank) {
        if (!goes_to(routes_, t, rank)) continue;
        const auto at = static_cast<std::size_t>(rank);
        const std::int64_t from = next_[at]++;
        if (from < 0 || from >= operands[at].tensor.size(0))
          return make_error(ErrorCode::internal, "rank {} sends back {} rows, row {} is wanted",
                            rank, operands[at].tensor.size(0), from);
        const BFloat16* result = operands[at].tensor.as<BFloat16>() + from * out.size(1);
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
  using Operands = std::span<const HostOperand>;

  /// As the group's; also checks that the ranks do the same. Errors: internal.
  Result<Operands> exchange(const HostOperand& mine) {
    KOHO_TRY_ASSIGN(const Operands operands, group_->exchange(mine));
    for (const HostOperand& other : operands) {
      if (agree(mine, other)) continue;
      Error error = make_error(
          ErrorCode::internal,
          "the ranks disagree on a collective: rank {} does operation {} on {}, another does {} on "
          "{}",
          rank_, static_cast<int>(mine.operation), describe(mine.tensor),
          static_cast<int>(other.operation), describe(other.tensor));
      KOHO_TRY(group_->meet());  // every rank sees a difference, and has read the operands
      return error;
    }
    return operands;
  }

  std::unique_ptr<HostRankGroup> group_;
  std::int64_t rank_;
  std::int64_t ranks_;
  RowRoutes routes_;                      // of the latest dispatch
  std::vector<DispatchTensor> gathered_;  // this rank's rows of what is gathered
  std::vector<BFloat16> rounded_;
  std::vector<float> sums_;
  std::vector<std::int64_t> next_;  // by rank: its next result for one of our rows
};

}  // namespace

std::unique_ptr<Communicator> make_host_rank(std::unique_ptr<HostRankGroup> group,
                                             std::int64_t rank,
                                             std::int64_t ranks) {
  return std::make_unique<HostRank>(std::move(group), rank, ranks);
}

}  // namespace koho
