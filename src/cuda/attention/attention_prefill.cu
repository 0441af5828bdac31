// SPDX-License-Identifier: Apache-2.0
// Prefill attention on mma.sync (FlashAttention-2): the rows of a prompt or of a chunk of it over
// the whole context. Every GPU; head widths of 64 and 128, pages of bf16 or e4m3.
// attention_wgmma.cu computes the same on Hopper and is checked against it at start;
// attention_reference.cu defines both.
//
//   grid     (tiles of 128 packed rows, kv head, sequence); a packed row is (token, query head of
//            the kv head), so a page of K and V serves all its query heads, and the causal edge of
//            a tile is some ten tokens wide; late tiles, which see most context, come first
//   block    8 warps of 16 rows; pages in order from the context's first
//   shared   2 stages of one page: 64 KB for bf16, D = 128
//   FLOPs    4 * rows * D * context, half of it under the causal edge: bound by the tensor cores
//
// A row's softmax takes the pages in order from 0, and pages beyond its position change nothing, so
// a row's bits do not depend on the chunk it came in.
#include "cuda/attention/attention_mma.cuh"
#include "cuda/device/launch.cuh"

namespace koho::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kStages = 2;
constexpr int kRows = 128;  // packed rows of a tile

/// Divides the sums by the softmax's total and stores packed rows `row` and `row` + 8.
template <int kWidth, bool kFp8>
__device__ __forceinline__ void store_rows(const Attention& p,
                                           const Rows16<kWidth>& rows,
                                           const int& first_row,
                                           const int& warp,
                                           const int& lane,
                                           const int& rows_total,
                                           const int& start,
                                           const int& group,
                                           const int& kv_head) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + warp * 16 + half * 8 + lane / 4;
    float factor = 1.0F / quad_sum(rows.total[half]);
    if constexpr (kFp8)
      factor *= exp2f(rows.largest_v[half] - rows.largest[half] - kWeightExponent);
    if (row >= rows_total) continue;
    Bf16* out = p.out + (static_cast<std::int64_t>(start + row / group) * p.query_heads +
                         kv_head * group + row % group) *
                            kWidth;
#pragma unroll
    for (int tile = 0; tile < kWidth / 8; ++tile) {
      const float a = rows.sum[tile][half * 2] * factor;
      const float b = rows.sum[tile][half * 2 + 1] * factor;
      if constexpr (kFp8) {
        out[sum_column<kFp8>(tile, 0)] = to_bf16(a);
        out[sum_column<kFp8>(tile, 1)] = to_bf16(b);
      } else {
        *reinterpret_cast<std::uint32_t*>(out + sum_column<kFp8>(tile, 0)) = pack_bf16(a, b);
      }
    }
  }
}

