// SPDX-License-Identifier: Apache-2.0
// `koho bench ops` of a build without CUDA: says so.
#include "app/command.h"

namespace koho::app {

Runner add_bench_ops(CommandLine& command) {
  command.footer("Needs a build with CUDA.");
  return [] {
    return Status(
        make_error(ErrorCode::unsupported,
                   "koho bench ops times a GPU's kernels, and this build is without CUDA: "
                   "configure with the preset cuda"));
  };
}

}  // namespace koho::app
