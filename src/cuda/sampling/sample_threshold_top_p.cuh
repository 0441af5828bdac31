// SPDX-License-Identifier: Apache-2.0
// Rows with top_p alone in sample_threshold_stream.cu: from the bins of one pass a bound, the draw
// among the few groups that may win, and, where a token of the threshold's bin wins, the threshold
// itself.
#pragma once

#include "cuda/sampling/sample_threshold_histogram.cuh"

namespace koho::cuda::sample_stream {

/// Lists the tokens that a bias or a count may change. All threads; no block is in flight any more,
/// whose memory the list takes.
__device__ void list_changes(const Row& tokens, const LogitsProcessor& processor, Shared& shared) {
  constexpr int kPrefetch = 4;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncthreads();
  if (threadIdx.x == 0) shared.listed = 0;
  __syncthreads();
#pragma unroll 1
  for (int begin = warp * kBlockTokens; begin < tokens.tokens; begin += kPrefetch * kBlocksStep) {
    std::uint32_t members[kPrefetch];
    int count = 0;
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) {
      const int block = begin + i * kBlocksStep;
      members[i] = block < tokens.tokens ? processor.changes(block) : 0U;
    }
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) count += __popc(members[i]);
    int behind = count;  // the last of this lane's
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFFU, behind, offset);
      if (lane >= offset) behind += other;
    }
    int place = lane == 31 && behind > 0 ? atomicAdd(&shared.listed, behind) : 0;
    place = __shfl_sync(0xFFFFFFFFU, place, 31) + behind - count;
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) {
#pragma unroll 1
      for (; members[i] != 0; members[i] &= members[i] - 1) {
        const int at = block_token(lane, __ffs(static_cast<int>(members[i])) - 1);
        if (place < kChangesMax) shared.blocks.changes[place] = begin + i * kBlocksStep + at;
        ++place;
      }
    }
  }
  __syncthreads();
}

/// Calls `use(place, raw, now)` for listed tokens that are allowed.
template <typename Use>
__device__ __forceinline__ void each_listed(const Row& tokens,
                                            const LogitsProcessor& processor,
                                            const Shared& shared,
                                            const Use& use) {
  constexpr int kPrefetch = 4;
  const int listed = shared.listed;
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < listed; at += kPrefetch * kSampleThreads) {
    int ids[kPrefetch];
    float raw[kPrefetch];
    std::int32_t entries[kPrefetch];
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) {
      const int place = at + i * kSampleThreads;
      ids[i] = place < listed ? shared.blocks.changes[place] : tokens.tokens;
      if (ids[i] >= tokens.tokens || !processor.allows(ids[i])) ids[i] = -1;
    }
#pragma unroll
    for (int i = 0; i < kPrefetch; ++i) {
      raw[i] = ids[i] >= 0 ? tokens.logits[ids[i]] : kMaskedLogit;
      entries[i] = ids[i] >= 0 ? processor.entry(ids[i]) : 0;
    }
#pragma unroll 1
    for (int i = 0; i < kPrefetch; ++i) {
      if (ids[0] >= 0)
        use(at + i * kSampleThreads, raw[0], processor.changed(raw[0], ids[0], entries[0]));
#pragma unroll
      for (int j = 0; j + 1 < kPrefetch; ++j) {  // shifted, so that the code of `use` exists once
        ids[j] = ids[j + 1];
        raw[j] = raw[j + 1];
        entries[j] = entries[j + 1];
      }
    }
  }
}

/// What the bins of add_tokens() say of a row.
template <bool kPlain>
struct TopP {
  const Row& tokens;
  const LogitsProcessor& processor;
  float middle;     // of the bin with the threshold
  float bound;      // no raw logit in this bin or above it is lower
  float threshold;  // -infinity as long as the whole bin is kept

  __device__ __forceinline__ float value(int id) const {
    if (id >= tokens.tokens) return kMaskedLogit;
    const float raw = logit_of<kPlain>(tokens, processor, id);
    if (!(raw >= bound)) return kMaskedLogit;
    const float after_temperature = processor.apply_temperature(raw);
    return bin_middle(after_temperature) >= middle && after_temperature >= threshold
               ? after_temperature
               : kMaskedLogit;
  }
};

/// Replaces each group's largest logit by an upper bound of its tokens' scores; by 0 if it does not
/// reach the bound. All threads.
template <bool kPlain>
__device__ void bound_groups(const TopP<kPlain>& row, Shared& shared, const Drawing& drawing) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int block = static_cast<int>(threadIdx.x) / 32 * kBlockTokens; block < row.tokens.tokens;
       block += kBlocksStep) {
    const std::int32_t number = race_group(block + lane * 4);
    const float most = upper_bound(shared.blocks.most[number]);
    float score = kMaskedLogit;
    if (most >= row.bound && most != kMaskedLogit) {
      const RaceDraw race = race_bits(number, drawing.position, drawing.seed);
      // As in Drawing::may_win(); the last term is more than the roundings.
      const float time = fmaxf(__uint2float_rd(~race.bits), 0.5F) * 0x1p-36F;
      const float after_temperature = row.processor.apply_temperature(most);
      score = after_temperature - __logf(time) + (0.01F + fabsf(after_temperature) * 0x1p-20F);
    }
    shared.blocks.most[number] = upper_bits(score);
  }
}

