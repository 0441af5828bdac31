// SPDX-License-Identifier: Apache-2.0
#include "bench/operator_bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <thread>

#include <fmt/format.h>

#include "base/log.h"
#include "bench/median.h"
#include "bench/operator_check.h"
#include "bench/result_file.h"

namespace koho::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Of a call's FLOPs at the nominal rate; 0 if that is not known.
double flops_us(const OperatorRun& op_run, const Ceilings& ceilings) {
  const double peak =
      op_run.math == DType::f8_e4m3 ? ceilings.fp8_per_second : ceilings.bf16_per_second;
  return peak > 0.0 ? 1e6 * op_run.flops / peak : 0.0;
}

/// The least time of a call, by what is known of the device; 0 if nothing is.
double floor_us(const OperatorRun& op_run, const Ceilings& ceilings) {
  const double reading =
      ceilings.bytes_per_second > 0.0 ? 1e6 * op_run.bytes / ceilings.bytes_per_second : 0.0;
  return std::max(reading, flops_us(op_run, ceilings));
}

/// How a call is timed: many in a graph, of milliseconds. What a graph takes to begin and end, and
/// the host to see it (65 to 100 us), is no call's: a GPU's graph takes what two in a row do, less
/// one alone. A card at its power limit lowers its clock, by up to a quarter, after 25 to 60 ms
/// (docs/kernels/hopper.md): long calls, and those of many FLOPs, are timed in bursts of less,
/// each from rest; sustained, when the clock has settled.
struct Timing {
  const char* name;  // for the file
  double graph_us;   // at the floor
  int warm;          // graphs before the first reading; from rest before each
  int readings;      // of one graph, and of two
  std::chrono::milliseconds rest;
  bool two = true;
};

Timing timing_of(const OperatorRun& op_run, const Ceilings& ceilings, bool sustained) {
  constexpr double kShortUs = 20.0;
  constexpr double kManyFlops = 0.25;  // 60 tokens of an FP8 layer
  if (ceilings.bytes_per_second == 0.0) return {"15 readings", 6000.0, 1, 15, {}, false};
  if (sustained) return {"sustained", 6000.0, 80, 9, {}};
  const double floor = floor_us(op_run, ceilings);
  const bool hot = floor >= kShortUs || flops_us(op_run, ceilings) >= kManyFlops * floor;
  if (!hot) return {"9 readings", 6000.0, 1, 9, {}};
  return {"3 readings from rest", 4000.0, 1, 3, std::chrono::milliseconds(50)};
}

std::int64_t calls_of(const OperatorRun& op_run, const Ceilings& ceilings, double graph_us) {
  constexpr double kLaunchUs = 3.0;
  // Without ceilings: a CPU.
  const double least = ceilings.bytes_per_second > 0.0 ? floor_us(op_run, ceilings)
                                                       : op_run.bytes / 1e4 + op_run.flops / 1e5;
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(graph_us / (least + kLaunchUs)), 4,
                                  2000);
}

/// Microseconds of one call.
Result<double> time_call(Backend& backend,
                         const OperatorRun& op_run,
                         std::int64_t calls,
                         const Timing& timing) {
  const auto call = [&](std::int64_t i) { return op_run.run(Side::measured, {0, op_run.rows}, i); };
  KOHO_TRY(call(0));
  KOHO_TRY(backend.synchronize());
  KOHO_TRY_ASSIGN(const std::unique_ptr<CapturedGraph> graph, backend.capture([&]() -> Status {
    for (std::int64_t i = 0; i < calls; ++i) KOHO_TRY(call(i));
    return {};
  }));
  const auto time_graphs = [&](int count) -> Result<double> {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < count; ++i) KOHO_TRY(graph->replay());
    KOHO_TRY(backend.synchronize());
    return 1e6 * seconds_since(start);
  };
  const bool from_rest = timing.rest.count() > 0;
  std::vector<double> times[2];  // of one graph, of two
  for (int reading = 0; reading < timing.readings; ++reading) {
    for (int more = 0; more < (timing.two ? 2 : 1); ++more) {
      if (op_run.counts) KOHO_TRY(restore_changed(backend, Side::measured, op_run));
      std::this_thread::sleep_for(timing.rest);
      const int warm = from_rest || (reading == 0 && more == 0) ? timing.warm : 0;
      for (int i = 0; i < warm; ++i) KOHO_TRY(time_graphs(1));
      KOHO_TRY_ASSIGN(const double us, time_graphs(1 + more));
      times[more].push_back(us);
    }
  }
  const double taken = timing.two ? median(times[1]) - median(times[0]) : median(times[0]);
  return taken / static_cast<double>(calls);
}

std::string shape_text(const OperatorRun& op_run, bool json) {
  std::string text;
  for (const auto& [name, value] : op_run.shape)
    text += json ? fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", name, value)
                 : fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  return text;
}

