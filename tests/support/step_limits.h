// SPDX-License-Identifier: Apache-2.0
// Step limits for tests of single operators: no model fills in its facts there.
#pragma once

#include "ops/backend.h"

namespace koho::testing {

/// `limits` with GLM-4.7's heads and experts on one rank, which no operator case exceeds.
inline StepLimits with_glm47_facts(StepLimits limits) {
  limits.experts_per_token = 8;
  limits.query_heads = 96;
  limits.kv_heads = 8;
  limits.head_width = 128;
  return limits;
}

}  // namespace koho::testing
