// SPDX-License-Identifier: Apache-2.0
// `koho bench ops`: the results and the speed of single operators at GLM-4.7's and GLM-4.5-Air's
// shapes.
#include <memory>
#include <optional>

#include "app/build_info.h"
#include "app/command.h"
#include "app/model_flags.h"
#include "bench/operator_bench.h"
#include "cuda/cuda_backend.h"
#include "worker/device.h"

namespace koho::app {
namespace {

struct OpsOptions {
  bench::OperatorBenchOptions bench;
  std::string device = "auto";
  bool portable = false;
  std::optional<bool> deterministic;
  bool no_check = false;
  bool no_time = false;
};

std::string command_of(const OpsOptions& options) {
  std::string command = "koho bench ops";
  if (options.device != "auto") command += " --device " + options.device;
  if (options.portable) command += " --portable";
  command += app::flag_text("deterministic", options.deterministic);
  if (options.no_check) command += " --no-check";
  if (options.no_time) command += " --no-time";
  if (options.bench.sustained) command += " --sustained";
  if (!options.bench.only.empty()) command += " --only " + options.bench.only;
  if (!options.bench.tokens.empty()) command += " --tokens " + options.bench.tokens;
  return command;
}

Status run(OpsOptions options) {
  KOHO_TRY(bench::check_choice(options.bench));
  KOHO_TRY_ASSIGN(const DeviceKind kind, choose_device(options.device));
  options.bench.command = command_of(options);
  options.bench.check = !options.no_check;
  options.bench.time = !options.no_time;
  if (options.bench.commit.empty()) options.bench.commit = build_info().commit;
  std::unique_ptr<Backend> measured;
  CudaProperties gpu;
  if (kind == DeviceKind::cuda) {
    KOHO_TRY_ASSIGN(gpu, cuda_properties(0));
    KOHO_TRY_ASSIGN(measured, make_cuda_backend({.portable_only = options.portable,
                                                 .deterministic = options.deterministic}));
  } else {
    KOHO_TRY_ASSIGN(measured, make_cpu_backend({}));
  }
  options.bench.ceilings = bench::ceilings_of(gpu.name, gpu.memory_bytes_per_second);
  // The CPU's own vector path is checked by its plain one.
  const CpuIsa isa = kind == DeviceKind::cuda ? CpuIsa::automatic : CpuIsa::scalar;
  KOHO_TRY_ASSIGN(const std::unique_ptr<Backend> reference, make_cpu_backend({.isa = isa}));
  return bench::run_operator_bench(*measured, *reference, options.bench);
}

}  // namespace

Runner add_bench_ops(CommandLine& command) {
  auto options = std::make_shared<OpsOptions>();
  command.add_option("--device", options->device, "auto, cpu or cuda")->capture_default_str();
  command.add_option("--only", options->bench.only, "Cases whose name contains it");
  command.add_option("--tokens", options->bench.tokens, "Only these numbers of tokens: 1,16,64");
  command.add_flag("--portable", options->portable, "The kernels that every GPU runs");
  command.add_flag("--deterministic,!--no-deterministic", options->deterministic,
                   "Without cuBLASLt (the default on Hopper)");
  command.add_flag("--no-check", options->no_check, "Only times");
  command.add_flag("--no-time", options->no_time, "Only results");
  command.add_flag("--sustained", options->bench.sustained,
                   "Half a second of each call first, until the card's clock has settled");
  command.add_option("--out", options->bench.out, "A JSON file to write");
  command.add_option("--commit", options->bench.commit,
                     "What is measured, for the file; the build's if left out");
  command.footer(
      "Each case is run once and its result compared with the CPU backend's, at its full shape: up "
      "to "
      "12 of its rows\n(the first, the last, some between), and that all were written. Then it is "
      "timed over weights that are rotated out\nof the caches. A case with a wrong result says "
      "WRONG, "
      "and the command fails.\n\nExample:\n"
      "  koho bench ops --only experts --tokens 1,16,64 --out ops.json");
  return [options] { return run(*options); };
}

}  // namespace koho::app