template <int kWidth, bool kFp8>
__global__ void __launch_bounds__(kThreads)
    attention_prefill_kernel(const __grid_constant__ Attention p) {
  using Page = KvPageLayout<kWidth, kFp8>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = p.query_heads / p.kv_heads;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int sequence = p.decodes + static_cast<int>(blockIdx.z);
  const std::uint32_t stages = shared_address(shared);
  pdl_begin();
  const int context = p.context_lengths[sequence];
  const int start = p.query_starts[sequence];
  const int rows_total = (p.query_starts[sequence + 1] - start) * group;
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows;
  if (first_row >= rows_total || context == 0) return;

  // This lane's rows: g and g + 8 of the warp's 16.
  std::uint32_t q[kWidth / 16][4];
  int seen[2];  // tokens that the row sees
  const Bf16* source[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + warp * 16 + half * 8 + lane / 4;
    const int token = start + row / group;
    const bool real = row < rows_total;
    seen[half] = real ? min(p.positions[token] + 1, context) : 0;
    source[half] = real ? p.q + (static_cast<std::int64_t>(token) * p.query_heads +
                                 kv_head * group + row % group) *
                                    kWidth
                        : nullptr;
  }
  load_query<kWidth, kFp8>(q, source[0], source[1]);
  const int last_token = start + (min(first_row + kRows, rows_total) - 1) / group;
  const int visible = min(p.positions[last_token] + 1, context);
  const int least = min(p.positions[start + first_row / group] + 1, context);  // that any row sees
  const int pages = (visible + kPage - 1) / kPage;
  const std::int32_t* table = p.page_tables + sequence * p.page_tables_stride;
  const auto load = [&](int page) {
    if (page < pages)
      load_page_async<kWidth, kFp8, kThreads>(
          p, table[page], kv_head, visible - page * kPage,
          stages + static_cast<std::uint32_t>(page % kStages * Page::kStage));
    cp_async_commit_group();
  };
  load(0);
  const float scale = kLog2E / sqrtf(static_cast<float>(kWidth));
  Rows16<kWidth> rows;
  for (int page = 0; page < pages; ++page) {
    load(page + 1);
    cp_async_wait_group<1>();
    __syncthreads();
    const std::uint32_t stage = stages + static_cast<std::uint32_t>(page % kStages * Page::kStage);
    const bool masked = (page + 1) * kPage > least;
    std::uint8_t* values = shared + page % kStages * Page::kStage + Page::kBytes;
    const bool careful =
        masked && __syncthreads_or(not_finite<kWidth, kFp8, kThreads>(values)) != 0;
    float score[kPage / 8][4];
    float log_v[kPage / 8][2] = {};
#pragma unroll
    for (int part = 0; part < kPage / 16; ++part) {
      float two[2][4];
      mma_qk<kWidth, kFp8>(two, q, stage + key_offset<kWidth, kFp8>(0), part * 16);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = part * 16 + tile * 8 + lane % 4 * 2 + i;
          float factor = scale;
          if constexpr (kFp8) {
            const float* scales = reinterpret_cast<const float*>(
                shared + page % kStages * Page::kStage + 2 * Page::kBytes);
            factor *= scales[at];
            log_v[part * 2 + tile][i] = log2f(scales[kPage + at]);
          }
          float low = two[tile][i] * factor;
          float high = two[tile][i + 2] * factor;
          if (masked) {
            low = page * kPage + at < seen[0] ? low : -INFINITY;
            high = page * kPage + at < seen[1] ? high : -INFINITY;
          }
          score[part * 2 + tile][i] = low;
          score[part * 2 + tile][i + 2] = high;
        }
    }
    online_softmax<kWidth, kFp8, kPage / 8>(rows, score, log_v);
    if (careful) {  // uniform over the block
      const int in_page[2] = {seen[0] - page * kPage, seen[1] - page * kPage};
      add_not_finite<kWidth, kFp8>(rows.sum, in_page, values);
      __syncthreads();
      clear_not_finite<kWidth, kFp8, kThreads>(values);
      __syncthreads();
    }
#pragma unroll
    for (int part = 0; part < kPage / 16; ++part) {
      std::uint32_t weights[4];
      pack_weights<kFp8>(weights, score[2 * part], score[2 * part + 1]);
      mma_pv<kWidth, kFp8>(rows.sum, weights, stage + Page::kBytes, part * 16);
    }
    __syncthreads();
  }
  store_rows<kWidth, kFp8>(p, rows, first_row, warp, lane, rows_total, start, group, kv_head);
}

template <int kWidth, bool kFp8>
cudaError_t launch_tiles(const Attention& p, cudaStream_t stream) {
  using Page = KvPageLayout<kWidth, kFp8>;
  constexpr int kShared = kStages * Page::kStage;
  const auto kernel = attention_prefill_kernel<kWidth, kFp8>;
  static PerDevice prepared;
  const cudaError_t ready = prepared.once([&] {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  });
  if (ready != cudaSuccess) return ready;
  const int group = p.query_heads / p.kv_heads;
  const dim3 grid(static_cast<unsigned>((p.query_max * group + kRows - 1) / kRows),
                  static_cast<unsigned>(p.kv_heads),
                  static_cast<unsigned>(p.sequences - p.decodes));
  return launch_kernel(kernel, {grid, dim3(kThreads), kShared}, stream, p);
}

}  // namespace

cudaError_t launch_attention_prefill(const Attention& p, cudaStream_t stream) {
  const bool fp8 = p.k_scales != nullptr;
  if (p.width == 128)
    return fp8 ? launch_tiles<128, true>(p, stream) : launch_tiles<128, false>(p, stream);
  return fp8 ? launch_tiles<64, true>(p, stream) : launch_tiles<64, false>(p, stream);
}

const void* kernel_of::attention_prefill() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
