// SPDX-License-Identifier: Apache-2.0
// How weights lie in device memory: tiles of 64 rows by the whole K, in the order in which kernels
// read them. A tile is a sequence of chunks of 16 bytes of K, each with the 64 rows one below the
// other. So 8 rows of a chunk are 128 contiguous bytes, a core matrix of the tensor cores, which
// wgmma and ldmatrix read without bank conflicts; and a stage of 256 bytes of K is one contiguous
// bulk copy of 16 KB. K is padded with zeros to 32 bytes, rows to 64.
#pragma once

#include <cstdint>

namespace koho::cuda {

constexpr int kTileRows = 64;
constexpr int kTileChunk = 16;      // bytes of K
constexpr int kTileWidthStep = 32;  // bytes of K of one MMA
constexpr int kStageWidth = 256;    // bytes of K of one stage
constexpr int kBlockWidth = 128;    // elements of K under one scale in block FP8

/// Where byte `k` of row `row` lies in a matrix whose padded rows have `width` bytes.
constexpr std::int64_t tile_offset(std::int64_t width, std::int64_t row, std::int64_t k) {
  return row / kTileRows * kTileRows * width + k / kTileChunk * (kTileChunk * kTileRows) +
         row % kTileRows * kTileChunk + k % kTileChunk;
}

constexpr int kPairRows = kTileRows / 2;  // gate (or up) rows in a tile of a SwiGLU pair

/// Row of the tiled matrix where gate or up row `row` of a SwiGLU pair lies: 8 gate rows, then
/// their 8 up rows, so that one thread of an MMA holds both.
constexpr std::int64_t interleaved_row(std::int64_t row, bool up) {
  return row / 8 * 16 + (up ? 8 : 0) + row % 8;
}

}  // namespace koho::cuda
