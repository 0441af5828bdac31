// SPDX-License-Identifier: Apache-2.0
// For machines other than x86-64: no vector tables.
#include "cpu/kernels.h"

namespace koho::cpu {

const Kernels* avx2_kernels() {
  return nullptr;
}
const Kernels* avx512_kernels() {
  return nullptr;
}
const Kernels* avx512_bf16_kernels() {
  return nullptr;
}
const Kernels* amx_kernels() {
  return nullptr;
}

}  // namespace koho::cpu
