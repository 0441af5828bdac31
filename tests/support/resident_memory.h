// SPDX-License-Identifier: Apache-2.0
// For tests that nothing leaks.
#pragma once

namespace koho::testing {

/// Resident memory of this process in KiB without the pages of files, which grow with the code that
/// has run.
long resident_kib();

}  // namespace koho::testing
