// SPDX-License-Identifier: Apache-2.0
// Collectives over host memory: the arithmetic, the same for ranks that are threads and for ranks
// that are processes, so that both give the same bits. How a rank sees what the others bring is the
// group's.
#pragma once

#include <memory>
#include <span>

#include "comm/communicator.h"

namespace koho {

enum class HostOperation : std::uint8_t {
  none,
  all_reduce,
  exchange_rows,
  all_gather_rows,
  dispatch,
  combine
};

/// What a rank brings to a collective.
struct HostOperand {
  HostOperation operation = HostOperation::none;
  ConstTensorView tensor;  // what is summed, exchanged or sent back
  RowRoutes routes;
  // What is dispatched, or a rank's own rows of what is gathered; of the others only `from` is
  // valid.
  std::span<const DispatchTensor> rows;
};

/// One rank's view of its group.
class HostRankGroup {
 public:
  virtual ~HostRankGroup() = default;
  /// Shows the others this rank's operand and waits for theirs: all ranks' operands, in rank order,
  /// which stay until the next call. Errors: unavailable; those of the memory.
  virtual Result<std::span<const HostOperand>> exchange(const HostOperand& mine) = 0;
  /// The barrier: waits until every rank has arrived. Errors: unavailable.
  virtual Status meet() = 0;
  /// [ranks] of rank `to`: the first row there that came from each rank, in the latest dispatch.
  /// `to` writes its own before the barrier that ends the dispatch.
  virtual std::span<std::int64_t> arrived_from(std::int64_t to) = 0;
  /// Threads: any.
  virtual void give_up() = 0;
};

std::unique_ptr<Communicator> make_host_rank(std::unique_ptr<HostRankGroup> group,
                                             std::int64_t rank,
                                             std::int64_t ranks);

}  // namespace koho
