// SPDX-License-Identifier: Apache-2.0
// Sampling of many rows with thresholds: a CTA a row, which streams it from memory and keeps next
// to nothing of it.
//
//   top_k    once: of every part of the row read so far the k-th largest is a lower bound of the
//            row's, so only what lies above it is kept as a candidate. The bound is raised after
//            each segment, and segments grow threefold: some 2k candidates each. The exact
//            threshold is then found among the candidates; min_p and top_p cut what top_k kept.
//   min_p    once, in the same way: the bound follows the largest so far.
//   top_p    once: its probability goes into bins by distance from a reference above the largest so
//            far (what exceeds it waits in a list; the bins are then shifted, which loses nothing),
//            and the largest of every group of the race is kept. The bin in which the threshold
//            lies gives a bound; among the groups that reach it, few can win with their earliest
//            times, and only those are read again. If a token of that bin wins, about once in 200
//            draws, the row is read again for the threshold itself.
//   changes  biases, penalties and masks as a token is read, in code of its own: what is only
//            lowered and lies below the bound already needs none; for top_p a lane changes its
//            group of a block in shared memory, whose bitmaps are read two blocks ahead, and masks it
//            in registers. Reading again, it lists what lies in the bin and what a change may bring
//            there, and looks these tokens' counts up side by side.
//   left     rows it does not take (log-probabilities, large top_k) or that do not fit its lists:
//            their id becomes kSampleDeferred, and the kernel behind (sample_threshold_cluster.cu) does them.
//   shared   112 KB: candidates or blocks of 512 tokens under way, bins, groups' largest
//   bytes    the logits once; under penalties bitmaps and counts besides
//
// Thresholds are those of the cut kernel to the bit, so a row's draw does not depend on how many
// rows there are: both use the integers of sample.cuh. Numbers: docs/kernels/README.md; what was
#include "cuda/device/launch.cuh"
#include "cuda/sampling/sample_threshold_candidates.cuh"
#include "cuda/sampling/sample_threshold_top_p.cuh"

namespace koho::cuda::sample_stream {
namespace {

/// Whether a row is this kernel's.
__device__ __forceinline__ bool takes(const Sample& p, const RowView& view) {
  const SamplingRow& row = view.row;
  const bool logprobs = row.logprobs >= 0 && (p.logprobs != nullptr || p.top_ids != nullptr);
  const bool fits = row.top_k <= kTopMax || row.top_k >= p.tokens;
  return view.random && !logprobs && fits &&
         reinterpret_cast<std::uintptr_t>(view.logits) % 16 == 0;
}

/// The id of a row with thresholds, -1, or kSampleDeferred. All threads.
template <bool kPlain>
__device__ __forceinline__ int sample_streamed(const SamplingRow& row,
                                               const Row& tokens,
                                               const LogitsProcessor& processor,
                                               Shared& shared) {
  const bool once = (row.top_k > 0 && row.top_k < tokens.tokens) || row.min_p > 0.0F;
  if (once) return sample_candidates<kPlain>(row, tokens, processor, shared);
  if (row.top_p < 1.0F) return sample_top_p<kPlain>(row, tokens, processor, shared);
  return kSampleDeferred;
}

__global__ void __launch_bounds__(kSampleThreads, 2)
    sample_threshold_stream_kernel(const __grid_constant__ Sample p) {
  extern __shared__ __align__(16) std::uint8_t shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  // NOTE: no wait here, as in sample_threshold_cluster.cu: the kernel before has other rows and
  // waited itself.
  const std::int64_t index = blockIdx.x;
  const RowView view = row_view(p, index);
  if (view.has_thresholds) {
    const SamplingRow& row = view.row;
    int id = kSampleDeferred;
    if (takes(p, view)) {
      const Row tokens{view.logits, p.tokens};
      if (row.bias_count == 0 && row.mask_row < 0 && view.counts == nullptr) {
        const LogitsProcessor processor{&row,    nullptr,         nullptr, nullptr, nullptr,
                                        nullptr, row.temperature, 0,       true};
        id = sample_streamed<true>(row, tokens, processor, shared);
      } else {
        const LogitsProcessor processor =
            make_logits_processor(p, view, shared.biased, 0, part_tokens(p.tokens, 1));
        id = sample_streamed<false>(row, tokens, processor, shared);
      }
      cp_async_wait_group<0>();  // of a row that was left to others midway
      __syncthreads();           // NOTE: threads have read the winner's count before it is raised
    }
    if (threadIdx.x == 0) {
      if (id == kSampleDeferred)
        p.ids[index] = id;
      else
        write_sampled(p, index, id, view);
    }
  }
  pdl_begin();
}

}  // namespace
}  // namespace koho::cuda::sample_stream

namespace koho::cuda {

cudaError_t launch_sample_threshold_stream(const Sample& p, cudaStream_t stream) {
  static PerDevice prepared;
  const cudaError_t ready = prepared.once([] {
    return allow_dynamic_shared_memory(sample_stream::sample_threshold_stream_kernel,
                                       sizeof(sample_stream::Shared));
  });
  if (ready != cudaSuccess) return ready;
  return launch_kernel(sample_stream::sample_threshold_stream_kernel,
                       {dim3(static_cast<unsigned>(p.row_count)), dim3(kSampleThreads),
                        sizeof(sample_stream::Shared)},
                       stream, p);
}

const void* kernel_of::sample_threshold_stream() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
