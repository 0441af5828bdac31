// SPDX-License-Identifier: Apache-2.0
// Worlds one after another until the seed's events are used up, and their common trace hash.
#include "simulation.h"

#include <algorithm>

#include "world.h"

namespace koho::simulation {

Report simulate(const Options& options) {
  Report report;
  Random random(mix(options.seed, 0x73696d));
  try {
    while (report.events < options.events) {
      const std::int64_t left = options.events - report.events;
      World world(random.next(), options.shrink, report);
      world.run(std::min<std::int64_t>(left, random.in(500, 8000)));
    }
  } catch (const Violation& violation) {
    report.violation = violation.what();
  }
  return report;
}

}  // namespace koho::simulation
