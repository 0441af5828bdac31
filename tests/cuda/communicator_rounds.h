// SPDX-License-Identifier: Apache-2.0
// Every collective of one rank, round after round, against values that a rank can compute alone:
// what communicator_test does with ranks as threads and communicator_process_test with processes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tensor/number.h"
#include "tests/cuda/communicator_rank.h"

namespace koho::testing {

inline Status expect(bool right, const char* what, std::int64_t round) {
  return right ? Status() : make_error(ErrorCode::internal, "{}, round {}: wrong", what, round);
}

/// A value of rank r's row, the same wherever it is computed.
inline float value(std::int64_t rank, std::int64_t row, std::int64_t column, std::int64_t round) {
  return static_cast<float>((rank * 31 + row * 7 + column + round) % 64);
}

/// The fused all-reduce of every round: rows that a cluster takes, and rows that a CTA takes each.
class FusedRows {
 public:
  explicit FusedRows(Backend& backend)
      : d_block_(backend, block_),
        d_residual_(backend, residual_),
        d_normed_(backend, normed_),
        d_weight_(backend, weight_) {}

  Status enqueue(Communicator& gpu, std::int64_t round) {
    rows_ = std::array{1, 16, 2, 3}[static_cast<std::size_t>(round % 4)];
    for (std::int64_t i = 0; i < kRows * kHidden; ++i) {
      block_.as<BFloat16>()[i] = to_bf16(value(gpu.rank(), i / kHidden, i % kHidden, round));
      residual_.as<BFloat16>()[i] = to_bf16(value(gpu.ranks(), i / kHidden, i % kHidden, round));
    }
    d_block_.write();
    d_residual_.write();
    KOHO_TRY_ASSIGN(fused_,
                    gpu.all_reduce_add_norm({.values = d_normed_.view().first(rows_)},
                                            d_residual_.view().first(rows_),
                                            d_block_.view().first(rows_), d_weight_.view(), 1e-5F));
    return {};
  }
  /// The residual of the round. NCCL fuses nothing and leaves it.
  Status check(const Communicator& gpu, std::int64_t round) {
    residual_.bytes = d_residual_.read();
    for (std::int64_t i = 0; i < kRows * kHidden; ++i) {
      float sum = 0.0F;
      for (std::int64_t rank = 0; rank < gpu.ranks(); ++rank)
        sum += value(rank, i / kHidden, i % kHidden, round);
      const float before = value(gpu.ranks(), i / kHidden, i % kHidden, round);
      const float after =
          fused_ && i < rows_ * kHidden ? round_to_bf16(before + round_to_bf16(sum)) : before;
      KOHO_TRY(expect(to_float(residual_.as<BFloat16>()[i]) == after, "fused all-reduce", round));
    }
    return {};
  }

