// SPDX-License-Identifier: Apache-2.0
// The CPU backend with every instruction set of this machine.
#include "cpu/cpu_backend.h"
#include "tests/golden/backends.h"

namespace koho::testing {
namespace {

const char* isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::automatic:
      return "automatic";
    case CpuIsa::scalar:
      return "plain";
    case CpuIsa::avx2:
      return "avx2";
    case CpuIsa::avx512:
      return "avx512";
    case CpuIsa::avx512_bf16:
      return "avx512_bf16";
    case CpuIsa::amx:
      return "amx";
  }
  return "unknown";
}

}  // namespace

std::vector<GoldenBackend> golden_backends() {
  std::vector<GoldenBackend> backends;
  for (const CpuIsa isa : supported_cpu_isas())
    backends.push_back({isa_name(isa), isa == supported_cpu_isas().back(),
                        [isa] { return make_cpu_backend({.threads = 2, .isa = isa}); }});
  return backends;
}

}  // namespace koho::testing
