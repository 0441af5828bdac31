// SPDX-License-Identifier: Apache-2.0
// `koho bench ops`: the speed of single operators at GLM-4.7's and GLM-4.5-Air's shapes.
#include <memory>

#include "app/command.h"
#include "app/operator_bench.h"
#include "cuda/cuda_backend.h"

namespace koho::app {
namespace {

struct OpsOptions {
  OperatorBenchOptions bench;
  bool portable = false;
};

Status run(OpsOptions options) {
  KOHO_TRY_ASSIGN(const std::unique_ptr<Backend> backend,
                  make_cuda_backend({.portable_only = options.portable}));
  options.bench.command =
      fmt::format("koho bench ops{}{}{}", options.portable ? " --portable" : "",
                  options.bench.only.empty() ? "" : " --only " + options.bench.only,
                  options.bench.tokens.empty() ? "" : " --tokens " + options.bench.tokens);
  return run_operator_bench(*backend, options.bench);
}

}  // namespace

Runner add_bench_ops(CommandLine& command) {
  auto options = std::make_shared<OpsOptions>();
  command.add_option("--only", options->bench.only, "Cases whose name contains it");
  command.add_option("--tokens", options->bench.tokens, "Only these numbers of tokens: 1,16,64");
  command.add_flag("--portable", options->portable, "The kernels that every GPU runs");
  command.add_option("--out", options->bench.out, "A JSON file to write");
  command.add_option("--commit", options->bench.commit, "What is measured, for the file");
  command.footer(
      "Weights are random and rotated out of the caches; ceilings are an H200's.\n\nExample:\n"
      "  koho bench ops --only experts --tokens 1,16,64 --out ops.json");
  return [options] { return run(*options); };
}

}  // namespace koho::app
