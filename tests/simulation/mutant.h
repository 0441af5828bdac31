// SPDX-License-Identifier: Apache-2.0
// Which hand-made bug (mutations.py) the mutated sources have; the product never sees this.
#pragma once

namespace koho::simulation {

inline int active_mutant = 0;  // 0: none

inline bool mutant(int number) {
  return number == active_mutant;
}

}  // namespace koho::simulation
