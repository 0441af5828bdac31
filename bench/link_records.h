// SPDX-License-Identifier: Apache-2.0
// bench/results/*-all-reduce*.json as they were when this build was configured: link_times.cpp
// reads them, CMake writes their texts into a source file.
#pragma once

namespace koho::bench {

/// The files as one JSON array.
const char* link_records();

}  // namespace koho::bench
