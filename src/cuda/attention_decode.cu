// SPDX-License-Identifier: Apache-2.0
// Decode attention: one query row a sequence, its context cut at multiples of `split_tokens`.
//
//   grid     persistent; a work item is (part of a context, kv head), listed on the device from the
//            context lengths, so a captured graph serves every length
//   block    4 warps; the query heads of the kv head are the 16 rows of the matrix instruction; of
//            each page of 64 tokens a warp has 16, with a softmax of its own; warps and then parts
//            are merged in order
//   shared   3 stages of one page (bf16, D = 128: 3 x 32 KB), then the warps' sums
//   bytes    every K and V byte once: bound by memory
//
// A row's sums depend on its context alone: parts begin at fixed places, and one part takes the
// same steps as many.
#include "cuda/attention.cuh"
#include "cuda/launch.cuh"
#include "cuda/row.cuh"

namespace koho::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kStages = 3;
constexpr int kGroupMax = 16;
constexpr int kSequencesMax = 2048;

__host__ __device__ constexpr int item_floats(int group, int width) {
  return group * (width + 2);
}

/// The first item of each sequence; parts[sequences] is their number. All threads.
__device__ void list_parts(const Attention& p, int* parts) {
  __shared__ int warp_sums[kWarps];
  constexpr int kEach = kSequencesMax / kThreads;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int each = (p.decodes + kThreads - 1) / kThreads;
  int counts[kEach];
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (i >= each) break;
    const int sequence = thread * each + i;
    counts[i] = sequence < p.decodes
                    ? (p.context_lengths[sequence] + p.split_tokens - 1) / p.split_tokens
                    : 0;
    sum += counts[i];
  }
  int before = sum;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFU, before, offset);
    if (lane >= offset) before += other;
  }
  if (lane == 31) warp_sums[thread / 32] = before;
  __syncthreads();
  before -= sum;
  for (int warp = 0; warp < thread / 32; ++warp) before += warp_sums[warp];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (i >= each) break;
    const int sequence = thread * each + i;
    if (sequence <= p.decodes) parts[sequence] = before;
    before += counts[i];
  }
  if (thread == kThreads - 1 && each * kThreads == p.decodes) parts[p.decodes] = before;
  __syncthreads();
}

