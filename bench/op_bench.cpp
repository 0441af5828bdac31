// SPDX-License-Identifier: Apache-2.0
// `koho bench ops` as a program of its own, which needs nothing built but the CUDA backend:
// `op_bench [--portable] [--only TEXT] [--tokens N,…] [--out FILE] [--commit HASH]`.
#include <cstdio>
#include <cstring>
#include <string>

#include "app/operator_bench.h"
#include "cuda/cuda_backend.h"

int main(int argc, char** argv) {
  koho::app::OperatorBenchOptions options;
  bool portable = false;
  options.command = "op_bench";
  for (int i = 1; i < argc; ++i) options.command += std::string(" ") + argv[i];
  for (int i = 1; i < argc; ++i) {
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (std::strcmp(argv[i], "--portable") == 0)
      portable = true;
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
                   "usage: op_bench [--portable] [--only TEXT] [--tokens N,…] [--out FILE] "
                   "[--commit HASH]\n");
      return 2;
    }
  }
  auto backend = koho::make_cuda_backend({.portable_only = portable});
  const koho::Status status = backend.ok() ? koho::app::run_operator_bench(**backend, options)
                                           : koho::Status(backend.error());
  if (status.ok()) return 0;
  std::fprintf(stderr, "op_bench: %s\n", status.error().message.c_str());
  return koho::error_code_info(status.error().code).exit_code;
}
