// SPDX-License-Identifier: Apache-2.0
// How decode attention cuts contexts and joins what it finds: the shared knowledge of its two
// kernels.
//
// The sums of a row have one fixed shape. A unit of 128 tokens, two pages, is summed by itself; the
// units of a group (`group_tokens` of context) are joined in order. A context of up to eight groups
// has as many spans; a longer one has wide spans of four groups, joined in order. Spans s, s + 8, …
// are joined in order by lane s % 8, then the lanes in order. What is joined by whom depends on the
// load: with few groups on the device a work item is a unit, else a group, and with many whole wide
// spans the first of them are items, so that less is written and read again: a group's sums are a
// twentieth of its e4m3 pages. The merge joins the rest. join() is the same operation in both
// places, so a row's bits depend on its context alone.
#pragma once

#include "cuda/kernels.h"
#include "cuda/numeric.cuh"
#include "cuda/ptx.cuh"

namespace koho::cuda {

constexpr int kUnitTokens = 128;
constexpr int kDecodeCtas = 2;      // an SM
constexpr int kUnitGroupsMax = 96;  // groups (times kv heads) up to which items are single units
constexpr int kSpanGroups = 4;      // of a wide one
constexpr int kSpansMax = 65535;    // that are items
constexpr int kMergeLanes = 8;
constexpr int kMergeWidthMax = 12288;  // of a row: 96 heads of 128

/// Floats of one item: sums [group rows, width], then largest and total of each row; a multiple of
/// 16 bytes.
__host__ __device__ constexpr int item_floats(int group, int width) {
  return group * width + (2 * group + 3) / 4 * 4;
}

__device__ __forceinline__ int units_of(int context) {
  return (context + kUnitTokens - 1) / kUnitTokens;
}
__device__ __forceinline__ int groups_of(const Attention& p, int context) {
  return (context + p.group_tokens - 1) / p.group_tokens;
}
__device__ __forceinline__ bool items_are_units(const Attention& p, int groups) {
  return groups * p.kv_heads <= kUnitGroupsMax;
}

/// Whole wide spans.
__device__ __forceinline__ int wide_spans_of(const Attention& p, int context) {
  return context > kMergeLanes * p.group_tokens ? context / p.group_tokens / kSpanGroups : 0;
}
/// How many of the wide spans of all sequences, in order, are items: as many as go round the CTAs,
/// and what is left too if its groups would take as long.
__device__ __forceinline__ int span_items(const Attention& p, int spans) {
  const int ctas = kDecodeCtas * p.multiprocessors;
  const int all = spans * p.kv_heads;
  const int left = all % ctas;
  const int items = left * kSpanGroups > (kSpanGroups - 1) * ctas ? all : all - left;
  return min(items / p.kv_heads, kSpansMax);
}

/// A row's softmax over some tokens but for the sums: their scale is 2^largest.
struct Softened {
  float largest = -INFINITY;
  float total = 0.0F;
};

/// What both sides' sums are multiplied by when `more` joins `state`, which is updated.
__device__ __forceinline__ float2 join(Softened& state, const Softened& more) {
  const float largest = fmaxf(state.largest, more.largest);
  const float base = largest == -INFINITY ? 0.0F : largest;
  const float2 factor =
      make_float2(exp2_approximate(state.largest - base), exp2_approximate(more.largest - base));
  state.largest = largest;
  state.total = __fmaf_rn(more.total, factor.y, __fmul_rn(state.total, factor.x));
  return factor;
}
__device__ __forceinline__ float join_sum(float sum, float more, float2 factor) {
  return __fmaf_rn(more, factor.y, __fmul_rn(sum, factor.x));
}

}  // namespace koho::cuda
