// SPDX-License-Identifier: Apache-2.0
// Sampling of rows without thresholds: greedy, temperature, penalties, biases and masks in one pass
// over the logits.
//
//   grid     (rows, parts): a cluster of `parts` CTAs a row, neighbouring tokens each
//   block    four 16-byte loads a thread under way
//   bytes    the logits once, the counts once under penalties: bound by memory; a draw adds the
//            ten rounds of its generator for every four tokens
//
// The best of all tokens does not depend on how they are divided.
#include "cuda/launch.cuh"
#include "cuda/sample.cuh"

namespace koho::cuda {
namespace {

constexpr int kPartsMax = 8;
constexpr int kPartsMin = 2;
constexpr int kPartTokensMax = kSampleTokensMax / kPartsMin;

struct Shared {
  std::uint32_t biased[kPartTokensMax / 32];
  BestScratch best;
  std::uint32_t leading;
  float2 result;  // score, id as bits; id -2 = the part holds a NaN
};

/// This thread's share of tokens begin .. end - 1 of a row.
template <bool kRandom, bool kPlain>
__device__ __forceinline__ void scan(const RowView& view,
                                     const Modifier& modifier,
                                     int begin,
                                     int end,
                                     Drawing& drawing,
                                     bool& bad) {
  constexpr int kAhead = kPlain ? 4 : 2;
  constexpr int kStep = kSampleThreads * 4;
  const bool aligned = reinterpret_cast<std::uintptr_t>(view.logits) % 16 == 0 &&
                       reinterpret_cast<std::uintptr_t>(view.counts) % 16 == 0;
  const bool only_counts = view.row.bias_count == 0 && modifier.mask == nullptr;
  const auto load = [&](int id, float4& logits, int4& counts) {
    counts = make_int4(0, 0, 0, 0);
    if (aligned && id + 4 <= end) {
      logits = __ldg(reinterpret_cast<const float4*>(view.logits + id));
      if (!kPlain && modifier.counts != nullptr)
        counts = *reinterpret_cast<const int4*>(modifier.counts + id);
      return;
    }
    const auto logit = [&](int i) { return id + i < end ? view.logits[id + i] : kOut; };
    logits = make_float4(logit(0), logit(1), logit(2), logit(3));
    if (kPlain || modifier.counts == nullptr) return;
    const auto entry = [&](int i) { return id + i < end ? modifier.counts[id + i] : 0; };
    counts = make_int4(entry(0), entry(1), entry(2), entry(3));
  };
  const auto adjust = [&](int id, float4& v, const int4& count) {
    bad |= isnan(max_or_nan(v));
    if constexpr (!kPlain) {
      if (only_counts && (count.x | count.y | count.z | count.w) == 0) return;
      if (id < end) v.x = modifier.adjust(v.x, id, count.x);
      if (id + 1 < end) v.y = modifier.adjust(v.y, id + 1, count.y);
      if (id + 2 < end) v.z = modifier.adjust(v.z, id + 2, count.z);
      if (id + 3 < end) v.w = modifier.adjust(v.w, id + 3, count.w);
    }
  };
  const auto offer = [&](int id, float value) {  // ids rise: the first of equals stays
    if (value > drawing.best.score) {
      drawing.best.score = value;
      drawing.best.id = id;
    }
  };
  int id = begin + static_cast<int>(threadIdx.x) * 4;
  float4 logits[kAhead];
  int4 counts[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(id + i * kStep, logits[i], counts[i]);
  if constexpr (kRandom) {
    float4 first = logits[0];
    if constexpr (!kPlain) adjust(id, first, counts[0]);
    drawing.open(modifier, id, first);
    __syncthreads();
  }
#pragma unroll 1
  for (; id < end; id += kAhead * kStep) {
#pragma unroll
    for (int i = 0; i < kAhead; i += 2) {  // two vectors together
      const int ids[2] = {id + i * kStep, id + (i + 1) * kStep};
      float4 now[2] = {logits[i], logits[i + 1]};
      const int4 now_counts[2] = {counts[i], counts[i + 1]};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        load(ids[j] + kAhead * kStep, logits[i + j], counts[i + j]);
        adjust(ids[j], now[j], now_counts[j]);
      }
      if constexpr (kRandom) {
        drawing.take(modifier, ids, now);
      } else {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          offer(ids[j], now[j].x);
          offer(ids[j] + 1, now[j].y);
          offer(ids[j] + 2, now[j].z);
          offer(ids[j] + 3, now[j].w);
        }
      }
    }
  }
}

__global__ void __launch_bounds__(kSampleThreads, 2)
    sample_draw_kernel(const __grid_constant__ Sample p, int parts) {
  __shared__ Shared shared;
  if (threadIdx.x == 0) shared.leading = ordered(kOut);
  __syncthreads();
  grid_begin();
  const std::int64_t index = blockIdx.x / static_cast<unsigned>(parts);
  const int part = static_cast<int>(blockIdx.x) % parts;
  const RowView view = row_view(p, index);
  if (view.cut) return;  // the whole cluster
  const int each = ((p.tokens + parts - 1) / parts + 31) / 32 * 32;
  const int begin = min(part * each, p.tokens);
  const int end = min(begin + each, p.tokens);
  const Modifier modifier = make_modifier(p, view, shared.biased, begin, each);
  Drawing drawing{view.row.seed,
                  static_cast<std::uint64_t>(view.row.output_position),
                  view.random ? kLog2E / view.row.temperature : 1.0F,
                  &shared.leading,
                  {}};
  bool bad = false;
  if (view.random) {
    if (modifier.plain)
      scan<true, true>(view, modifier, begin, end, drawing, bad);
    else
      scan<true, false>(view, modifier, begin, end, drawing, bad);
  } else {
    if (modifier.plain)
      scan<false, true>(view, modifier, begin, end, drawing, bad);
    else
      scan<false, false>(view, modifier, begin, end, drawing, bad);
  }
  bad = __syncthreads_or(static_cast<int>(bad)) != 0;
  const Best best = block_best(drawing.best, shared.best);
  if (threadIdx.x == 0) shared.result = make_float2(best.score, __int_as_float(bad ? -2 : best.id));
  cluster_barrier();
  if (part == 0 && threadIdx.x == 0) {
    Best all;
    for (int rank = 0; rank < parts; ++rank) {
      const float2 other =
          cluster_load(shared_address(&shared.result), static_cast<std::uint32_t>(rank));
      const int id = __float_as_int(other.y);
      bad |= id == -2;
      if (id >= 0) all.offer(other.x, id);
    }
    write_choice(p, index, bad ? -1 : all.id, view.counts);
  }
  __syncwarp();
  cluster_barrier();  // NOTE: no CTA may leave while another reads its result
}

}  // namespace

cudaError_t launch_sample_draw(const Sample& p, cudaStream_t stream) {
  const int parts = p.row_count <= 32 ? kPartsMax : p.row_count <= 64 ? 4 : kPartsMin;
  LaunchShape shape{dim3(static_cast<unsigned>(p.row_count * parts)), dim3(kSampleThreads)};
  shape.cluster = parts;
  return launch_kernel(sample_draw_kernel, shape, stream, p, parts);
}

cudaError_t launch_sample(const Sample& p, cudaStream_t stream) {
  if (p.vocabulary > kSampleTokensMax) return cudaErrorInvalidValue;
  cudaError_t status = launch_sample_draw(p, stream);
  if (status != cudaSuccess) return status;
  Sample rest = p;
  rest.streamed = p.row_count >= kSampleStreamRows;
  if (rest.streamed) status = launch_sample_stream(rest, stream);
  return status != cudaSuccess ? status : launch_sample_cut(rest, stream);
}

}  // namespace koho::cuda