 private:
  static constexpr std::int64_t kRows = 16;
  HostTensor block_{DType::bf16, {kRows, kHidden}}, residual_{DType::bf16, {kRows, kHidden}};
  HostTensor normed_{DType::bf16, {kRows, kHidden}}, weight_{DType::bf16, {kHidden}};
  DeviceTensor d_block_, d_residual_, d_normed_, d_weight_;
  std::int64_t rows_ = 0;
  bool fused_ = false;
};

/// All collectives of one rank, `rounds` times.
inline Status run_rounds(Rendezvous& meeting, std::int64_t rounds) {
  const std::int64_t ranks = meeting.ranks();
  const std::int64_t self = meeting.rank();
  const DeviceOptions device = test_device(ranks);
  KOHO_TRY(check_devices(device, ranks));
  KOHO_TRY_ASSIGN(const auto backend,
                  make_cuda_backend({.device = device_of(device, self), .self_test = false}));
  KOHO_TRY_ASSIGN(const auto gpu, make_communicator(device, *backend, meeting));
  KOHO_TRY(gpu->reserve(sizes()));
  constexpr std::int64_t kRows = 16;
  const RowRange own = owned_rows(kRows, self, ranks);
  HostTensor sums(DType::bf16, {kRows, kHidden}), part(DType::f32, {kRows, kColumns});
  HostTensor whole(DType::f32, {own.count, kColumns * ranks}), ids(DType::i32, {ranks});
  HostTensor routes(DType::i32, {1, kChoices}), names(DType::bf16, {1, kHidden});
  HostTensor routes_to(DType::i32, {ranks, kChoices}), names_to(DType::bf16, {ranks, kHidden});
  DeviceTensor d_sums(*backend, sums), d_part(*backend, part), d_whole(*backend, whole),
      d_ids(*backend, ids), d_routes(*backend, routes), d_names(*backend, names),
      d_routes_to(*backend, routes_to), d_names_to(*backend, names_to);
  FusedRows fused_rows(*backend);
  std::vector<std::int64_t> starts;
  for (std::int64_t rank = 0; rank <= ranks; ++rank) starts.push_back(rank);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (std::int64_t i = 0; i < kRows * kHidden; ++i)
      sums.as<BFloat16>()[i] = to_bf16(value(self, i / kHidden, i % kHidden, round));
    for (std::int64_t i = 0; i < kRows * kColumns; ++i)
      part.as<float>()[i] = value(self, i / kColumns, i % kColumns, round);
    ids.as<std::int32_t>()[self] = static_cast<std::int32_t>(1000 * round + self);
    for (std::int64_t i = 0; i < kChoices; ++i)
      routes.as<std::int32_t>()[i] = static_cast<std::int32_t>(i < ranks ? i : 0);
    for (std::int64_t i = 0; i < kHidden; ++i)
      names.as<BFloat16>()[i] = to_bf16(value(self, 0, i, round));
    for (DeviceTensor* tensor : {&d_sums, &d_part, &d_whole, &d_ids, &d_routes, &d_names})
      tensor->write();
    KOHO_TRY(gpu->all_reduce(d_sums.view()));
    KOHO_TRY(fused_rows.enqueue(*gpu, round));
    KOHO_TRY(gpu->exchange_rows(d_whole.view(), d_part.view()));
    KOHO_TRY(gpu->all_gather_rows(std::array{d_ids.view()}));
    KOHO_TRY_ASSIGN(const std::int64_t came,
                    gpu->dispatch({.ids = d_routes.view(), .ids_per_rank = 1, .row_starts = starts},
                                  std::array{DispatchTensor{d_routes.view(), d_routes_to.view()},
                                             DispatchTensor{d_names.view(), d_names_to.view()}}));
    KOHO_TRY(gpu->wait_for_dispatch());
    // Every rank returns what it got, so the sender gets its row times the ranks, on top of itself.
    KOHO_TRY(gpu->combine(d_names.view(), d_names_to.view()));
    KOHO_TRY(backend->synchronize());
    KOHO_TRY(gpu->check());
    KOHO_TRY(expect(came == ranks, "the dispatched rows", round));
    KOHO_TRY(fused_rows.check(*gpu, round));
    sums.bytes = d_sums.read();
    whole.bytes = d_whole.read();
    ids.bytes = d_ids.read();
    names.bytes = d_names.read();
    for (std::int64_t i = 0; i < kRows * kHidden; ++i) {
      float sum = 0.0F;
      for (std::int64_t rank = 0; rank < ranks; ++rank)
        sum += value(rank, i / kHidden, i % kHidden, round);
      KOHO_TRY(expect(to_float(sums.as<BFloat16>()[i]) == round_to_bf16(sum), "all-reduce", round));
    }
    for (std::int64_t i = 0; i < own.count * kColumns * ranks; ++i) {
      const std::int64_t column = i % (kColumns * ranks);
      KOHO_TRY(expect(
          whole.as<float>()[i] == value(column / kColumns, own.first + i / (kColumns * ranks),
                                        column % kColumns, round),
          "exchange", round));
    }
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      KOHO_TRY(expect(ids.as<std::int32_t>()[rank] == 1000 * round + rank, "all-gather", round));
    for (std::int64_t i = 0; i < kHidden; ++i) {
      const float sent = value(self, 0, i, round);
      const float back = round_to_bf16(static_cast<float>(ranks) * sent);
      KOHO_TRY(expect(to_float(names.as<BFloat16>()[i]) == round_to_bf16(sent + back), "combine",
                      round));
    }
  }
  return gpu->meet();
}

}  // namespace koho::testing
