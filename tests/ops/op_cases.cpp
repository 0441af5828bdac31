// SPDX-License-Identifier: Apache-2.0
#include "ops/op_cases.h"

#include "bench/operators/operator_case.h"
#include "ops/operator_parity.h"

namespace koho::testing {

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> kCases = [] {
    std::vector<OpCase> all;
    for (const bench::OperatorCase& one : bench::operator_cases())
      if (one.build_random != nullptr)
        all.push_back({one.name,
                       [&one](const std::vector<Backend*>& backends, std::uint64_t seed,
                              const OpCaseOptions& options) {
                         return check_parity(one, backends, seed, options);
                       },
                       one.is_large, one.rounds_max});
    return all;
  }();
  return kCases;
}

}  // namespace koho::testing
