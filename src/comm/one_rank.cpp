// SPDX-License-Identifier: Apache-2.0
#include "comm/one_rank.h"

namespace koho {

Status OneRank::all_reduce(TensorView /*values*/) {
  return {};
}

Status OneRank::all_gather_columns(TensorView out, ConstTensorView part) {
  if (out.data == part.data && out.shape == part.shape) return {};
  return make_error(ErrorCode::internal, "one rank gathers in place only");
}

Result<std::int64_t> OneRank::dispatch(const RowRoutes& /*routes*/,
                                       std::span<const DispatchTensor> /*rows*/) {
  return make_error(ErrorCode::internal, "one rank sends nothing");
}

Status OneRank::combine(TensorView /*out*/, ConstTensorView /*results*/) {
  return make_error(ErrorCode::internal, "one rank receives nothing");
}

}  // namespace koho
