// SPDX-License-Identifier: Apache-2.0
// `koho bench ops` of a GPU as a program of its own, which needs nothing built but two backends:
// `op_bench [--portable] [--no-check] [--no-time] [--sustained] [--only TEXT] [--tokens N,…]
// [--out FILE] [--commit HASH]`.
#include <cstdio>
#include <cstring>
#include <string>

#include "app/operator_bench.h"
#include "cpu/cpu_backend.h"
#include "cuda/cuda_backend.h"

int main(int argc, char** argv) {
  koho::app::OperatorBenchOptions options;
  bool portable = false;
  options.command = "op_bench";
  for (int i = 1; i < argc; ++i) {
    const int first = i;
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (std::strcmp(argv[i], "--portable") == 0)
      portable = true;
    else if (std::strcmp(argv[i], "--no-check") == 0)
      options.check = false;
    else if (std::strcmp(argv[i], "--no-time") == 0)
      options.time = false;
    else if (std::strcmp(argv[i], "--sustained") == 0)
      options.sustained = true;
    else if (std::strcmp(argv[i], "--only") == 0)
      options.only = value();
    else if (std::strcmp(argv[i], "--tokens") == 0)
      options.tokens = value();
    else if (std::strcmp(argv[i], "--out") == 0)
      options.out = value();
    else if (std::strcmp(argv[i], "--commit") == 0)
      options.commit = value();
    else {
      std::fprintf(stderr,
                   "usage: op_bench [--portable] [--no-check] [--no-time] [--sustained] "
                   "[--only TEXT] [--tokens N,…] [--out FILE] [--commit HASH]\n");
      return 2;
    }
    if (std::strcmp(argv[first], "--out") == 0 || std::strcmp(argv[first], "--commit") == 0)
      continue;  // not part of what makes the numbers
    for (int word = first; word <= i; ++word) options.command += std::string(" ") + argv[word];
  }
  const koho::Status status = [&]() -> koho::Status {
    KOHO_TRY(koho::app::check_choice(options));
    KOHO_TRY_ASSIGN(const koho::CudaProperties gpu, koho::cuda_properties(0));
    options.ceilings = koho::app::ceilings_of(gpu.name, gpu.memory_bytes_per_second);
    KOHO_TRY_ASSIGN(const auto measured, koho::make_cuda_backend({.portable_only = portable}));
    KOHO_TRY_ASSIGN(const auto reference, koho::make_cpu_backend({}));
    return koho::app::run_operator_bench(*measured, *reference, options);
  }();
  if (status.ok()) return 0;
  std::fprintf(stderr, "op_bench: %s\n", status.error().message.c_str());
  return koho::error_code_info(status.error().code).exit_code;
}
