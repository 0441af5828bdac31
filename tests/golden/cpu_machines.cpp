// SPDX-License-Identifier: Apache-2.0
#include "cpu/cpu_backend.h"
#include "tests/golden/machines.h"

namespace koho::testing {
namespace {

const char* isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::automatic:
      return "automatic";
    case CpuIsa::plain:
      return "plain";
    case CpuIsa::avx2:
      return "avx2";
    case CpuIsa::avx512:
      return "avx512";
    case CpuIsa::amx:
      return "amx";
  }
  return "unknown";
}

}  // namespace

std::vector<Machine> golden_machines() {
  std::vector<Machine> machines;
  for (const CpuIsa isa : supported_cpu_isas())
    machines.push_back({isa_name(isa), isa == supported_cpu_isas().back(),
                        [isa] { return make_cpu_backend({.threads = 2, .isa = isa}); }});
  return machines;
}

}  // namespace koho::testing