template <int kWidth, bool kFp8>
__global__ void __launch_bounds__(kThreads)
    attention_decode_kernel(const __grid_constant__ Attention p) {
  using Page = PageShape<kWidth, kFp8>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ int parts[kSequencesMax + 1];
  __shared__ float warp_state[kWarps][kGroupMax][2];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int group = p.query_heads / p.kv_heads;
  const std::uint32_t stages = shared_address(shared);
  grid_begin();
  list_parts(p, parts);
  const int items = parts[p.decodes] * p.kv_heads;
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
    const int kv_head = item % p.kv_heads;
    int low = 0;  // the sequence whose part this is
    for (int high = p.decodes; low + 1 < high;) {
      const int middle = (low + high) / 2;
      if (parts[middle] <= item / p.kv_heads)
        low = middle;
      else
        high = middle;
    }
    while (parts[low + 1] <= item / p.kv_heads) ++low;  // sequences of no parts
    const int sequence = low;
    const int begin = (item / p.kv_heads - parts[sequence]) * p.split_tokens;
    const int token = p.query_starts[sequence];
    const int visible = min(p.positions[token] + 1, p.context_lengths[sequence]);
    const int end = min(begin + p.split_tokens, visible);
    const int pages = max((end - begin + kPage - 1) / kPage, 0);
    const std::int32_t* table = p.page_tables + sequence * p.page_tables_stride + begin / kPage;
    const auto load = [&](int page) {
      if (page < pages)
        load_page<kWidth, kFp8, kThreads>(
            p, table[page], kv_head, end - begin - page * kPage,
            stages + static_cast<std::uint32_t>(page % kStages * Page::kStage));
      copy_commit();
    };
#pragma unroll
    for (int page = 0; page < kStages - 1; ++page) load(page);

    const int row = lane / 4;
    const Bf16* q_rows =
        p.q + (static_cast<std::int64_t>(token) * p.query_heads + kv_head * group) * kWidth;
    std::uint32_t q[kWidth / 16][4];
    load_query<kWidth, kFp8>(q, row < group ? q_rows + row * kWidth : nullptr,
                             row + 8 < group ? q_rows + (row + 8) * kWidth : nullptr);
    const float scale = kLog2E / sqrtf(static_cast<float>(kWidth));
    Rows16<kWidth> rows;
    for (int page = 0; page < pages; ++page) {
      copy_wait<kStages - 2>();
      __syncthreads();
      load(page + kStages - 1);
      const std::uint32_t stage =
          stages + static_cast<std::uint32_t>(page % kStages * Page::kStage);
      const int first = warp * 16;
      const int left = end - begin - page * kPage - first;  // valid tokens of this warp's 16
      if (left <= 0) continue;
      float score[2][4];
      multiply_keys<kWidth, kFp8>(score, q, stage, first);
      float log_v[2][2] = {};
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = tile * 8 + lane % 4 * 2 + i;
          float factor = scale;
          if constexpr (kFp8) {
            const float* scales = reinterpret_cast<const float*>(
                shared + page % kStages * Page::kStage + 2 * Page::kBytes);
            factor *= scales[first + at];
            log_v[tile][i] = log2f(scales[kPage + first + at]);
          }
          score[tile][i] = at < left ? score[tile][i] * factor : -INFINITY;
          score[tile][i + 2] = at < left ? score[tile][i + 2] * factor : -INFINITY;
        }
      soften<kWidth, kFp8, 2>(rows, score, log_v);
      std::uint32_t weights[4];
      pack_weights<kFp8>(weights, score[0], score[1]);
      multiply_values<kWidth, kFp8>(rows.sum, weights, stage + Page::kBytes, first);
    }
    copy_wait<0>();
    __syncthreads();  // the stages are free: the warps' sums take their place

    auto* sums = reinterpret_cast<float*>(shared);  // [warp][row][kWidth + 4]
    constexpr int kStride = kWidth + 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = row + half * 8;
      const float total = quad_sum(rows.total[half]);
      // Sums of e4m3 pages have an exponent of their own; from here on they share one.
      float factor = 1.0F;
      if constexpr (kFp8)
        factor = rows.largest[half] == -INFINITY ? 0.0F
                                                 : exp2f(rows.largest_v[half] - rows.largest[half]);
      if (lane % 4 == 0) {
        warp_state[warp][at][0] = rows.largest[half];
        warp_state[warp][at][1] = total;
      }
#pragma unroll
      for (int tile = 0; tile < kWidth / 8; ++tile)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          sums[(warp * 16 + at) * kStride + sum_column<kFp8>(tile, i)] =
              rows.sum[tile][half * 2 + i] * factor;
    }
    __syncthreads();
    float* out = p.partial + static_cast<std::int64_t>(item) * item_floats(group, kWidth);
    for (int i = thread; i < group * kWidth; i += kThreads) {
      const int at = i / kWidth;
      float largest = -INFINITY;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, warp_state[w][at][0]);
      const float base = largest == -INFINITY ? 0.0F : largest;
      float sum = 0.0F;
      float total = 0.0F;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float factor = exp2f(warp_state[w][at][0] - base);
        sum += sums[(w * 16 + at) * kStride + i % kWidth] * factor;
        total += warp_state[w][at][1] * factor;
      }
      out[i] = sum;
      if (i % kWidth == 0) {
        out[group * kWidth + 2 * at] = largest;
        out[group * kWidth + 2 * at + 1] = total;
      }
    }
    __syncthreads();
  }
}

