// SPDX-License-Identifier: Apache-2.0
// What the system says of processes, descriptors and mappings.
#pragma once

#include <cstddef>
#include <string>
#include <sys/types.h>
#include <vector>

namespace koho::testing {

/// The living processes (no zombies) whose parent is `parent`.
std::vector<pid_t> children_of(pid_t parent);

/// Whether a process lives; a zombie does not.
bool lives(pid_t process);

/// Whether none of them lives.
bool all_end(const std::vector<pid_t>& processes);

/// Open descriptors of this process.
std::size_t num_descriptors();

/// Mappings of koho's shared memory in this process.
std::size_t num_shared_mappings();

/// The names in a folder that is a file system of shared memory, "/dev/shm".
std::vector<std::string> names_in(const std::string& folder);

}  // namespace koho::testing
