// SPDX-License-Identifier: Apache-2.0
// Parity: one driver over the operator cases of bench/operators/. It builds a case of a random
// shape between guard bands and poisoned results, runs it on a backend, and asks
//
//   that every result is within its tolerance of the operator's float64 reference (compare.h),
//   that nothing beside the tensors was written,
//   that a second run has the same bits, and so has another call that computes the same,
//   that a row alone has the bits it has in its batch, where the backend promises that.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/operators/operator_case.h"
#include "ops/compare.h"
#include "ops/op_cases.h"

namespace koho::testing {

/// What was wrong, in words; empty = nothing. Several backends, which read each other's memory,
/// share operands and reference. Requires: the case has a random shape.
std::string check_parity(const bench::OperatorCase& operator_case,
                         const std::vector<Backend*>& backends,
                         std::uint64_t seed,
                         const OpCaseOptions& options);

/// The results of a run by name, packed, on the host.
class Results {
 public:
  Results(const bench::Operands& own, const bench::OperatorRun& run);

  /// Requires: there is one of that name.
  const HostTensor& at(const std::string& name) const { return result(name).values; }
  bool has(const std::string& name) const { return find(name) != nullptr; }
  /// Of quantised values; empty of others.
  const HostTensor& scales(const std::string& name) const { return result(name).scales; }
  /// These have the same bits in `others`, but for row `except_row`; `among` says what they are.
  std::string compare(const std::string& among,
                      const Results& others,
                      std::int64_t except_row = -1) const;
  /// These are of one row, and have the bits of row `row` in `others`. Of a result that has no
  /// rows of tokens what was written has the bits it has there.
  std::string compare_row(const std::string& among, const Results& others, std::int64_t row) const;

 private:
  struct One {
    std::string name;
    HostTensor values, scales;
    bool by_row = true;
  };
  const One* find(const std::string& name) const;
  const One& result(const std::string& name) const;

  std::vector<One> results_;
};

/// The quantised forms of `name` are those of its bf16 values, exactly.
std::string check_quantized(const Results& results, const std::string& name);

// ---- the results against float64, by operator

/// What is wrong with the results of one backend.
using Comparison = std::function<std::string(const Results& results)>;
/// Computes the reference, once for all backends. The operands and options outlive it.
Comparison compare_reference(const bench::LinearOperands& operands, const OpCaseOptions& options);
Comparison compare_reference(const bench::NormOperands& operands, const OpCaseOptions& options);
Comparison compare_reference(const bench::SiluOperands& operands, const OpCaseOptions& options);
Comparison compare_reference(const bench::LookupOperands& operands, const OpCaseOptions& options);
Comparison compare_reference(const bench::RouteOperands& operands, const OpCaseOptions& options);
Comparison compare_reference(const std::shared_ptr<const bench::QkOperands>& operands,
                             const OpCaseOptions& options);
Comparison compare_reference(const std::shared_ptr<const bench::AttentionOperands>& operands,
                             const OpCaseOptions& options);
Comparison compare_reference(const std::shared_ptr<const bench::ExpertsOperands>& operands,
                             const OpCaseOptions& options);
Comparison compare_reference(const bench::GatherInputIdsOperands& operands,
                             const OpCaseOptions& options);
Comparison compare_reference(const bench::CommitSampledOperands& operands,
                             const OpCaseOptions& options);
Comparison compare_reference(const bench::SetEntriesOperands& operands,
                             const OpCaseOptions& options);
Comparison compare_reference(const bench::CopyPagesOperands& operands,
                             const OpCaseOptions& options);
Comparison compare_reference(const bench::CountSampledOperands& operands,
                             const OpCaseOptions& options);
Comparison compare_reference(const bench::ResetCountsOperands& operands,
                             const OpCaseOptions& options);
Comparison compare_reference(const std::shared_ptr<const bench::SampleOperands>& operands,
                             const OpCaseOptions& options);

}  // namespace koho::testing