/// Draws among the groups that may win. Each warp takes its most promising one first, which gives a
/// score to beat. All threads.
template <bool kPlain>
__device__ Best draw_groups(const TopP<kPlain>& row, Shared& shared, Drawing& drawing) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int begin = static_cast<int>(threadIdx.x) / 32 * kBlockTokens;
  const auto most_at = [&](int block) { return shared.blocks.most[race_group(block + lane * 4)]; };
  const auto value_of = [&row](int id) { return row.value(id); };
  std::uint32_t top = 0;
  int top_block = begin;
  for (int block = begin; block < row.tokens.tokens; block += kBlocksStep) {
    const std::uint32_t most = most_at(block);
    if (most > top) {
      top = most;
      top_block = block;
    }
  }
  const std::uint32_t largest = __reduce_max_sync(0xFFFFFFFFU, top);
  if (largest != 0) {
    const int owner = __ffs(static_cast<int>(__ballot_sync(0xFFFFFFFFU, top == largest))) - 1;
    drawing.take(1U << owner, __shfl_sync(0xFFFFFFFFU, top_block, owner), value_of);
  }
  __syncthreads();
  for (int block = begin; block < row.tokens.tokens; block += kBlocksStep) {
    const float most = upper_bound(most_at(block));
    const std::uint32_t groups =
        __ballot_sync(0xFFFFFFFFU, most != kMaskedLogit && !(most < drawing.lead()));
    if (groups != 0) drawing.take(groups, block, value_of);
  }
  return block_best(drawing.best, shared.best);
}

/// Samples a row with top_p alone. The id, -1, or kSampleDeferred. All threads.
template <bool kPlain>
__device__ int sample_top_p(const SamplingRow& row,
                            const Row& tokens,
                            const LogitsProcessor& processor,
                            Shared& shared) {
  Selection& selection = shared.selection;
  Histogram histogram{0.0F, shared_address(selection.bins)};
  float largest;
  const int status = add_tokens<kPlain>(tokens, processor, shared, histogram, largest);
  if (status != 0) return status;
  const auto above =
      static_cast<int>(histogram.top - bin_middle(processor.apply_temperature(largest)));
  const auto scale = [&](int bin) { return bin_scale(max(bin - above, 0)); };  // none lies above
  const auto target = [&](std::uint64_t all) { return top_p_target(row.top_p, all); };
  if (!find_bin(selection, 0, target, scale)) return kSampleDeferred;
  const int chosen = selection.chosen;
  const float middle = histogram.top - static_cast<float>(chosen);
  const float lower = (middle - 1.0F) / kBinsPerNat;
  TopP<kPlain> found{tokens, processor, middle,
                     lower * row.temperature - (fabsf(lower) + 1.0F) * row.temperature * 0x1p-16F,
                     kMaskedLogit};
  Drawing drawing{row.seed, static_cast<std::uint64_t>(row.output_position), &shared.leading, {}};
  if (threadIdx.x == 0) shared.leading = ordered(kMaskedLogit);
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  bound_groups(found, shared, drawing);
  int id = draw_groups(found, shared, drawing).id;
  if (id < 0) return kSampleDeferred;
  const float winner = processor.apply_temperature(logit_of<kPlain>(tokens, processor, id));
  if (bin_middle(winner) != middle) return id;
  // The threshold itself, among the bin's values.
  const Binning binning{histogram.top, true};
  const float upper = (middle + 1.0F) / kBinsPerNat;
  const float above_bin =
      upper * row.temperature + (fabsf(upper) + 1.0F) * row.temperature * 0x1p-16F;
  const auto may_lie_in_it = [&](float raw) { return raw >= found.bound && raw <= above_bin; };
  const auto list = [&](float now) {
    if (!may_lie_in_it(now)) return;
    const float value = processor.apply_temperature(now);
    if (bin_middle(value) != middle) return;
    const int place = atomicAdd(&shared.count, 1);
    if (place >= kListMax) return;
    shared.blocks.values[place] = value;
    shared.weights[place] = binning.weight(value);
  };
  if constexpr (kPlain) {
    each_token(tokens, [&](int, float raw) { list(raw); });
  } else {
    // First list what lies there, and what a change may bring there; then look these up together.
    list_changes(tokens, processor, shared);
    const int changes = shared.listed;
    __syncthreads();
    each_token(tokens, [&](int id, float raw) {
      if (!may_lie_in_it(raw)) return;
      const int place = atomicAdd(&shared.listed, 1);
      if (place < kChangesMax) shared.blocks.changes[place] = id;
    });
    __syncthreads();
    if (shared.listed > kChangesMax) return kSampleDeferred;
    each_listed(tokens, processor, shared, [&](int place, float raw, float now) {
      if (place >= changes || !may_lie_in_it(raw)) list(now);
    });
  }
  __syncthreads();
  const int count = shared.count;
  if (count > kListMax) return kSampleDeferred;
  found.threshold =
      threshold_of_list(selection, shared.blocks.values, shared.weights, count, scale(chosen));
  if (winner >= found.threshold) return id;
  if (threadIdx.x == 0) shared.leading = ordered(kMaskedLogit);
  drawing.best = {};
  return draw_groups(found, shared, drawing).id;
}

}  // namespace koho::cuda::sample_stream
