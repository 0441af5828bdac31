// SPDX-License-Identifier: Apache-2.0
// How long an all-reduce takes between GPUs, from the measurements of bench/results that this build
// was made with: files named *-all-reduce*.json. Where a number of ranks was not measured, the time
// of another one is corrected by the bytes that a rank sends.
#pragma once

#include <cstdint>
#include <string>

namespace koho::bench {

struct LinkTime {
  double us = 0.0;
  std::string source;  // machine and date; what was corrected
};

/// Of one all-reduce of `bytes` among `ranks` GPUs of a host, the faster of one-shot and two-shot;
/// between measured sizes interpolated. Its launch and its local copies are in it. Requires: ranks
/// > 1.
LinkTime all_reduce_time(std::int64_t ranks, std::int64_t bytes);

}  // namespace koho::bench
