// SPDX-License-Identifier: Apache-2.0
#include "comm/one_rank.h"

namespace koho {
namespace {

Error nobody() {
  return make_error(ErrorCode::internal, "one rank has no other to exchange rows with");
}

}  // namespace

Status OneRank::exchange_rows(TensorView /*out*/, ConstTensorView /*part*/) {
  return nobody();
}

Status OneRank::all_gather_rows(std::span<const TensorView> /*tensors*/) {
  return nobody();
}

Result<std::int64_t> OneRank::dispatch(const RowRoutes& /*routes*/,
                                       std::span<const DispatchTensor> /*rows*/) {
  return nobody();
}

Status OneRank::wait_for_dispatch() {
  return nobody();
}

Status OneRank::combine(TensorView /*out*/, ConstTensorView /*results*/) {
  return nobody();
}

}  // namespace koho