/// "12.3", or `otherwise` of what no ceiling is known for.
std::string percent(double value, const char* otherwise) {
  return value > 0.0 ? fmt::format("{:.1f}", value) : otherwise;
}

Error nothing_chosen(const OperatorBenchOptions& options) {
  std::string there;
  for (const OperatorCase& bench_case : operator_cases())
    if (!bench_case.tokens.empty() && bench_case.name.find(options.only) != std::string::npos)
      there += fmt::format("\n  {}: {} tokens", bench_case.name, fmt::join(bench_case.tokens, ","));
  if (!there.empty())
    return make_error(ErrorCode::invalid_argument, "no chosen case has {} tokens:{}",
                      options.tokens, there);
  for (const OperatorCase& bench_case : operator_cases())
    if (!bench_case.tokens.empty()) there += " " + bench_case.name;
  return make_error(ErrorCode::invalid_argument, "no case has \"{}\" in its name:{}", options.only,
                    there);
}

/// The cases asked for, each with those of its numbers of tokens. Errors: as check_choice.
Result<std::vector<OperatorCase>> chosen_cases(const OperatorBenchOptions& options) {
  if (options.tokens.find_first_not_of("0123456789,") != std::string::npos)
    return make_error(ErrorCode::invalid_argument,
                      "--tokens must be numbers: 1,16,64, found \"{}\"", options.tokens);
  std::vector<OperatorCase> chosen;
  for (OperatorCase bench_case : operator_cases()) {
    if (bench_case.tokens.empty()) continue;  // of random shapes
    if (bench_case.name.find(options.only) == std::string::npos) continue;
    if (!options.tokens.empty())
      std::erase_if(bench_case.tokens, [&options](std::int64_t count) {
        return ("," + options.tokens + ",").find(fmt::format(",{},", count)) == std::string::npos;
      });
    if (!bench_case.tokens.empty()) chosen.push_back(std::move(bench_case));
  }
  if (chosen.empty()) return nothing_chosen(options);
  return chosen;
}

/// A run over the list.
class OperatorBench {
 public:
  OperatorBench(Backend& measured, Backend& reference, const OperatorBenchOptions& options)
      : options_(options),
        site_{measured, &reference,
              measured.supports_graphs() && options.time ? kRotatedBytes : 0.0} {}

  Status run() {
    const Clock::time_point start = Clock::now();
    KOHO_TRY_ASSIGN(const std::vector<OperatorCase> chosen, chosen_cases(options_));
    for (const OperatorCase& bench_case : chosen) KOHO_TRY(run_case(bench_case));
    std::printf("-- %lld cases, %lld wrong: %.1f s, checks %.1f s of them\n",
                static_cast<long long>(cases_), static_cast<long long>(wrong_),
                seconds_since(start), check_s_);
    return {};
  }
  const std::string& rows() const { return rows_; }
  std::int64_t wrong() const { return wrong_; }

 private:
  static constexpr double kRotatedBytes = 1.2e9;  // well beyond any L2

  Status run_case(const OperatorCase& bench_case) {
    const Clock::time_point start = Clock::now();
    const Result<std::vector<OperatorRun>> built = bench_case.build(site_, bench_case.tokens);
    if (!built.ok())
      return make_error(built.error().code, "{} cannot be built: {}", bench_case.name,
                        built.error().message);
    for (const OperatorRun& op_run : *built) {
      const Status done = run_bench(bench_case.name, op_run);
      if (!done.ok())
        return make_error(done.error().code, "{} {}: {}", bench_case.name,
                          shape_text(op_run, false), done.error().message);
    }
    std::printf("-- %s took %.1f s\n", bench_case.name.c_str(), seconds_since(start));
    return {};
  }

