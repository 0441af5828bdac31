// SPDX-License-Identifier: Apache-2.0
// How a product is cut whose sums cuBLASLt leaves to the next kernel: all tokens once, each piece
// within the scratch memory that any number of tokens up to it was reserved for. No GPU.
#include <gtest/gtest.h>

#include "cuda/matmul_library.h"

namespace koho::cuda {
namespace {

constexpr std::int64_t kRows[] = {16, 112, 1792, 3584, 5120, 14336, 24576, 151552, 1 << 20};

TEST(LibraryPieces, FitTheMemoryReservedForMoreTokens) {
  for (const std::int64_t rows : kRows)
    for (std::int64_t tokens = 129; tokens < 20000; tokens += 61) {
      const std::int64_t piece = library_piece(rows, tokens);
      EXPECT_EQ(piece % 16, 0);
      EXPECT_LE(4 * rows * std::min(piece, tokens), library_sums_bytes(rows, tokens));
      EXPECT_LE(library_sums_bytes(rows, tokens), library_sums_bytes(rows, tokens + 61));
      EXPECT_LE(piece, library_tokens_max(rows));
    }
}

TEST(LibraryPieces, AreFewAndAlike) {
  for (const std::int64_t rows : kRows)
    for (std::int64_t tokens = 129; tokens < 20000; tokens += 61) {
      const std::int64_t piece = library_piece(rows, tokens);
      const std::int64_t pieces = ceil_div(tokens, piece);
      EXPECT_LE(pieces, ceil_div(tokens, library_tokens_max(rows)));
      const std::int64_t last = tokens - (pieces - 1) * piece;
      EXPECT_GT(last, 0);
      EXPECT_GE(last, piece - 16 * pieces);
    }
}

TEST(LibraryPieces, TakeLittleMemory) {
  for (const std::int64_t rows : {1792, 5120, 14336, 24576})
    EXPECT_LE(library_sums_bytes(rows, 131072), kLibrarySumsBytes);
  EXPECT_EQ(library_piece(3584, 4096), 4096);
  EXPECT_EQ(library_piece(3584, 8192), 4096);
  EXPECT_EQ(library_piece(14336, 4096), 1024);
}

}  // namespace
}  // namespace koho::cuda
