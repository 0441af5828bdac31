// SPDX-License-Identifier: Apache-2.0
// The CPU backend: every operator of ops/backend.h, reading weights where the checkpoint is mapped.
// A plain path that says what each operator means, and vector paths chosen at run time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"
#include "ops/backend.h"

namespace koho {

/// Which instructions the CPU backend uses. Rows are bit-identical whatever the batch within one of
/// them, not from one to the other.
enum class CpuIsa : std::uint8_t { automatic, scalar, avx2, avx512, amx };

struct CpuOptions {
  int threads = 0;  // 0 = one a core
  CpuIsa isa = CpuIsa::automatic;
};

/// The instruction sets this machine has, `scalar` first, best last.
std::vector<CpuIsa> supported_cpu_isas();

/// Errors: invalid_argument (threads out of range); unsupported (this machine lacks `isa`).
Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options);

}  // namespace koho
