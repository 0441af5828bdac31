// SPDX-License-Identifier: Apache-2.0
// `system_fingerprint` of the OpenAI API: two servers with equal fingerprints give the same answer
// to the same request and seed, as far as their mode promises it.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/runtime.h"

namespace koho {

/// "fp_" and 16 hexadecimal digits: of the weights, as far as their names, forms and some of their
/// bytes tell, and of the choices that change numbers. Cost: a few milliseconds.
std::string fingerprint_of(const Runtime& runtime);

/// A number of a model's config and weights, as far as their names, forms and some of their bytes
/// tell: a worker process refuses files that have been replaced since the front opened them.
std::uint64_t identity_of(const LoadedModel& model);

}  // namespace koho
