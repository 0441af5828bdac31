// SPDX-License-Identifier: Apache-2.0
// Who asks without an API key, by its network address.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace koho::server {

/// The client of an address of 4 or 16 bytes: an IPv4 address, the network of 64 bits that an IPv6
/// host has, or a host of a link. Never 0, which are those without an address: requests of batches.
inline std::uint64_t client_of_address(std::span<const std::uint8_t> bytes) {
  const auto number = [](std::span<const std::uint8_t> digits) {
    std::uint64_t value = 0;
    for (const std::uint8_t digit : digits) value = value << 8U | digit;
    return value;
  };
  constexpr std::uint64_t kIpv4 = std::uint64_t{1} << 32U;
  constexpr std::uint64_t kMapped = 0xffff;
  if (bytes.size() == 4) return kIpv4 | number(bytes);
  constexpr std::uint64_t kLinkLocal = 0xfe80;
  const std::uint64_t network = number(bytes.first(8));
  const std::uint64_t host = number(bytes.last(8));
  // All hosts of a link have the same network there.
  if (network >> 48U == kLinkLocal && network != host) return network ^ host;
  if (network != 0) return network;
  // There are no hosts in ::/64 but those of IPv4, and this machine (::1): the same as 127.0.0.1.
  const bool mapped = number(bytes.subspan(8, 4)) == kMapped;
  return kIpv4 | (mapped ? number(bytes.last(4)) : 0x7f000001U);
}

}  // namespace koho::server
