// SPDX-License-Identifier: Apache-2.0
// Where a step's arrays lie in one packed buffer, so that one copy takes them to the device; and
// the same for its results. The host writes the buffer, the device reads it at the same offsets.
// Offsets depend on the numbers of tokens, sequences and logit rows alone, so a captured graph
// finds its arrays at fixed addresses.
#pragma once

#include <cstdint>

#include "base/arithmetic.h"
#include "ops/backend.h"
#include "sampling/parameters.h"
#include "tensor/tensor.h"

namespace koho {

/// How many rows a step has.
struct StepShape {
  std::int64_t tokens = 0;      // T
  std::int64_t sequences = 0;   // S
  std::int64_t logit_rows = 0;  // R
  friend bool operator==(const StepShape&, const StepShape&) = default;
};

/// Byte offsets of the arrays, each aligned for its elements and for 16-byte reads.
class StepLayout {
 public:
  explicit StepLayout(const StepShape& shape)
      : slots(take(8 * shape.tokens)),
        token_ids(take(4 * shape.tokens)),
        positions(take(4 * shape.tokens)),
        query_starts(take(4 * (shape.sequences + 1))),
        context_lengths(take(4 * shape.sequences)),
        batch_slots(take(4 * shape.sequences)),
        logit_rows(take(4 * shape.logit_rows)),
        sample_batch_slots(take(4 * shape.logit_rows)),
        sampling(take(static_cast<std::int64_t>(sizeof(SamplingRow)) * shape.logit_rows)),
        variable(bytes_) {}

 private:
  std::int64_t take(std::int64_t bytes) {
    constexpr std::int64_t kAlignment = 64;
    const std::int64_t at = bytes_;
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  std::int64_t bytes_ = 0;  // first: the others are initialised in order

 public:
  const std::int64_t slots, token_ids, positions, query_starts, context_lengths, batch_slots,
      logit_rows, sample_batch_slots, sampling;
  const std::int64_t variable;  // biases begin here, then pairs: page changes, outputs, page copies
};

/// Byte offsets of a step's results.
struct ResultLayout {
  explicit ResultLayout(std::int64_t rows)
      : ends(4 * rows),
        bytes_without_logprobs(ends + rows),
        logprobs(round_up<std::int64_t>(bytes_without_logprobs, 4)),
        top_ids(logprobs + 4 * rows),
        top_logprobs(top_ids + 4 * rows * kTopLogprobsMax),
        bytes(top_logprobs + 4 * rows * kTopLogprobsMax) {}

  std::int64_t ids = 0;
  std::int64_t ends;  // what every step brings back ends with these …
  std::int64_t bytes_without_logprobs;
  std::int64_t logprobs, top_ids, top_logprobs;  // … and these come where a row asks for them
  std::int64_t bytes;
};

/// `count` elements of `dtype` at `offset` of packed memory.
inline TensorView part_of(Tensor& memory, std::int64_t offset, DType dtype, Shape shape) {
  const TensorView whole = memory.view();
  const TensorView part(whole.data + offset, dtype, shape, whole.device);
  KOHO_CHECK_LE(offset + part.bytes(), whole.bytes());
  return part;
}

}  // namespace koho
