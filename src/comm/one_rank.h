// SPDX-License-Identifier: Apache-2.0
// The communicator of a replica of one rank, which exchanges nothing: a sum over one rank is its
// part, and the model calls nothing else.
#pragma once

#include "comm/communicator.h"

namespace koho {

class OneRank final : public Communicator {
 public:
  std::int64_t rank() const override { return 0; }
  std::int64_t ranks() const override { return 1; }
  Status reserve(const CollectiveSizes& /*sizes*/) override { return {}; }
  Status meet() override { return {}; }
  Status all_reduce(TensorView /*values*/) override { return {}; }
  /// Errors: internal: these move rows between ranks.
  Status exchange_rows(TensorView out, ConstTensorView part) override;
  Status all_gather_rows(std::span<const TensorView> tensors) override;
  Result<std::int64_t> dispatch(const RowRoutes& routes,
                                std::span<const DispatchTensor> rows) override;
  Status wait_for_dispatch() override;
  Status combine(TensorView out, ConstTensorView results) override;
  Status check() override { return {}; }
  void give_up() override {}
};

}  // namespace koho
