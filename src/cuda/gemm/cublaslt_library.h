// SPDX-License-Identifier: Apache-2.0
// Opens cuBLASLt when the first GPU backend is made, so that one program starts on machines with
// and without it.
#pragma once

#include <string_view>

#include "base/error.h"

namespace koho::cuda {

/// Opens libcublasLt once for the process; later calls return the first one's result. Call it
/// before any function of cublasLt.h. Errors: not_found: no library, or one that lacks a function;
/// says what to install. Threads: any.
Status open_cublaslt();

/// The library's function of this name. Requires: open_cublaslt() succeeded; koho calls the
/// function.
void* cublaslt_function(std::string_view name);

}  // namespace koho::cuda
