// SPDX-License-Identifier: Apache-2.0
#include "ops/operator_parity.h"

#include <algorithm>
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

/// `all`, but poison where `part` is poison.
HostTensor written_of(const HostTensor& part, HostTensor all) {
  constexpr std::byte kPoison{0xFF};
  const auto size = static_cast<std::size_t>(dtype_bytes(part.dtype));
  for (std::size_t at = 0; at < part.bytes.size(); at += size) {
    const auto* element = part.bytes.data() + at;
    if (std::all_of(element, element + size, [&](std::byte one) { return one == kPoison; }))
      std::fill_n(all.bytes.begin() + static_cast<std::ptrdiff_t>(at), size, kPoison);
  }
  return all;
}

/// The results against float64.
std::string compare_with_float64(const OperatorRun& run,
                                 const Results& results,
                                 const OpCaseOptions& options) {
  return std::visit(
      [&](const auto& operands) -> std::string {
        if constexpr (std::is_same_v<std::decay_t<decltype(operands)>, std::monostate>)
          return run.op + " has no float64 reference\n";
        else
          return compare_reference(operands, results, options);
      },
      run.operands);
}

/// Runs a row in arrays of its own, twice: its bits are those of the batch. A run that says what
/// its operands are is compared with float64 as well.
std::string check_row_alone(Operands& own,
                            const Result<OperatorRun>& alone,
                            const Results& results,
                            std::int64_t row,
                            const OpCaseOptions& options) {
  const std::string name = "row " + std::to_string(row) + " alone";
  if (!alone.ok()) return fault_of(name, alone.error());
  std::string faults;
  for (const char* time : {"", " again"}) {
    restore(own, *alone);
    faults += fault_of(alone->op + ", " + name, run_all(*alone));
    faults += Results(own, *alone).compare_row(name + time, results, row);
  }
  if (!std::holds_alternative<std::monostate>(alone->operands))
    faults += compare_with_float64(*alone, Results(own, *alone), options);
  return faults;
}

}  // namespace

Results::Results(const Operands& own, const OperatorRun& run) {
  for (const OpOutput& output : run.outputs)
    results_.push_back(
        {output.name, own.get(output.view.measured),
         output.scales.measured.empty() ? HostTensor() : own.get(output.scales.measured),
         output.by_row});
}

const Results::One* Results::find(const std::string& name) const {
  for (const One& one : results_)
    if (one.name == name) return &one;
  return nullptr;
}

const Results::One& Results::result(const std::string& name) const {
  const One* found = find(name);
  KOHO_CHECK(found != nullptr);
  return *found;
}

std::string Results::compare(const std::string& among,
                             const Results& others,
                             std::int64_t except_row) const {
  std::string faults;
  const auto compare_one = [&](const std::string& name, HostTensor got,
                               const HostTensor& expected) {
    if (got.empty()) return;
    if (except_row >= 0) bench::copy_row(expected, except_row, got);
    faults += compare_bits(name + " " + among, got, expected);
  };
  for (const One& one : results_) {
    compare_one(one.name, one.values, others.at(one.name));
    compare_one(one.name + ".scales", one.scales, others.scales(one.name));
  }
  return faults;
}

std::string Results::compare_row(const std::string& among,
                                 const Results& others,
                                 std::int64_t row) const {
  std::string faults;
  const auto compare_one = [&](const One& one, const std::string& name, const HostTensor& got,
                               const HostTensor& all) {
    if (got.empty()) return;
    faults += compare_bits(name + " of " + among, got,
                           one.by_row ? row_of(all, row) : written_of(got, all));
  };
  for (const One& one : results_) {
    compare_one(one, one.name, one.values, others.at(one.name));
    compare_one(one, one.name + ".scales", one.scales, others.scales(one.name));
  }
  return faults;
}

std::string check_quantized(const Results& results, const std::string& name) {
  const HostTensor& values = results.at(name + ".values");
  std::string faults;
  const auto check = [&](const std::string& form, std::int64_t block) {
    if (results.has(form))
      faults += compare_quantized(form, values, results.at(form), results.scales(form), block);
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
  faults += compare_with_float64(run, results, options);
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
      faults += check_row_alone(*own, decoded ? run.row_decoded(row) : run.row_alone(row), results,
                                row, options);
    }
  return faults + own->guard_fault();
}

}  // namespace koho::testing
