// SPDX-License-Identifier: Apache-2.0
// The communicator of a replica of one rank: an all-reduce and an all-gather of one rank's part are
// that part.
#pragma once

#include "comm/communicator.h"

namespace koho {

class OneRank final : public Communicator {
 public:
  std::int64_t rank() const override { return 0; }
  std::int64_t ranks() const override { return 1; }
  Status all_reduce(TensorView values) override;
  /// The model gathers only what was cut, and one rank cuts nothing; out and part must be the same
  /// memory.
  Status all_gather_columns(TensorView out, ConstTensorView part) override;
  /// The model sends rows only to other ranks; an error.
  Result<std::int64_t> dispatch(const RowRoutes& routes,
                                std::span<const DispatchTensor> rows) override;
  Status combine(TensorView out, ConstTensorView results) override;
  void give_up() override {}
};

}  // namespace koho
