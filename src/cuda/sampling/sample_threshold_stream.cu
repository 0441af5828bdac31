// SPDX-License-Identifier: Apache-2.0
// Sampling of many rows with thresholds: a CTA a row, which streams it from memory and keeps next
// to nothing of it.
//
//   top_k    one pass (sample_threshold_candidates.cuh). Of what has been read of the row the
//            k-th largest is a lower bound of the row's, so only tokens above it are candidates.
//            The bound rises after each segment, and segments grow threefold: some 2k candidates
//            each. The exact threshold is then found among the candidates; min_p and top_p filter
//            what top_k kept
//   min_p    one pass, in the same way: the bound follows the largest so far
//   top_p    one pass (sample_threshold_top_p.cuh). Each token's probability goes into bins by
//            distance from a reference above the largest so far; what exceeds it waits in a list
//            until the bins are shifted, which loses nothing. The largest of every group is kept.
//            The bin with the threshold gives a bound; few groups that reach it can win, and only
//            these are read again. If a token of that bin wins, once in 200 draws, the row is read
//            again for the exact threshold
//   changes  biases, penalties and masks are applied as a token is read. A token that they only
//            lower and that lies below the bound needs none. Under top_p a lane changes its group
//            in shared memory and masks it in registers; bitmaps are prefetched by two blocks
//   deferred log-probabilities, large top_k, and rows that do not fit the lists: their id becomes
//            kSampleDeferred, and sample_threshold_cluster.cu samples them
//   shared   112 KB: candidates or blocks of 512 tokens in flight, bins, groups' largest
//   bytes    the logits once; under penalties bitmaps and counts besides
//
// Thresholds are those of sample_threshold_cluster.cu to the bit (sample_threshold.cuh), so a row's
// draw does not depend on the number of rows. Measured times and what was tried:
// docs/kernels/sampling.md.
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
  // NOTE: no wait here, as in sample_threshold_cluster.cu: the previous kernel has other rows and
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
            make_logits_processor(p, view, shared.biased, 0, shard_tokens(p.tokens, 1));
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
