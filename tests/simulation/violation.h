// SPDX-License-Identifier: Apache-2.0
// A broken rule, with the number under which docs/simulation.md lists it.
#pragma once

#include <stdexcept>
#include <string>

namespace koho::simulation {

class Violation : public std::runtime_error {
 public:
  Violation(int rule, const std::string& text);
};

}  // namespace koho::simulation
