// SPDX-License-Identifier: Apache-2.0
// One rank is missing: all waits must end and report why, and a reset group must work again.
#include <cstdio>
#include <unistd.h>

#include "tests/cuda/collectives/rank.h"

namespace koho::cuda::collectives_bench {

/// A reset group computes the right bits again.
void Rank::check_after_fault(AllReduceAlgorithm algorithm, std::int64_t rows) {
  const Case again{.rows = rows, .width = 5120, .outputs = 7, .ctas = 2};
  launch_clear(stream_, differences_);
  generate(x_.data<Bf16>(), 123, rank_, again, again.width);
  poison(actual_, again, true);
  poison(expected_, again, true);
  generate(actual_.residual.data<Bf16>(), 123, -1, again, again.stride());
  CHECK_CUDA(call(again, algorithm, true));
  reference(again, 123, true);
  compare(again, true, 0);
  sync("after a fault");
  std::vector<std::string> names;
  for (const Part& part : parts_of(actual_, again, true))
    names.push_back(std::string("after a fault: ") + part.name);
  count_wrong(names);
}

/// The last rank does not come: the waits time out, a host aborts, or that
/// rank aborts the group.
void Rank::faults() {
  const std::uint64_t timeout = group_.timeout_ns;
  const int missing = options.ranks - 1;
  const char* ways[] = {"never_comes", "host_aborts", "rank_aborts"};
  struct Form {
    AllReduceAlgorithm algorithm;
    std::int64_t rows;
    const char* name;
  };
  const Form forms[] = {{AllReduceAlgorithm::one_shot, 140, "one_shot"},
                        {AllReduceAlgorithm::one_shot, 1, "one_shot, few"},
                        {AllReduceAlgorithm::two_shot, 33, "two_shot"}};
  for (int way = 0; way < 3; ++way) {
    for (const auto& [algorithm, rows, name] : forms) {
      reset(0);
      group_.timeout_ns = way == 0 ? 200'000'000ULL : 20'000'000'000ULL;
      const Case c{.rows = rows, .width = 5120, .outputs = 7, .ctas = 2};
      generate(x_.data<Bf16>(), 99, rank_, c, c.width);
      generate(actual_.residual.data<Bf16>(), 99, -1, c, c.stride());
      CHECK_CUDA(cudaStreamSynchronize(stream_));
      barrier();
      const double start = now_s();
      if (rank_ != missing)
        for (int i = 0; i < 20; ++i) CHECK_CUDA(call(c, algorithm, true));
      if (way == 1 && rank_ == 0) {
        usleep(50'000);
        *const_cast<volatile std::uint32_t*>(&host_state_->abort) = 1;
      }
      if (way == 2 && rank_ == missing) {
        usleep(50'000);
        CHECK_CUDA(launch_abort_group(group_, stream_));
      }
      CHECK_CUDA(cudaStreamSynchronize(stream_));
      const double seconds = now_s() - start;
      const CollectiveFault fault = host_state_->fault;
      bool good =
          rank_ == missing || (fault.kind != 0 && fault.rank == static_cast<unsigned>(rank_) &&
                               fault.waited_for != fault.rank && seconds < 1.0);
      if (rank_ != missing && algorithm == AllReduceAlgorithm::one_shot && way == 0)
        good = good && fault.waited_for == static_cast<unsigned>(missing);
      if (!good) {
        shared->wrong.fetch_add(1);
        std::printf("WRONG fault %s: %s after %.3f s\n", ways[way], described(fault).c_str(),
                    seconds);
      }
      const double slowest = largest(rank_, rank_ == missing ? 0 : seconds);
      // A rank that timed out waiting for an addend names the missing rank.
      const double named =
          largest(rank_, fault.kind == static_cast<unsigned>(FaultKind::timed_out) &&
                                 fault.waited_for == static_cast<unsigned>(missing)
                             ? 1
                             : 0);
      if (way == 0 && named == 0 && rank_ == 0) {
        shared->wrong.fetch_add(1);
        std::printf("WRONG fault: no rank names the missing one\n");
      }
      if (rank_ == 0)
        json(
            "\"part\":\"faults\",\"way\":\"%s\",\"algorithm\":\"%s\",\"seconds\":%.3f,\"says\":\"%"
            "s\"",
            ways[way], name, slowest, described(fault).c_str());
      group_.timeout_ns = timeout;
      reset(12'345);
      check_after_fault(algorithm, rows + 7);
      check_after_fault(algorithm, rows);
    }
  }
  barrier();
}

}  // namespace koho::cuda::collectives_bench
