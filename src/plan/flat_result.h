// SPDX-License-Identifier: Apache-2.0
// A rank's result of one step, or its error, as flat bytes in memory that processes share. Plain
// data behind a fixed header. The reader trusts none of it: a broken rank gives an error, never a
// wild read or a value out of its range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "plan/step_result.h"

namespace koho {

/// Bytes of the largest result of `rows` rows, without logits and with them.
std::size_t flat_result_bytes(std::int64_t rows);
std::size_t flat_result_bytes(std::int64_t rows, std::int32_t vocabulary);

/// Writes a result; returns its bytes. Requires: `space` holds flat_result_bytes of its rows and
/// vocabulary and is 8-byte aligned.
std::size_t write_flat_result(const StepResult& result, std::span<std::byte> space);

/// Writes the error that ended a step; a message that is too long is cut. Requires: `space` holds
/// flat_result_bytes(0) and is 8-byte aligned.
std::size_t write_flat_error(const Error& error, std::span<std::byte> space);

/// What a reader holds a result against.
struct ResultBounds {
  std::int64_t rows_max = 0;
  std::int32_t vocabulary = 0;
};

/// Reads a result, reusing the vectors' capacity. `bytes` must not change meanwhile: the caller
/// copies what another process can write. An alternative outside the vocabulary becomes 0. Errors:
/// the error that was written; corrupt_data.
Status read_flat_result(std::span<const std::byte> bytes,
                        const ResultBounds& bounds,
                        StepResult& result);

}  // namespace koho
