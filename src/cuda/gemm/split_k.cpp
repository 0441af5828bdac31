// SPDX-License-Identifier: Apache-2.0
// Into how many parts decode's kernels cut a matrix's width. A row's sums follow the parts, so they
// depend on the weight's shape alone: neither on the number of tokens nor on the GPU.
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/tiled_layout.h"

namespace koho::cuda {

int choose_split_k(int tiles, int width_bytes) {
  // Measured on an H200 (docs/kernels/linear.md): parts of equal length that are one CTA on nearly
  // each of its 132 multiprocessors; else a CTA for every one and not many more, none longer than
  // 12 stages unless there are tiles enough. Short widths of many tiles are not cut: sending sums
  // costs more than multiprocessors without work.
  constexpr int kFull = 132;
  constexpr int kNearlyFull = 126;  // 95 %
  constexpr int kBlocksWanted = 136;
  constexpr int kTilesEnough = 200;
  constexpr int kLongest = 12;
  constexpr int kShort = 6;
  constexpr int kTilesOfShort = 80;
  const int stages = (width_bytes + kStageWidth - 1) / kStageWidth;
  if (tiles >= kTilesEnough || (stages <= kShort && tiles >= kTilesOfShort)) return 1;
  for (int split_k = 1; split_k <= kSplitKMax && split_k <= stages; ++split_k)
    if (tiles * split_k >= kNearlyFull && tiles * split_k <= kFull && stages % split_k == 0)
      return split_k;
  for (int split_k = 1; split_k <= kSplitKMax && split_k <= stages; ++split_k)
    if (tiles * split_k >= kBlocksWanted && stages <= kLongest * split_k && stages % split_k == 0)
      return split_k;
  return stages < kSplitKMax ? stages : kSplitKMax;
}

}  // namespace koho::cuda