/// Adds the parts of each row in order and writes the row in the forms its readers need. One block
/// a token row. Rows that no decode owns: of another sequence, left alone; of padding, zeros.
template <int kSteps>
__global__ void __launch_bounds__(kRowThreadsMax)
    attention_merge_kernel(const RowForms out, const __grid_constant__ Attention p) {
  constexpr int kVector = 8;
  __shared__ RowScratch scratch;
  __shared__ int part_sum;
  const int row = static_cast<int>(blockIdx.x);
  const int width = p.query_heads * p.width;
  const int group = p.query_heads / p.kv_heads;
  if (threadIdx.x == 0) part_sum = 0;
  __syncthreads();
  grid_begin();
  if (row >= p.decodes && row < p.query_starts[p.sequences]) return;
  const bool real = row < p.decodes && p.context_lengths[row] > 0;
  int before = 0;
  for (int sequence = static_cast<int>(threadIdx.x); sequence < min(row, p.decodes);
       sequence += static_cast<int>(blockDim.x))
    before += (p.context_lengths[sequence] + p.split_tokens - 1) / p.split_tokens;
  if (before != 0) atomicAdd(&part_sum, before);
  __syncthreads();
  before = part_sum;
  const int parts = real ? (p.context_lengths[row] + p.split_tokens - 1) / p.split_tokens : 0;
  float v[kSteps][kVector];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int column =
        (step * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kVector;
#pragma unroll
    for (int i = 0; i < kVector; ++i) v[step][i] = 0.0F;
    if (column >= width || parts == 0) continue;
    const int head = column / p.width;
    const int at = head % group;
    const auto part_of = [&](int part) {
      return p.partial + (static_cast<std::int64_t>(before + part) * p.kv_heads + head / group) *
                             item_floats(group, p.width);
    };
    float largest = -INFINITY;
    for (int part = 0; part < parts; ++part)
      largest = fmaxf(largest, part_of(part)[group * p.width + 2 * at]);
    float total = 0.0F;
    for (int part = 0; part < parts; ++part) {
      const float* from = part_of(part);
      const float2 state = *reinterpret_cast<const float2*>(from + group * p.width + 2 * at);
      const float factor = exp2f(state.x - largest);
      total += state.y * factor;
      const auto* sums = reinterpret_cast<const float2*>(from + at * p.width + column % p.width);
#pragma unroll
      for (int i = 0; i < kVector / 2; ++i) {
        const float2 pair = sums[i];
        v[step][2 * i] += pair.x * factor;
        v[step][2 * i + 1] += pair.y * factor;
      }
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) v[step][i] = round_bf16(v[step][i] / total);
  }
  finish_row<kVector, kSteps>(out, row, width, v, scratch);
}

template <int kWidth, bool kFp8>
cudaError_t launch_parts(const Attention& p, cudaStream_t stream) {
  using Page = PageShape<kWidth, kFp8>;
  constexpr int kSums = kWarps * 16 * (kWidth + 4) * 4;
  constexpr int kShared = kStages * Page::kStage > kSums ? kStages * Page::kStage : kSums;
  const auto kernel = attention_decode_kernel<kWidth, kFp8>;
  static const int resident = [&] {
    int count = 0;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared) !=
            cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kernel, kThreads, kShared) !=
            cudaSuccess)
      return 0;
    return count;
  }();
  if (resident == 0) return cudaErrorInvalidConfiguration;
  return launch_kernel(
      kernel, {dim3(static_cast<unsigned>(resident * p.multiprocessors)), dim3(kThreads), kShared},
      stream, p);
}

}  // namespace

bool attention_has_fast_form(const Attention& p) {
  const std::int64_t items = static_cast<std::int64_t>(p.decodes) * p.kv_heads;
  return (p.width == 64 || p.width == 128) && p.query_heads / p.kv_heads <= kGroupMax &&
         p.decodes <= kSequencesMax && items < INT32_MAX && p.query_heads * p.width <= 4 * 8 * 1024;
}

bool attention_merge_takes(const RowForms& out, std::int64_t width) {
  return row_vectors(out, nullptr, 0, width);
}

cudaError_t launch_attention_decode(const Attention& p, cudaStream_t stream) {
  const bool fp8 = p.k_scales != nullptr;
  if (p.width == 128)
    return fp8 ? launch_parts<128, true>(p, stream) : launch_parts<128, false>(p, stream);
  return fp8 ? launch_parts<64, true>(p, stream) : launch_parts<64, false>(p, stream);
}

cudaError_t launch_attention_merge(const RowForms& out, const Attention& p, cudaStream_t stream) {
  const std::int64_t width = static_cast<std::int64_t>(p.query_heads) * p.width;
  return with_row_shape(
      width, true, [&]<int kVector, int kSteps>(RowShape<kVector, kSteps>, unsigned block) {
        if constexpr (kVector == 8 && kSteps <= 4)
          return launch_kernel(attention_merge_kernel<kSteps>,
                               {dim3(static_cast<unsigned>(p.tokens)), dim3(block)}, stream, out,
                               p);
        else
          return cudaErrorInvalidValue;
      });
}

}  // namespace koho::cuda
