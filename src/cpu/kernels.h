// SPDX-License-Identifier: Apache-2.0
// The inner loops of the CPU backend: one table of functions per instruction set. What is computed
// for which token, in which order and on which thread lies above and is common to all tables. A
// file that fills a table is compiled for its instruction set, so it includes no header whose
// inline functions the linker could merge with those of the rest of the program.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/number.h"

namespace koho::cpu {

/// How a matrix' elements are stored.
enum class Format : std::uint8_t { bf16, f32, e4m3 };

/// Tokens of a panel: staging lays tokens out for multiply() in panels.
inline constexpr std::int64_t kPanelTokens = 16;

/// Most tokens of one MultiplyTask.
inline constexpr std::int64_t kTokensMax = 512;

/// Columns that share a scale in block quantisation.
inline constexpr std::int64_t kScaleBlock = 128;

/// Lays out up to 16 rows of x as multiply() reads them.
struct StageTask {
  Format format = Format::bf16;  // of x and of the weight
  bool block_scales = false;     // whether multiply() gets them
  std::int64_t tokens = 0;       // of the whole multiply()
  const void* const* rows = nullptr;
  std::int64_t count = 0;    // 1..16
  std::int64_t columns = 0;  // K
  std::byte* panel = nullptr;
};

/// sums[t, n] = sum_k x[t, k] * w[n, k] in f32, in an order that depends on K alone. With block
/// scales each 128 columns' sum is multiplied by token_scales[t, block] * weight_scales[block].
struct MultiplyTask {
  Format format = Format::bf16;
  const std::byte* weight = nullptr;  // row 0
  std::int64_t row_bytes = 0;         // from row to row
  std::int64_t rows = 0;              // 1..kRowsMax
  std::int64_t columns = 0;           // K
  const std::byte* panels = nullptr;
  std::int64_t panel_bytes = 0;          // from panel to panel
  std::int64_t tokens = 0;               // 1..kTokensMax
  const float* token_scales = nullptr;   // [T, ceil(K/128)], or none
  const float* weight_scales = nullptr;  // [ceil(K/128)], or none
  float* sums = nullptr;                 // [T, rows]
  std::byte* scratch = nullptr;          // multiply_scratch_bytes(), this thread's
  const std::byte* next = nullptr;       // what this thread probably reads after these rows
};

/// Most weight rows of one MultiplyTask; divides 128, so that a task has one row of block scales.
inline constexpr std::int64_t kRowsMax = 64;

/// out[t, n] = token_scales[t] * (weight_scales[n] * sums[t, n]) + bias[n], rounded to bf16 or not.
struct StoreTask {
  const float* sums = nullptr;  // [T, rows]
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
  const float* token_scales = nullptr;   // [T], or none
  const float* weight_scales = nullptr;  // [rows], or none
  const float* bias = nullptr;           // [rows], or none
  BFloat16* out_bf16 = nullptr;          // one of the two
  float* out_f32 = nullptr;
  std::int64_t out_stride = 0;  // elements from token to token
};

/// Causal attention of the query heads of one kv head, for consecutive tokens of one sequence.
struct AttendTask {
  const BFloat16* q = nullptr;            // token 0, first head: [G, D]
  std::int64_t q_stride = 0;              // elements from token to token
  BFloat16* out = nullptr;                // like q
  std::int64_t out_stride = 0;            // elements from token to token
  std::int64_t tokens = 0;                // 1..kAttendTokensMax
  std::int64_t group = 0;                 // G, query heads of this kv head
  std::int64_t width = 0;                 // D
  const std::int64_t* visible = nullptr;  // [tokens]: keys 0..visible-1 are seen, >= 1
  const std::int32_t* pages = nullptr;    // this sequence's page table
  const std::byte* k = nullptr;           // page 0 of this kv head: [64, D]
  const std::byte* v = nullptr;
  const float* k_scales = nullptr;  // page 0 of this kv head: [64]; none for bf16
  const float* v_scales = nullptr;
  std::int64_t page_stride = 0;        // elements from page to page
  std::int64_t scale_page_stride = 0;  // scales from page to page
  float scale = 0.0F;
  std::byte* scratch = nullptr;  // attend_scratch_bytes(), this thread's
};

inline constexpr std::int64_t kAttendTokensMax = 16;

/// One instruction set's inner loops. `n` counts elements of a row.
struct Kernels {
  const char* name;

  std::int64_t (*panel_bytes)(Format format, std::int64_t columns);
  std::int64_t (*multiply_scratch_bytes)(std::int64_t columns);
  void (*stage)(const StageTask& task);
  void (*multiply)(const MultiplyTask& task);
  void (*store)(const StoreTask& task);

  /// residual = bf16(residual + block_output).
  void (*add_row)(BFloat16* residual, const BFloat16* block_output, std::int64_t n);
  /// out = bf16(weight * bf16(x / sqrt(mean(x^2) + eps))); weight may be none (then 1); out may be
  /// x.
  void (*norm_row)(
      BFloat16* out, const BFloat16* x, const BFloat16* weight, std::int64_t n, float eps);
  /// scale = max(max|x| / 448, least), or 1 if that is 0; quantized = e4m3(x / scale). The
  /// maximum ignores NaN, which stays NaN. Returns the scale.
  float (*quantize_row)(Float8E4M3* quantized, const BFloat16* x, std::int64_t n, float least);
  /// out = bf16(bf16(silu(gate)) * up).
  void (*silu_mul_row)(BFloat16* out, const BFloat16* gate, const BFloat16* up, std::int64_t n);
  /// Rotates dims j and j + rotary/2 of a row by the table's angles, in place.
  void (*rotate_row)(BFloat16* row, const float* cosines, const float* sines, std::int64_t rotary);
  /// sums += weight * bf16 row.
  void (*add_weighted_row)(float* sums, const BFloat16* row, float weight, std::int64_t n);
  /// out = bf16(sums), or bf16(bf16(sums) + shared).
  void (*round_row)(BFloat16* out, const float* sums, const BFloat16* shared, std::int64_t n);

  /// For heads of at most `width` dims.
  std::int64_t (*attend_scratch_bytes)(std::int64_t width);
  void (*attend)(const AttendTask& task);
};

const Kernels& scalar_kernels();
/// Null if this build or this machine lacks the instructions.
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* avx512_bf16_kernels();
const Kernels* amx_kernels();

}  // namespace koho::cpu
