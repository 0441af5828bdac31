// SPDX-License-Identifier: Apache-2.0
// Bandwidth and latency of the link between two ranks, and the times of all kinds of calls.
#include <algorithm>

#include "tests/cuda/collectives/rank.h"

namespace koho::cuda::collectives_bench {

void Rank::link() {
  if (options.ranks != 2 || options.devices.size() < 2) return;
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  float ms = 0;
  const std::int64_t vectors =
      std::min<std::int64_t>(group_.layout.total_bytes - 4096, 48 << 20) / 16;
  auto* to = reinterpret_cast<uint4*>(group_.buffers[1 - rank_] + 4096);
  for (int i = 0; i < 3; ++i) launch_push(stream_, to, x_.data<uint4>(), vectors);
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  barrier();
  CHECK_CUDA(cudaEventRecord(begin, stream_));
  for (int i = 0; i < 20; ++i) launch_push(stream_, to, x_.data<uint4>(), vectors);
  CHECK_CUDA(cudaEventRecord(end, stream_));
  CHECK_CUDA(cudaEventSynchronize(end));
  CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
  const double slowest_ms = largest(rank_, ms);
  constexpr int kRounds = 2000;
  double round_trip_us = 0;
  for (int pass = 0; pass < 2; ++pass) {
    CHECK_CUDA(cudaMemsetAsync(group_.buffers[rank_] + 128, 0, 4, stream_));
    CHECK_CUDA(cudaStreamSynchronize(stream_));
    barrier();
    CHECK_CUDA(cudaEventRecord(begin, stream_));
    launch_ping(stream_, reinterpret_cast<std::uint32_t*>(group_.buffers[rank_] + 128),
                reinterpret_cast<std::uint32_t*>(group_.buffers[1 - rank_] + 128), kRounds, rank_);
    CHECK_CUDA(cudaEventRecord(end, stream_));
    CHECK_CUDA(cudaEventSynchronize(end));
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    round_trip_us = largest(rank_, ms * 1e3 / kRounds);
  }
  if (rank_ == 0)
    json("\"part\":\"link\",\"push_both_ways_gb_s\":%.0f,\"flag_round_trip_us\":%.2f",
         20.0 * static_cast<double>(vectors) * 16 / slowest_ms / 1e6, round_trip_us);
  CHECK_CUDA(cudaEventDestroy(begin));
  CHECK_CUDA(cudaEventDestroy(end));
  reset(0);
}

void Rank::times() {
  const bool alone = options.ranks_on_gpu() == 1;
  std::vector<std::int64_t> rows = {1,  2,   4,   8,   16,  24,   32,   48,   64,
                                    96, 128, 192, 256, 512, 1024, 2048, 4096, 8192};
  if (!alone || options.quick) rows = {1, 8, 64, 256};
  if (!alone && options.processes) return;  // they take turns of milliseconds
  for (const std::int64_t count : rows) {
    Case c{.rows = count, .width = 5120, .outputs = 2};
    const int calls = !alone || count > 256 ? 20 : 100;
    const int replays = 7;
    generate(x_.data<Bf16>(), 3, rank_, c, c.width);
    generate(actual_.residual.data<Bf16>(), 3, -1, c, c.width);
    CHECK_CUDA(cudaStreamSynchronize(stream_));
    const auto timed = [&](AllReduceAlgorithm algorithm, bool fused, int ctas) {
      Case one = c;
      one.ctas = ctas;
      return time(calls, replays, [&] { CHECK_CUDA(call(one, algorithm, fused)); });
    };
    double us[2][2];  // fused, two-shot
    for (const bool fused : {true, false})
      for (const AllReduceAlgorithm algorithm :
           {AllReduceAlgorithm::one_shot, AllReduceAlgorithm::two_shot})
        us[fused ? 0 : 1][algorithm == AllReduceAlgorithm::one_shot ? 0 : 1] =
            timed(algorithm, fused, 1);
    double clusters_us[4];  // of at most 2, 4 and 8 CTAs, and as many as built in
    for (int i = 0; i < 4; ++i)
      clusters_us[i] = timed(AllReduceAlgorithm::one_shot, true, i < 3 ? 2 << i : 0);
    NormRows norm;
    norm.x = norm.residual = actual_.residual.data<Bf16>();
    norm.x_stride = c.width;
    norm.block_output = actual_.sum.data<Bf16>();
    norm.weight = weight_.data<Bf16>();
    norm.eps = kEps;
    norm.rows = c.rows;
    norm.width = c.width;
    const AllReduceAlgorithm better =
        us[1][0] < us[1][1] ? AllReduceAlgorithm::one_shot : AllReduceAlgorithm::two_shot;
    const double apart = time(calls, replays, [&] {
      CHECK_CUDA(call(c, better, false));
      CHECK_CUDA(launch_rms_norm(outputs_of(actual_, c), norm, stream_));
    });
    const double norm_alone = time(calls, replays, [&] {
      CHECK_CUDA(launch_rms_norm(outputs_of(actual_, c), norm, stream_));
    });
    const double sent = 2.0 * 5120 * static_cast<double>(count) * (options.ranks - 1);
    if (rank_ == 0)
      json(
          "\"part\":\"times\",\"rows\":%lld,\"width\":5120,\"fused_one_us\":%.2f,"
          "\"fused_two_us\":%.2f,\"fused_clusters_2_4_8_us\":[%.2f,%.2f,%.2f],"
          "\"fused_one_built_in_us\":%.2f,\"plain_one_us\":%.2f,\"plain_two_us\":%.2f,"
          "\"plain_then_norm_us\":%.2f,\"norm_us\":%.2f,\"one_gb_s\":%.0f,\"two_gb_s\":%.0f",
          static_cast<long long>(count), us[0][0], us[0][1], clusters_us[0], clusters_us[1],
          clusters_us[2], clusters_us[3], us[1][0], us[1][1], apart, norm_alone,
          sent / us[1][0] / 1e3, sent * 2 / options.ranks / us[1][1] / 1e3);
  }
  barrier();
}

}  // namespace koho::cuda::collectives_bench
