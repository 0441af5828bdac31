// SPDX-License-Identifier: Apache-2.0
// What the C ABI's handles are: numbers in the shape of pointers. A handle names a kind of thing, a
// slot in a table and the generation of what stood there, so one that was freed, belongs to
// another engine or was made up is recognised without touching memory.
#pragma once

#include <cstdint>
#include <optional>

namespace koho::capi {

enum class HandleKind : std::uint8_t { engine = 0xE5, request = 0xA7 };

struct Handle {
  HandleKind kind = HandleKind::engine;
  std::uint32_t engine = 0;      // slot among the engines, 6 bits
  std::uint32_t index = 0;       // slot among the engine's requests, 18 bits
  std::uint32_t generation = 0;  // of the engine, or of the request
};

inline constexpr std::uint32_t kEnginesMax = 1U << 6U;
inline constexpr std::uint32_t kRequestsMax = 1U << 18U;

/// The kind stands in the top byte, where no pointer of a process has these bits.
inline std::uintptr_t to_number(const Handle& handle) {
  static_assert(sizeof(std::uintptr_t) == 8);
  return static_cast<std::uintptr_t>(handle.kind) << 56U |
         static_cast<std::uintptr_t>(handle.engine) << 50U |
         static_cast<std::uintptr_t>(handle.index) << 32U | handle.generation;
}

/// The handle of `kind` that `value` spells, if it spells one.
inline std::optional<Handle> to_handle(std::uintptr_t value, HandleKind kind) {
  if (value >> 56U != static_cast<std::uintptr_t>(kind)) return std::nullopt;
  return Handle{.kind = kind,
                .engine = static_cast<std::uint32_t>(value >> 50U & (kEnginesMax - 1)),
                .index = static_cast<std::uint32_t>(value >> 32U & (kRequestsMax - 1)),
                .generation = static_cast<std::uint32_t>(value)};
}

}  // namespace koho::capi
