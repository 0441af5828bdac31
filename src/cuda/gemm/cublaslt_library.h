// SPDX-License-Identifier: Apache-2.0
// Opens cuBLASLt when the first GPU backend is made, so that one program starts on machines with
// and without it. cublaslt_library.cpp defines the functions of cublasLt.h that koho calls; each
// passes its arguments on to the library.
#pragma once

#include "base/error.h"

namespace koho::cuda {

/// Opens libcublasLt once for the process; later calls return the first one's result. Call it
/// before any function of cublasLt.h. Errors: not_found: no library, or one that lacks a function;
/// says what to install. Threads: any.
Status open_cublaslt();

}  // namespace koho::cuda
