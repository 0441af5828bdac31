// SPDX-License-Identifier: Apache-2.0
// The communicator of one rank of a replica whose other ranks are not there: what it would send to
// them stays in its own memory. For measurements of one rank at full size; results are those of a
// replica whose other ranks add zeros to every sum and give their part of a vocabulary no
// probability. This is the form over host memory (cuda/collectives has the one for a GPU).
#pragma once

#include "comm/communicator.h"

namespace koho {

class LoopbackRank final : public Communicator {
 public:
  /// Requires: 0 <= rank < ranks.
  LoopbackRank(std::int64_t rank, std::int64_t ranks) : rank_(rank), ranks_(ranks) {}

  std::int64_t rank() const override { return rank_; }
  std::int64_t ranks() const override { return ranks_; }
  Status all_reduce(TensorView values) override;
  Status all_gather_columns(TensorView out, ConstTensorView part) override;
  /// Errors: unsupported: which rows others would send is not known here.
  Result<std::int64_t> dispatch(const RowRoutes& routes,
                                std::span<const DispatchTensor> rows) override;
  Status combine(TensorView out, ConstTensorView results) override;
  void give_up() override {}

 private:
  std::int64_t rank_;
  std::int64_t ranks_;
};

}  // namespace koho
