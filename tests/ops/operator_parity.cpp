// SPDX-License-Identifier: Apache-2.0
#include "ops/operator_parity.h"

#include <memory>
#include <type_traits>
#include <variant>

#include "base/check.h"
#include "ops/reference.h"

namespace koho::testing {
namespace {

using bench::Operands;
using bench::OperatorRun;
using bench::OpOutput;
using bench::Side;

/// Puts results back to what they were before the first run.
void restore(Operands& own, const OperatorRun& run) {
  for (const OpOutput& output : run.outputs) {
    own.restore(output.view.measured, output.before);
    if (!output.scales.measured.empty()) own.restore(output.scales.measured, {});
  }
}

Status run_all(const OperatorRun& run) {
  return run.run(Side::measured, {0, run.rows}, 0);
}

/// Runs a row in arrays of its own, twice: its bits are those of the batch.
std::string check_row_alone(Operands& own,
                            const Result<OperatorRun>& alone,
                            const Results& results,
                            std::int64_t row) {
  const std::string name = "row " + std::to_string(row) + " alone";
  if (!alone.ok()) return fault_of(name, alone.error());
  std::string faults;
  for (const char* time : {"", " again"}) {
    restore(own, *alone);
    faults += fault_of(alone->op + ", " + name, run_all(*alone));
    faults += Results(own, *alone).compare_row(name + time, results, row);
  }
  return faults;
}

}  // namespace

Results::Results(const Operands& own, const OperatorRun& run) {
  for (const OpOutput& output : run.outputs) {
    results_.emplace_back(output.name, own.get(output.view.measured));
    if (!output.scales.measured.empty())
      results_.emplace_back(output.name + ".scales", own.get(output.scales.measured));
  }
}

const HostTensor* Results::find(const std::string& name) const {
  for (const auto& [its_name, values] : results_)
    if (its_name == name) return &values;
  return nullptr;
}

const HostTensor& Results::at(const std::string& name) const {
  const HostTensor* found = find(name);
  KOHO_CHECK(found != nullptr);
  return *found;
}

std::string Results::compare(const std::string& among,
                             const Results& others,
                             std::int64_t except_row) const {
  std::string faults;
  for (const auto& [name, values] : results_) {
    const HostTensor& expected = others.at(name);
    HostTensor got = values;
    if (except_row >= 0) bench::copy_row(expected, except_row, got);
    faults += compare_bits(name + " " + among, got, expected);
  }
  return faults;
}

std::string Results::compare_row(const std::string& among,
                                 const Results& others,
                                 std::int64_t row) const {
  std::string faults;
  for (const auto& [name, values] : results_)
    faults += compare_bits(name + " of " + among, values, row_of(others.at(name), row));
  return faults;
}

std::string check_quantized(const Results& results, const std::string& name) {
  const HostTensor& values = results.at(name + ".values");
  std::string faults;
  const auto check = [&](const std::string& form, std::int64_t block) {
    if (results.has(form))
      faults +=
          compare_quantized(form, values, results.at(form), results.at(form + ".scales"), block);
  };
  check(name + ".quantized", 0);
  check(name + ".block_quantized", kQuantBlock);
  return faults;
}

std::string check_parity(const bench::OperatorCase& operator_case,
                         Backend& backend,
                         std::uint64_t seed,
                         const OpCaseOptions& options) {
  const auto own = std::make_shared<Operands>(backend, seed);
  const Result<OperatorRun> built = operator_case.build_random(own);
  if (!built.ok()) return fault_of("build", built.error());
  const OperatorRun& run = *built;
  std::string faults = fault_of(run.op, run_all(run));
  const Results results(*own, run);
  faults += std::visit(
      [&](const auto& operands) -> std::string {
        if constexpr (std::is_same_v<std::decay_t<decltype(operands)>, std::monostate>)
          return operator_case.name + " has no float64 reference\n";
        else
          return compare_reference(operands, results, options);
      },
      run.operands);

  if (!run.once) {
    restore(*own, run);
    faults += fault_of(run.op, run_all(run));
    faults += Results(*own, run).compare("run again", results);
  }
  for (const bench::SameBits& other : run.same_bits) {
    const Result<OperatorRun> same = other.build();
    if (!same.ok()) return faults + fault_of(other.name, same.error());
    faults += fault_of(run.op + " " + other.name, run_all(*same));
    faults += Results(*own, *same).compare(other.name, results, other.except_row);
  }
  if (options.batch_invariant && (!run.large_batch || options.large_batch_invariant))
    for (const std::int64_t row : run.rows_alone) {
      const bool decoded = run.row_decoded != nullptr && options.decode_matches_prefill;
      faults +=
          check_row_alone(*own, decoded ? run.row_decoded(row) : run.row_alone(row), results, row);
    }
  return faults + own->guard_fault();
}

}  // namespace koho::testing
