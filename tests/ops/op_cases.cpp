// SPDX-License-Identifier: Apache-2.0
#include "ops/op_cases.h"

#include "ops/cases.h"

namespace koho::testing {

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> kCases = [] {
    std::vector<OpCase> all;
    for (const auto& part :
         {row_cases(), linear_cases(), attention_cases(), expert_cases(), sampling_cases()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return kCases;
}

}  // namespace koho::testing
