// SPDX-License-Identifier: Apache-2.0
// How weights lie on the device: tiles of 64 rows, each the whole width, in the order in which the
// matrix kernels consume them. Within a tile: chunks of 16 bytes of K, each chunk the 64 rows one
// under the other, so 8 rows of a chunk are 128 contiguous bytes: the tensor cores' core matrix,
// read without bank conflicts by wgmma and by ldmatrix alike. A stage of 256 bytes of K is one
// contiguous bulk copy of 16 KB. Widths are padded with zeros to 32 bytes, rows to 64.
#pragma once

#include <cstdint>

namespace koho::cuda {

constexpr int kTileRows = 64;
constexpr int kTileChunk = 16;      // bytes of K
constexpr int kTileWidthStep = 32;  // bytes of K of one matrix instruction
constexpr int kStageWidth = 256;    // bytes of K of one stage
constexpr int kBlockWidth = 128;    // elements of K under one scale in block FP8

/// The place of byte `k` of row `row` of a matrix whose padded rows have `width` bytes.
constexpr std::int64_t tile_offset(std::int64_t width, std::int64_t row, std::int64_t k) {
  return row / kTileRows * kTileRows * width + k / kTileChunk * (kTileChunk * kTileRows) +
         row % kTileRows * kTileChunk + k % kTileChunk;
}

constexpr int kPairRows = kTileRows / 2;  // gate (or up) rows in a tile of a SwiGLU pair

/// Row of the tiled matrix where gate or up row `row` of a SwiGLU pair lies: 8 gate rows, then
/// their 8 up rows, so that one thread of the matrix instruction holds both.
constexpr std::int64_t interleaved_row(std::int64_t row, bool up) {
  return row / 8 * 16 + (up ? 8 : 0) + row % 8;
}

}  // namespace koho::cuda
