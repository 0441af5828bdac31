// SPDX-License-Identifier: Apache-2.0
// The everyday flags of vLLM, SGLang and llama.cpp that koho has not, or has under another name:
// one table of flag, values, verdict and sentence for all commands.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace koho::app {

struct PeerFlag {
  enum class Takes : std::uint8_t { nothing, value, maybe };  // maybe: on, off, auto, 0 or 1
  enum class Verdict : std::uint8_t {
    as_it_is,  // accepted: it asks for what koho does anyway, or for what koho has not; `says` why
    renamed,   // `says` is koho's flag for it
    refused    // `says` the reason, or what to use instead
  };

  std::string_view flags;  // "-ngl,--n-gpu-layers"; a name that ends in '-' stands for all that
                           // begin with it
  Takes takes = Takes::value;
  std::string_view values;  // the row holds for these: "auto,glm*,>=90"; empty: for every value
  Verdict verdict = Verdict::as_it_is;
  std::string_view says;
};

/// The row for a flag, of which `value` is what follows it, if anything does. Rows that rename it
/// to what the command `has` not do not count. A value that no row has is refused, for the reason
/// of the first. Nothing: no peer has the flag.
std::optional<PeerFlag> find_peer_flag(std::string_view flag,
                                       std::optional<std::string_view> value,
                                       const std::function<bool(std::string_view)>& has);

/// Whether the flag at hand takes `next` as its value.
bool takes_next(const PeerFlag& row, std::string_view next);

/// "--dtype auto has no effect: …"
std::string note_of(const PeerFlag& row, std::string_view flag, std::string_view value);

/// The error for a row that refuses.
Error refusal_of(const PeerFlag& row, std::string_view flag, std::string_view value);

/// The table as text, for `koho help flags`.
std::string peer_flags_text();

}  // namespace koho::app
