// SPDX-License-Identifier: Apache-2.0
#include "app/operator_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include <fmt/core.h>

#include "app/bench_file.h"

namespace koho::app {
namespace {

constexpr double kReadCeiling = 4.45e12;   // bytes a second, measured on an H200 (docs/kernels)
constexpr double kFp8Ceiling = 1.979e15;   // nominal FP8 operations a second
constexpr double kBf16Ceiling = 0.989e15;  // nominal bf16, of attention

double median_us(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

Result<double> time_call(Backend& backend, const OpBench& bench) {
  KOHO_TRY(bench.run(0));
  KOHO_TRY(backend.synchronize());
  KOHO_TRY_ASSIGN(const std::unique_ptr<Recording> graph, backend.record([&]() -> Status {
    for (std::int64_t i = 0; i < bench.calls; ++i) KOHO_TRY(bench.run(i));
    return {};
  }));
  std::vector<double> times;
  constexpr int kReplays = 7;
  for (int replay = 0; replay <= kReplays; ++replay) {
    const auto start = std::chrono::steady_clock::now();
    KOHO_TRY(graph->replay());
    KOHO_TRY(backend.synchronize());
    const std::chrono::duration<double, std::micro> elapsed =
        std::chrono::steady_clock::now() - start;
    if (replay > 0) times.push_back(elapsed.count() / static_cast<double>(bench.calls));
  }
  return median_us(times);
}

std::string shape_text(const OpBench& bench, bool json) {
  std::string text;
  for (const auto& [name, value] : bench.shape)
    text += json ? fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", name, value)
                 : fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  return text;
}

/// Runs all cases; returns the JSON rows.
Result<std::string> run_cases(Backend& backend, const OperatorBenchOptions& options) {
  std::string rows;
  for (const OpBenchCase& bench_case : op_bench_cases()) {
    if (bench_case.name.find(options.only) == std::string::npos) continue;
    const auto start = std::chrono::steady_clock::now();
    const Result<std::vector<OpBench>> built = bench_case.build(backend);
    if (!built.ok()) {
      std::printf("%-24s cannot be built: %s\n", bench_case.name.c_str(),
                  built.error().message.c_str());
      continue;
    }
    for (const OpBench& bench : *built) {
      const std::string tokens = fmt::format(",{},", bench.shape.at("tokens"));
      if (!options.tokens.empty() && ("," + options.tokens + ",").find(tokens) == std::string::npos)
        continue;
      const Result<double> timed = time_call(backend, bench);
      if (!timed.ok())
        return make_error(timed.error().code, "{} {}: {}", bench_case.name,
                          shape_text(bench, false), timed.error().message);
      const double us = *timed;
      const double bandwidth = bench.bytes / us * 1e6;
      const double rate = bench.flops / us * 1e6;
      const bool attention = bench.op.rfind("attention", 0) == 0;
      const double floor_us =
          1e6 * std::max(bench.bytes / kReadCeiling,
                         bench.flops / (attention ? kBf16Ceiling : kFp8Ceiling));
      std::printf("%-22s %-8.8s %-60s %9.2f us %6.0f GB/s %5.1f%% %7.1f TFLOP/s  floor %5.1f%%\n",
                  bench_case.name.c_str(), bench.op.c_str(), shape_text(bench, false).c_str(), us,
                  bandwidth / 1e9, 100.0 * bandwidth / kReadCeiling, rate / 1e12,
                  100.0 * floor_us / us);
      std::fflush(stdout);
      rows += fmt::format(
          "{}  {{\"op\": \"{}\", \"case\": \"{}\", \"shape\": {{{}}}, \"us\": {:.2f}, \"bytes\": "
          "{:.0f}, "
          "\"flops\": {:.0f}, \"pct_of_bandwidth\": {:.1f}, \"pct_of_floor\": {:.1f}}}",
          rows.empty() ? "" : ",\n", bench.op, bench_case.name, shape_text(bench, true), us,
          bench.bytes, bench.flops, 100.0 * bandwidth / kReadCeiling, 100.0 * floor_us / us);
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    std::printf("-- %s took %.1f s\n", bench_case.name.c_str(), elapsed.count());
  }
  return rows;
}

}  // namespace

Status run_operator_bench(Backend& backend, const OperatorBenchOptions& options) {
  KOHO_TRY_ASSIGN(const std::string rows, run_cases(backend, options));
  if (options.out.empty()) return {};
  return write_bench_file(options.out,
                          {.machine = backend.description(),
                           .commit = options.commit,
                           .command = options.command,
                           .more = {}},
                          rows);
}

}  // namespace koho::app
