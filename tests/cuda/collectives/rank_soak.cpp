// SPDX-License-Identifier: Apache-2.0
// Many calls of few rows back to back in one replayed CUDA graph, also across the wrap of epochs.
#include "tests/cuda/collectives/rank.h"

namespace koho::cuda::collectives_bench {

/// Many calls of few rows, back to back in one graph and replayed: slots come round again and
/// again.
void Rank::soak(std::uint32_t first_epoch) {
  const double start = now_s();
  const int calls = options.processes && options.devices.size() == 1 ? 20 : 200;
  const int replays = options.rounds > 0 ? (options.rounds + calls - 1) / calls
                      : options.processes && options.devices.size() == 1 ? 2
                      : options.quick                                    ? 10
                                                                         : 40;
  reset(first_epoch);
  Case all{.rows = 0, .width = 1024, .outputs = 7};
  struct Call {
    std::int64_t first_row, rows;
    AllReduceAlgorithm algorithm;
    int ctas;  // most of a row
  };
  std::vector<Call> list;
  for (int i = 0; i < calls; ++i) {
    const std::uint32_t h = hash(options.seed * 7919 + static_cast<std::uint32_t>(i));
    // Half the calls are of so few rows that clusters take them where ranks share a GPU too.
    std::int64_t rows = 1 + h % (h >> 13 & 1U ? 12 : 3);
    if (h % 17 == 0) rows = 300 + h % 100;  // several rows a channel
    list.push_back({all.rows, rows,
                    h >> 12 & 1U || options.loopback ? AllReduceAlgorithm::one_shot
                                                     : AllReduceAlgorithm::two_shot,
                    1 << (h >> 14 & 3U)});
    all.rows += rows;
  }
  if (all.rows > 8192 * 5) fail("ERROR soak has %lld rows", static_cast<long long>(all.rows));
  const std::uint32_t seed = options.seed * 13 + 5;
  generate(x_.data<Bf16>(), seed, rank_, all, all.width);
  for (const Outputs* o : {&actual_, &expected_}) {
    poison(*o, all, true);
    generate(o->residual.data<Bf16>(), seed, -1, all, all.width);
  }
  launch_sum(stream_, expected_.sum.data<Bf16>(), seed, options.running(), all.rows, all.width);
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  cudaGraphExec_t graph = capture([&] {
    for (int i = 0; i < calls; ++i) {
      const Call& one = list[static_cast<std::size_t>(i)];
      const std::uint32_t delay =
          hash(static_cast<std::uint32_t>(i * 8 + rank_) + options.seed * 65'537);
      if (delay % 5 == 0) launch_delay(stream_, delay % 10'000);
      Case c = all;
      c.rows = one.rows;
      c.ctas = one.ctas;
      CHECK_CUDA(call(c, one.algorithm, true, one.first_row));
    }
    launch_clear(stream_, differences_);
    NormRows norm;
    norm.x = norm.residual = expected_.residual.data<Bf16>();
    norm.x_stride = all.width;
    norm.block_output = expected_.sum.data<Bf16>();
    norm.weight = weight_.data<Bf16>();
    norm.eps = kEps;
    norm.rows = all.rows;
    norm.width = all.width;
    CHECK_CUDA(launch_rms_norm(outputs_of(expected_, all), norm, stream_));
    compare(all, true, 0);
  });
  std::vector<std::string> names;
  for (const Part& part : parts_of(actual_, all, true))
    names.push_back(std::string("soak from epoch ") + std::to_string(first_epoch) + ": " +
                    part.name);
  for (int replay = 0; replay < replays; ++replay) {
    if (replay % 4 == 0) barrier();
    launch(graph);
    sync("soak");
    count_wrong(names);
  }
  CHECK_CUDA(cudaGraphExecDestroy(graph));
  barrier();
  if (rank_ == 0)
    json("\"part\":\"soak\",\"first_epoch\":%u,\"calls\":%d,\"wrong\":%lld,\"seconds\":%.1f",
         first_epoch, calls * replays, shared->wrong.load(), now_s() - start);
  barrier();
}

}  // namespace koho::cuda::collectives_bench
