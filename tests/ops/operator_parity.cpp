// SPDX-License-Identifier: Apache-2.0
#include "ops/operator_parity.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <type_traits>
#include <utility>
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

/// Computes the float64 reference of a run.
Comparison comparison_of(const OperatorRun& run, const OpCaseOptions& options) {
  return std::visit(
      [&](const auto& operands) -> Comparison {
        if constexpr (std::is_same_v<std::decay_t<decltype(operands)>, std::monostate>)
          return [&run](const Results&) { return run.op + " has no float64 reference\n"; };
        else
          return compare_reference(operands, options);
      },
      run.operands);
}

/// A row of a case in arrays of its own. A run that says what its operands are is compared with
/// float64 as well.
struct RowAlone {
  std::int64_t row;
  Result<OperatorRun> run;
  Comparison compare;

  RowAlone(std::int64_t index, Result<OperatorRun> built, const OpCaseOptions& options)
      : row(index), run(std::move(built)) {
    if (run.ok() && !std::holds_alternative<std::monostate>(run->operands))
      compare = comparison_of(*run, options);
  }
};

/// Runs a row alone, twice: its bits are those of the batch.
std::string check_row_alone(Operands& own, const RowAlone& alone, const Results& results) {
  const std::string name = "row " + std::to_string(alone.row) + " alone";
  if (!alone.run.ok()) return fault_of(name, alone.run.error());
  std::string faults;
  for (const char* time : {"", " again"}) {
    restore(own, *alone.run);
    faults += fault_of(alone.run->op + ", " + name, run_all(*alone.run));
    faults += Results(own, *alone.run).compare_row(name + time, results, alone.row);
  }
  if (alone.compare) faults += alone.compare(Results(own, *alone.run));
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
                         const std::vector<Backend*>& backends,
                         std::uint64_t seed,
                         const OpCaseOptions& options) {
  const auto own = std::make_shared<Operands>(backends, seed);
  const Result<OperatorRun> built = operator_case.build_random(own);
  if (!built.ok()) return fault_of("build", built.error());
  const OperatorRun& run = *built;
  const Comparison compare = comparison_of(run, options);
  std::vector<Result<OperatorRun>> same_bits;
  for (const bench::SameBits& other : run.same_bits) same_bits.push_back(other.build());
  std::deque<RowAlone> rows;  // whose comparisons refer to their runs
  if (options.batch_invariant && (!run.large_batch || options.large_batch_invariant))
    for (const std::int64_t row : run.rows_alone) {
      const bool decoded = run.row_decoded != nullptr && options.decode_matches_prefill;
      rows.emplace_back(row, decoded ? run.row_decoded(row) : run.row_alone(row), options);
    }
  std::string all_faults;
  for (std::size_t i = 0; i < backends.size(); ++i) {
    own->use(i);
    if (i > 0) restore(*own, run);
    std::string faults = fault_of(run.op, run_all(run));
    const Results results(*own, run);
    faults += compare(results);
    if (!run.once) {
      restore(*own, run);
      faults += fault_of(run.op, run_all(run));
      faults += Results(*own, run).compare("run again", results);
    }
    for (std::size_t s = 0; s < same_bits.size(); ++s) {
      const bench::SameBits& other = run.same_bits[s];
      const Result<OperatorRun>& same = same_bits[s];
      if (!same.ok()) return all_faults + faults + fault_of(other.name, same.error());
      if (i > 0) restore(*own, *same);
      faults += fault_of(run.op + " " + other.name, run_all(*same));
      faults += Results(*own, *same).compare(other.name, results, other.except_row);
    }
    for (const RowAlone& row : rows) faults += check_row_alone(*own, row, results);
    faults += own->guard_fault();
    if (!faults.empty()) all_faults += backends[i]->description() + ": " + faults;
  }
  return all_faults;
}

}  // namespace koho::testing
