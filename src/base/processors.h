// SPDX-License-Identifier: Apache-2.0
// How many processors this process may use: those of its affinity mask, within the limits of its
// control groups (cgroup v1 and v2).
#pragma once

#include <filesystem>
#include <string_view>

namespace koho {

/// 1 or more. A limit of 1.5 processors counts as 2: one and a half is more than one.
int available_processors();

/// The least limit of `cgroups`, the text of /proc/self/cgroup, and of the groups above them, whose
/// file system is at `root`; 0: none.
int cgroup_processors(std::string_view cgroups, const std::filesystem::path& root);

}  // namespace koho
