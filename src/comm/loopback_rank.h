// SPDX-License-Identifier: Apache-2.0
// One rank of a replica whose other ranks are not there, for measurements at full size: what it
// would send to them stays in its own memory. Its results are those of a replica whose other ranks
// add zeros to every sum, have logits of zero and sample token 0. Here is the form over host
// memory; cuda/collectives has the one that runs a GPU's kernels.
#pragma once

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace koho {

/// Where such a rank meets the others: each of them says what it says.
class LoopbackRendezvous final : public Rendezvous {
 public:
  /// Requires: 0 <= rank < ranks.
  LoopbackRendezvous(std::int64_t rank, std::int64_t ranks) : rank_(rank), ranks_(ranks) {}

  std::int64_t rank() const override { return rank_; }
  std::int64_t ranks() const override { return ranks_; }
  Status all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  void give_up() override {}

 private:
  std::int64_t rank_;
  std::int64_t ranks_;
};

class LoopbackRank final : public Communicator {
 public:
  LoopbackRank(std::int64_t rank, std::int64_t ranks) : rank_(rank), ranks_(ranks) {}

  std::int64_t rank() const override { return rank_; }
  std::int64_t ranks() const override { return ranks_; }
  Status reserve(const CollectiveSizes& /*sizes*/) override { return {}; }
  Status meet() override { return {}; }
  Status all_reduce(TensorView /*values*/) override { return {}; }
  Status exchange_rows(TensorView out, ConstTensorView part) override;
  Status all_gather_rows(std::span<const TensorView> tensors) override;
  /// Errors: unsupported: which rows others would send is not known.
  Result<std::int64_t> dispatch(const RowRoutes& routes,
                                std::span<const DispatchTensor> rows) override;
  Status wait_for_dispatch() override { return {}; }
  Status combine(TensorView out, ConstTensorView results) override;
  Status check() override { return {}; }
  void give_up() override {}

 private:
  std::int64_t rank_;
  std::int64_t ranks_;
};

}  // namespace koho
