// SPDX-License-Identifier: Apache-2.0
#include "tests/support/resident_memory.h"

#include <cstdio>
#include <unistd.h>

#include <gtest/gtest.h>

namespace koho::testing {

long resident_kib() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  long total = 0;
  long resident = 0;
  long shared = 0;
  EXPECT_EQ(std::fscanf(file, "%ld %ld %ld", &total, &resident, &shared), 3);
  std::fclose(file);
  return (resident - shared) * (sysconf(_SC_PAGESIZE) / 1024);
}

}  // namespace koho::testing
