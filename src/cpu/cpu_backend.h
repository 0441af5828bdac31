// SPDX-License-Identifier: Apache-2.0
// The CPU backend: every operator of ops/backend.h, on weights that it reads where the checkpoint
// is mapped. A plain table of inner loops says what each operator means; vector tables (AVX2,
// AVX-512, BF16, AMX) are chosen at run time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"
#include "ops/backend.h"

namespace koho {

/// Which instructions the CPU backend uses. Within one of them a row has the same bits in every
/// batch; between two of them bits differ.
enum class CpuIsa : std::uint8_t { automatic, scalar, avx2, avx512, avx512_bf16, amx };

struct CpuOptions {
  int threads = 0;  // 0 = one a core
  CpuIsa isa = CpuIsa::automatic;
};

/// The instruction sets this machine has, `scalar` first, best last.
std::vector<CpuIsa> supported_cpu_isas();

/// Errors: invalid_argument (threads out of range); unsupported (this machine lacks `isa`).
Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options);

}  // namespace koho
