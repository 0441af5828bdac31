// SPDX-License-Identifier: Apache-2.0
// The vector kernels' attention. Included through vector_kernels.h.
//
// Rows are (token, query head) pairs of one KV head. For each page of keys: upcast the keys to f32,
// compute each row's 64 scores as dot products along D, update its running maximum and sum (online
// softmax), and add the values key after key. A row does the same arithmetic whichever rows are
// with it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/vector_rows.h"

namespace koho::cpu {
namespace {

template <typename V>
struct VectorAttention : VectorRows<V> {
  using Rows = VectorRows<V>;
  using Rows::exp;
  using Rows::kLanes;
  using Rows::least;
  using Rows::load_bf16;
  using Rows::load_bf16_at;
  using Rows::load_e4m3;
  using Rows::load_f32;
  using Rows::most;
  using Rows::round_up_to;
  using Rows::store_bf16;
  using typename Rows::F;

  static constexpr std::int64_t kPageKeys = 64;
  static constexpr std::int64_t kAttendRows = 64;  // at once
  static constexpr std::int64_t kValueVectors = V::kValueVectors;

  struct AttendState {
    float* q;        // [rows][width padded]
    float* sums;     // [rows][width padded]
    float* page;     // [64][width padded]
    float* scores;   // [rows][64]
    float* maximum;  // [rows]
    float* total;    // [rows]
    std::int64_t width;
  };

  static std::int64_t attend_scratch_bytes(std::int64_t width) {
    const std::int64_t padded = round_up_to(width, kLanes * kValueVectors);
    return static_cast<std::int64_t>(sizeof(float)) *
           ((2 * kAttendRows + kPageKeys) * padded + kAttendRows * (kPageKeys + 2) + 64);
  }

  static AttendState attend_state(const AttendTask& task) {
    AttendState state;
    state.width = round_up_to(task.width, kLanes * kValueVectors);
    state.q = reinterpret_cast<float*>(task.scratch);
    state.sums = state.q + kAttendRows * state.width;
    state.page = state.sums + kAttendRows * state.width;
    state.scores = state.page + kPageKeys * state.width;
    state.maximum = state.scores + kAttendRows * kPageKeys;
    state.total = state.maximum + kAttendRows;
    return state;
  }

  /// `keys` rows of a page as f32, padded with zeros.
  static void upcast_page(const AttendTask& task,
                          const AttendState& state,
                          const std::byte* cache,
                          std::int64_t page,
                          std::int64_t keys) {
    for (std::int64_t key = 0; key < keys; ++key) {
      const std::int64_t at = page * task.page_stride + key * task.width;
      float* out = state.page + key * state.width;
      for (std::int64_t d = 0; d < state.width; d += kLanes) {
        const std::int64_t count = task.width - d;
        F value = V::zero();
        if (count > 0)
          value = task.k_scales == nullptr
                      ? load_bf16(reinterpret_cast<const BFloat16*>(cache) + at + d, count)
                      : load_e4m3(reinterpret_cast<const Float8E4M3*>(cache) + at + d, count);
        V::store(out + d, value);
      }
    }
  }

  /// Dot products of kRows queries with the first `keys` keys of the page.
  template <int kRows>
  static void score_rows(const AttendState& state, std::int64_t row, std::int64_t keys) {
    const float* q = state.q + row * state.width;
    float* scores = state.scores + row * kPageKeys;
    for (std::int64_t key = 0; key < keys; ++key) {
      const float* k = state.page + key * state.width;
      F sums[extent(kRows)];
      for (int r = 0; r < kRows; ++r) sums[r] = V::zero();
      for (std::int64_t d = 0; d < state.width; d += kLanes) {
        const F value = V::load(k + d);
        for (int r = 0; r < kRows; ++r)
          sums[r] = V::fma(value, V::load(q + r * state.width + d), sums[r]);
      }
      for (int r = 0; r < kRows; ++r) scores[r * kPageKeys + key] = V::sum(sums[r]);
    }
  }

  /// Turns one row's scores into shares of its softmax and shrinks what it summed so far.
  static void softmax_row(const AttendTask& task,
                          const AttendState& state,
                          std::int64_t row,
                          std::int64_t page,
                          std::int64_t keys) {
    float* scores = state.scores + row * kPageKeys;
    const float* k_scales =
        task.k_scales == nullptr ? nullptr : task.k_scales + page * task.scale_page_stride;
    const F minus_infinity = V::set1(-__builtin_inff());
    F largest = minus_infinity;
    for (std::int64_t i = 0; i < kPageKeys; i += kLanes) {
      F score = minus_infinity;
      if (i < keys) {
        score = V::mul(load_f32(scores + i, keys - i), V::set1(task.scale));
        if (k_scales != nullptr) score = V::mul(score, load_f32(k_scales + i, keys - i));
        score = V::first_lanes(score, keys - i, minus_infinity);
      }
      largest = V::max_ignoring_nan(score, largest);
      V::store(scores + i, score);
    }
    const float before = state.maximum[row];
    const float page_largest = V::max_of(largest);
    const float maximum = page_largest > before ? page_largest : before;
    float shrink = 1.0F;
    if (maximum != before) {
      float lanes[extent(kLanes)];
      V::store(lanes, exp(V::set1(before - maximum)));
      shrink = lanes[0];
    }
    F total = V::zero();
    for (std::int64_t i = 0; i < kPageKeys; i += kLanes) {
      const F share = exp(V::sub(V::load(scores + i), V::set1(maximum)));
      total = V::add(total, V::first_lanes(share, keys - i, V::zero()));
      V::store(scores + i, share);
    }
    state.maximum[row] = maximum;
    state.total[row] = state.total[row] * shrink + V::sum(total);
    if (task.v_scales != nullptr) {
      const float* v_scales = task.v_scales + page * task.scale_page_stride;
      for (std::int64_t i = 0; i < keys; ++i) scores[i] *= v_scales[i];
    }
    if (shrink == 1.0F) return;
    float* sums = state.sums + row * state.width;
    for (std::int64_t d = 0; d < state.width; d += kLanes)
      V::store(sums + d, V::mul(V::load(sums + d), V::set1(shrink)));
  }

