// SPDX-License-Identifier: Apache-2.0
#include "comm/loopback_rank.h"

#include <algorithm>

namespace koho {
namespace {

Error alone() {
  return make_error(ErrorCode::unsupported,
                    "data-parallel attention needs all ranks: one rank alone has no tokens of "
                    "others; measure it with tensor-parallel attention");
}

}  // namespace

Status LoopbackRendezvous::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  if (mine.size() > kBytesMax || all.size() != static_cast<std::size_t>(ranks_) * mine.size())
    return make_error(ErrorCode::invalid_argument, "{} bytes of each of {} ranks into {}",
                      mine.size(), ranks_, all.size());
  for (std::size_t at = 0; at < all.size(); at += mine.size())
    std::ranges::copy(mine, all.begin() + static_cast<std::ptrdiff_t>(at));
  return {};
}

Status LoopbackRank::exchange_rows(TensorView out, ConstTensorView part) {
  const RowRange own = owned_rows(part.size(0), rank_, ranks_);
  const std::int64_t columns = part.size(1);
  if (out.size(0) != own.count || out.size(1) != ranks_ * columns)
    return make_error(ErrorCode::internal, "the exchanged rows of {} ranks do not fit {}", ranks_,
                      describe(out));
  float* to = out.as<float>();
  std::fill_n(to, out.elements(), 0.0F);
  for (std::int64_t row = 0; row < own.count; ++row)
    std::copy_n(part.as<const float>() + (own.first + row) * columns, columns,
                to + (row * ranks_ + rank_) * columns);
  return {};
}

Status LoopbackRank::all_gather_rows(std::span<const TensorView> tensors) {
  for (const TensorView& tensor : tensors) {
    const std::int64_t bytes = tensor.bytes() / ranks_;
    std::fill_n(tensor.data, rank_ * bytes, std::byte{});
    std::fill_n(tensor.data + (rank_ + 1) * bytes, (ranks_ - rank_ - 1) * bytes, std::byte{});
  }
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
