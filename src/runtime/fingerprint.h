// SPDX-License-Identifier: Apache-2.0
// A name for what computes answers: the same name and seed give the same answer, as far as the mode
// promises.
#pragma once

#include <string>

#include "runtime/runtime.h"

namespace koho {

/// "fp_" and 16 hexadecimal digits: of the weights, as far as their names, forms and some of their
/// bytes tell, and of the choices that change numbers. Cost: a few milliseconds.
std::string fingerprint_of(const Runtime& runtime);

}  // namespace koho
