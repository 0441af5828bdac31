// SPDX-License-Identifier: Apache-2.0
// The CPUs that this process may use, the NUMA nodes they belong to, and how the ranks of a host
// divide them for work beside their GPUs: each rank has CPUs near its own GPU, and none is counted
// twice.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace koho {

/// The CPUs that the system lets this process use, ascending; a container's set included.
std::vector<int> allowed_cpus();

/// Reads a list of the system's, "0-3,8,10-11"; empty if it is none.
std::vector<int> parse_cpu_list(std::string_view text);

/// The NUMA node of a PCI device, "0000:1B:00.0"; nothing where the system does not say. `sys` is
/// where the system tells about itself.
std::optional<int> numa_node_of_pci(std::string_view bus_id,
                                    const std::filesystem::path& sys = "/sys");

/// The CPUs of a NUMA node; empty where the system does not say.
std::vector<int> cpus_of_numa_node(int node, const std::filesystem::path& sys = "/sys");

/// Rank `rank`'s share of `allowed`. `nodes` has each rank's NUMA node, nothing where it is not
/// known; `cpus_of_nodes[i]` are the CPUs of nodes[i]. A rank shares the allowed CPUs of its node
/// with the ranks of the same node, or, where its node is unknown or has none, all of them with all
/// ranks. Never empty while `allowed` is not: with fewer CPUs than ranks some have the same one.
std::vector<int> share_of_cpus(std::size_t rank,
                               std::span<const std::optional<int>> nodes,
                               std::span<const std::vector<int>> cpus_of_nodes,
                               std::span<const int> allowed);

/// Keeps the calling thread on these CPUs. False if the system refuses; it then runs as before.
bool keep_thread_on(std::span<const int> cpus);

}  // namespace koho
