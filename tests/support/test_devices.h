// SPDX-License-Identifier: Apache-2.0
// For tests of ranks on GPUs: which GPUs, and what they exchange data through, as the environment
// says.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "worker/device.h"

namespace koho::testing {

/// Whether KOHO_TEST_DEVICES names GPUs.
inline bool names_gpus() {
  return std::getenv("KOHO_TEST_DEVICES") != nullptr;
}

/// The GPUs of KOHO_TEST_DEVICES ("0", "0,1"), or `otherwise` where it is not set, for `ranks`
/// ranks; NCCL where KOHO_TEST_COLLECTIVES says nccl.
inline DeviceOptions gpu_devices(std::int64_t ranks, const char* otherwise) {
  DeviceOptions device;
  device.kind = DeviceKind::cuda;
  // As check_devices() sets them; the driver reads them when it starts, which a test's first look
  // at a GPU does. A kernel that is loaded while another rank's waits for it would come too late.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  const char* list = std::getenv("KOHO_TEST_DEVICES");
  for (const char* at = list == nullptr ? otherwise : list; *at != '\0'; ++at)
    if (*at >= '0' && *at <= '9') device.devices.push_back(*at - '0');
  if (device.devices.size() > 1) device.devices.resize(static_cast<std::size_t>(ranks));
  const char* transport = std::getenv("KOHO_TEST_COLLECTIVES");
  if (transport != nullptr && std::string_view(transport) == "nccl")
    device.collectives = CollectiveTransport::nccl;
  return device;
}

}  // namespace koho::testing