  /// sums += shares of keys first..end-1 times the page's values.
  template <int kRows>
  static void accumulate(const AttendState& state,
                         std::int64_t row,
                         std::int64_t first,
                         std::int64_t end) {
    const float* shares = state.scores + row * kPageKeys;
    for (std::int64_t d = 0; d < state.width; d += kLanes * kValueVectors) {
      float* sums = state.sums + row * state.width + d;
      F parts[extent(kRows)][extent(kValueVectors)];
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kValueVectors; ++v)
          parts[r][v] = V::load(sums + r * state.width + v * kLanes);
      for (std::int64_t key = first; key < end; ++key) {
        const float* value = state.page + key * state.width + d;
        F values[extent(kValueVectors)];
        for (int v = 0; v < kValueVectors; ++v) values[v] = V::load(value + v * kLanes);
        for (int r = 0; r < kRows; ++r) {
          const F share = V::set1(shares[r * kPageKeys + key]);
          for (int v = 0; v < kValueVectors; ++v)
            parts[r][v] = V::fma(share, values[v], parts[r][v]);
        }
      }
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kValueVectors; ++v)
          V::store(sums + r * state.width + v * kLanes, parts[r][v]);
    }
  }

  /// Keys of the page at `first` that row `row` of the task sees.
  static std::int64_t keys_of(const AttendTask& task, std::int64_t row, std::int64_t first) {
    return most(0, least(kPageKeys, task.visible[row / task.group] - first));
  }

  static void attend_page(const AttendTask& task,
                          const AttendState& state,
                          std::int64_t row0,
                          std::int64_t rows,
                          std::int64_t first) {
    constexpr int kRows = 4;
    const std::int64_t page = task.pages[first / kPageKeys];
    // visible[] never falls from token to token, so a run's last row sees most.
    const std::int64_t keys = keys_of(task, row0 + rows - 1, first);
    upcast_page(task, state, task.k, page, keys);
    std::int64_t row = 0;
    for (; row + kRows <= rows; row += kRows)
      score_rows<kRows>(state, row, keys_of(task, row0 + row + kRows - 1, first));
    for (; row < rows; ++row) score_rows<1>(state, row, keys_of(task, row0 + row, first));
    for (row = 0; row < rows; ++row)
      if (keys_of(task, row0 + row, first) > 0)
        softmax_row(task, state, row, page, keys_of(task, row0 + row, first));
    upcast_page(task, state, task.v, page, keys);
    for (row = 0; row + kRows <= rows; row += kRows) {
      const std::int64_t common = keys_of(task, row0 + row, first);
      accumulate<kRows>(state, row, 0, common);
      for (std::int64_t r = row + 1; r < row + kRows; ++r)
        accumulate<1>(state, r, common, keys_of(task, row0 + r, first));
    }
    for (; row < rows; ++row) accumulate<1>(state, row, 0, keys_of(task, row0 + row, first));
  }

  static void attend(const AttendTask& task) {
    const AttendState state = attend_state(task);
    const std::int64_t all_rows = task.tokens * task.group;
    for (std::int64_t row0 = 0; row0 < all_rows; row0 += kAttendRows) {
      const std::int64_t rows = least(kAttendRows, all_rows - row0);
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t token = (row0 + row) / task.group;
        const BFloat16* q = task.q + token * task.q_stride + (row0 + row) % task.group * task.width;
        for (std::int64_t d = 0; d < state.width; d += kLanes) {
          V::store(state.q + row * state.width + d, load_bf16_at(q, d, task.width));
          V::store(state.sums + row * state.width + d, V::zero());
        }
        state.maximum[row] = -__builtin_inff();
        state.total[row] = 0.0F;
      }
      const std::int64_t visible = task.visible[(row0 + rows - 1) / task.group];
      for (std::int64_t first = 0; first < visible; first += kPageKeys)
        attend_page(task, state, row0, rows, first);
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t token = (row0 + row) / task.group;
        BFloat16* out = task.out + token * task.out_stride + (row0 + row) % task.group * task.width;
        const F total = V::set1(state.total[row]);
        for (std::int64_t d = 0; d < task.width; d += kLanes)
          store_bf16(out + d, V::div(V::load(state.sums + row * state.width + d), total),
                     task.width - d);
      }
    }
  }
};

}  // namespace
}  // namespace koho::cpu