  Status run_bench(const std::string& name, const OperatorRun& op_run) {
    ++cases_;
    std::string checked = "not checked";
    std::string checked_json = "null";
    if (options_.check) {
      const Clock::time_point start = Clock::now();
      KOHO_TRY_ASSIGN(const CheckResult result, check_operator(site_, op_run));
      check_s_ += seconds_since(start);
      if (!result.fault.empty()) {
        ++wrong_;
        std::printf("%-22s %-8.8s %-60s WRONG: %s (%.3g of the tolerance)\n", name.c_str(),
                    op_run.op.c_str(), shape_text(op_run, false).c_str(), result.fault.c_str(),
                    result.largest);
        std::fflush(stdout);
        return {};
      }
      checked = fmt::format("right: {} rows, {:.2f} of the tolerance", result.rows, result.largest);
      checked_json =
          fmt::format("{{\"rows\": {}, \"of_gate\": {:.3f}}}", result.rows, result.largest);
    }
    if (!options_.time) {
      std::printf("%-22s %-8.8s %-60s %s\n", name.c_str(), op_run.op.c_str(),
                  shape_text(op_run, false).c_str(), checked.c_str());
      std::fflush(stdout);
      return {};
    }
    const Ceilings& ceilings = options_.ceilings;
    const Timing timing = timing_of(op_run, ceilings, options_.sustained);
    KOHO_TRY_ASSIGN(
        const double us,
        time_call(site_.measured, op_run, calls_of(op_run, ceilings, timing.graph_us), timing));
    const double bandwidth = op_run.bytes / us * 1e6;
    const double of_bandwidth =
        ceilings.bytes_per_second > 0.0 ? 100.0 * bandwidth / ceilings.bytes_per_second : 0.0;
    const double of_floor = 100.0 * floor_us(op_run, ceilings) / us;
    std::printf("%-22s %-8.8s %-60s %9.2f us %6.0f GB/s %5s%% %7.1f TFLOP/s  floor %5s%%  %s\n",
                name.c_str(), op_run.op.c_str(), shape_text(op_run, false).c_str(), us,
                bandwidth / 1e9, percent(of_bandwidth, "-").c_str(), op_run.flops / us / 1e6,
                percent(of_floor, "-").c_str(), checked.c_str());
    std::fflush(stdout);
    rows_ += fmt::format(
        "{}  {{\"op\": \"{}\", \"case\": \"{}\", \"shape\": {{{}}}, \"us\": {:.2f}, "
        "\"bytes\": {:.0f}, \"flops\": {:.0f}, \"pct_of_bandwidth\": {}, \"pct_of_floor\": {}, "
        "\"timed\": \"{}\", \"checked\": {}}}",
        rows_.empty() ? "" : ",\n", op_run.op, name, shape_text(op_run, true), us, op_run.bytes,
        op_run.flops, percent(of_bandwidth, "null"), percent(of_floor, "null"), timing.name,
        checked_json);
    return {};
  }

  const OperatorBenchOptions& options_;
  BenchBackends site_;
  std::string rows_;
  std::int64_t cases_ = 0;
  std::int64_t wrong_ = 0;
  double check_s_ = 0.0;
};

}  // namespace

Ceilings ceilings_of(const std::string& name, double memory_bytes_per_second) {
  struct Known {
    const char* name;
    Ceilings ceilings;
  };
  // Reading HBM, as measured or as NVIDIA names it; operations as it names them, without sparsity.
  static const std::array<Known, 3> kKnown{
      {{"NVIDIA H200",
        {"of an H200: reads measured, operations nominal", 4.45e12, 1.979e15, 0.989e15}},
       {"NVIDIA B200", {"of a B200, nominal", 8.0e12, 4.5e15, 2.25e15}},
       {"NVIDIA H100 80GB HBM3", {"of an H100 SXM, nominal", 3.35e12, 1.979e15, 0.989e15}}}};
  for (const Known& known : kKnown)
    if (name.starts_with(known.name)) return known.ceilings;
  if (memory_bytes_per_second > 0.0)
    return {"memory clock times bus width; none known of operations", memory_bytes_per_second, 0.0,
            0.0};
  return {"none known", 0.0, 0.0, 0.0};
}

Status check_choice(const OperatorBenchOptions& options) {
  KOHO_TRY(chosen_cases(options));
  return {};
}

Status run_operator_bench(Backend& measured,
                          Backend& reference,
                          const OperatorBenchOptions& options) {
  const Ceilings& ceilings = options.ceilings;
  std::printf("-- %s, checked by %s; ceilings: %s (%.2f TB/s, FP8 %.0f and bf16 %.0f TFLOP/s)\n",
              measured.description().c_str(), reference.description().c_str(),
              ceilings.source.c_str(), ceilings.bytes_per_second / 1e12,
              ceilings.fp8_per_second / 1e12, ceilings.bf16_per_second / 1e12);
  OperatorBench bench(measured, reference, options);
  KOHO_TRY(bench.run());
  if (!options.out.empty()) {
    const std::string ceilings_json = fmt::format(
        "{{\"source\": {}, \"bytes_per_second\": {:.0f}, \"fp8_per_second\": {:.0f}, "
        "\"bf16_per_second\": {:.0f}}}",
        log::quoted(ceilings.source), ceilings.bytes_per_second, ceilings.fp8_per_second,
        ceilings.bf16_per_second);
    KOHO_TRY(write_result_file(options.out,
                               {.machine = measured.description(),
                                .commit = options.commit,
                                .command = options.command,
                                .more = {{"ceilings", ceilings_json}}},
                               bench.rows()));
  }
  if (bench.wrong() > 0)
    return make_error(ErrorCode::internal, "{} results are wrong: see WRONG above", bench.wrong());
  return {};
}

}  // namespace koho::bench
