// SPDX-License-Identifier: Apache-2.0
#include "comm/loopback_rank.h"

#include <algorithm>
#include <limits>

namespace koho {
namespace {

Error alone() {
  return make_error(ErrorCode::unsupported,
                    "data-parallel attention needs all ranks: one rank alone has no tokens of "
                    "others; measure it with tensor-parallel attention");
}

}  // namespace

Status LoopbackRank::all_reduce(TensorView /*values*/) {
  return {};
}

Status LoopbackRank::all_gather_columns(TensorView out, ConstTensorView part) {
  const std::int64_t rows = part.size(0);
  const std::int64_t columns = part.size(1);
  if (out.size(0) != rows || out.size(1) != ranks_ * columns)
    return make_error(ErrorCode::internal, "the gathered columns of {} ranks do not fit {}", ranks_,
                      describe(out));
  float* to = out.as<float>();
  const float* from = part.as<const float>();
  std::fill_n(to, rows * ranks_ * columns, -std::numeric_limits<float>::infinity());
  for (std::int64_t row = 0; row < rows; ++row)
    std::copy_n(from + row * columns, columns, to + (row * ranks_ + rank_) * columns);
  return {};
}

Result<std::int64_t> LoopbackRank::dispatch(const RowRoutes& /*routes*/,
                                            std::span<const DispatchTensor> /*rows*/) {
  return alone();
}

Status LoopbackRank::combine(TensorView /*out*/, ConstTensorView /*results*/) {
  return alone();
}

}  // namespace koho
