// SPDX-License-Identifier: Apache-2.0
// The plain inner loops: what each of them means, one element at a time, for any machine; multiply
// takes four weight rows at once, in the vectors that every machine's compiler has. The vector
// tables are compared with the same float64 references (tests/ops).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/kernels.h"

namespace koho::cpu {
namespace {

std::array<float, 256> e4m3_values() {
  std::array<float, 256> values{};
  for (std::size_t fp8 = 0; fp8 < values.size(); ++fp8)
    values[fp8] = to_float(Float8E4M3{static_cast<std::uint8_t>(fp8)});
  return values;
}

const std::array<float, 256> kE4M3Values = e4m3_values();

/// Elements first..first+n-1 of a row as f32.
void upcast(float* out, Format format, const void* row, std::int64_t first, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    switch (format) {
      case Format::bf16:
        out[i] = to_float(static_cast<const BFloat16*>(row)[first + i]);
        break;
      case Format::f32:
        // NOTE: a mapped f32 weight may lie at any address its checkpoint gives it.
        std::memcpy(&out[i], static_cast<const std::byte*>(row) + (first + i) * 4, 4);
        break;
      case Format::e4m3:
        out[i] = kE4M3Values[static_cast<const std::uint8_t*>(row)[first + i]];
        break;
    }
  }
}

// ---- matrices: a panel is 16 rows of f32

std::int64_t panel_bytes(Format, std::int64_t columns) {
  return kPanelTokens * columns * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t multiply_scratch_bytes(std::int64_t) {
  return 0;
}

void stage(const StageTask& task) {
  float* panel = reinterpret_cast<float*>(task.panel);
  // x is bf16 where the weight is f32 (the router).
  const Format format = task.format == Format::f32 ? Format::bf16 : task.format;
  for (std::int64_t t = 0; t < task.count; ++t)
    upcast(panel + t * task.columns, format, task.rows[t], 0, task.columns);
}

/// The sums of four weight rows, each in the order of its columns.
constexpr std::int64_t kLanes = 4;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

void multiply(const MultiplyTask& task) {
  const std::int64_t blocks = (task.columns + kScaleBlock - 1) / kScaleBlock;
  std::fill_n(task.sums, task.tokens * task.rows, 0.0F);
  std::array<float, kScaleBlock> row{};
  std::array<Lanes, kScaleBlock> weights{};
  for (std::int64_t n = 0; n < task.rows; n += kLanes) {
    const std::int64_t rows = std::min(kLanes, task.rows - n);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t first = block * kScaleBlock;
      const std::int64_t columns = std::min(kScaleBlock, task.columns - first);
      for (std::int64_t lane = 0; lane < rows; ++lane) {
        upcast(row.data(), task.format, task.weight + (n + lane) * task.row_bytes, first, columns);
        for (std::size_t k = 0; k < row.size(); ++k) weights[k][lane] = row[k];
      }
      for (std::int64_t t = 0; t < task.tokens; ++t) {
        const std::byte* panel = task.panels + t / kPanelTokens * task.panel_bytes;
        const float* x =
            reinterpret_cast<const float*>(panel) + t % kPanelTokens * task.columns + first;
        Lanes sums{};
        const Lanes* weight = weights.data();
        for (std::int64_t k = 0; k < columns; ++k) sums += x[k] * weight[k];
        for (std::int64_t lane = 0; lane < rows; ++lane) {
          float sum = sums[lane];
          if (task.token_scales != nullptr)
            sum *= task.token_scales[t * blocks + block] * task.weight_scales[block];
          task.sums[t * task.rows + n + lane] += sum;
        }
      }
    }
  }
}

void store(const StoreTask& task) {
  for (std::int64_t t = 0; t < task.tokens; ++t) {
    for (std::int64_t n = 0; n < task.rows; ++n) {
      float value = task.sums[t * task.rows + n];
      if (task.weight_scales != nullptr)
        value = task.token_scales[t] * (task.weight_scales[n] * value);
      if (task.bias != nullptr) value += task.bias[n];
      if (task.out_f32 != nullptr)
        task.out_f32[t * task.out_stride + n] = value;
      else
        task.out_bf16[t * task.out_stride + n] = to_bf16(value);
    }
  }
}

// ---- rows

void add_row(BFloat16* residual, const BFloat16* block_output, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i)
    residual[i] = to_bf16(to_float(residual[i]) + to_float(block_output[i]));
}

void norm_row(BFloat16* out, const BFloat16* x, const BFloat16* weight, std::int64_t n, float eps) {
  double squares = 0.0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(to_float(x[i]));
    squares += value * value;
  }
  const float mean = static_cast<float>(squares / static_cast<double>(n));
  const float factor = 1.0F / std::sqrt(mean + eps);
  for (std::int64_t i = 0; i < n; ++i) {
    const BFloat16 normalized = to_bf16(to_float(x[i]) * factor);
    out[i] = weight == nullptr ? normalized : to_bf16(to_float(weight[i]) * to_float(normalized));
  }
}

float quantize_row(Float8E4M3* quantized, const BFloat16* x, std::int64_t n, float least) {
  float largest = 0.0F;
  for (std::int64_t i = 0; i < n; ++i) largest = std::fmax(largest, std::fabs(to_float(x[i])));
  float scale = std::fmax(largest / kE4M3Max, least);
  if (scale == 0.0F) scale = 1.0F;
  for (std::int64_t i = 0; i < n; ++i) quantized[i] = to_e4m3(to_float(x[i]) / scale);
  return scale;
}

void silu_mul_row(BFloat16* out, const BFloat16* gate, const BFloat16* up, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = to_float(gate[i]);
    const float silu = round_to_bf16(value / (1.0F + std::exp(-value)));
    out[i] = to_bf16(silu * to_float(up[i]));
  }
}

void rotate_row(BFloat16* row, const float* cosines, const float* sines, std::int64_t rotary) {
  const std::int64_t half = rotary / 2;
  for (std::int64_t j = 0; j < half; ++j) {
    const float a = to_float(row[j]);
    const float b = to_float(row[j + half]);
    row[j] = to_bf16(a * cosines[j] - b * sines[j]);
    row[j + half] = to_bf16(b * cosines[j] + a * sines[j]);
  }
}

void add_weighted_row(float* sums, const BFloat16* row, float weight, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) sums[i] += weight * to_float(row[i]);
}

void round_row(BFloat16* out, const float* sums, const BFloat16* shared, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float routed = round_to_bf16(sums[i]);
    out[i] = to_bf16(shared == nullptr ? routed : routed + to_float(shared[i]));
  }
}

// ---- attention

std::int64_t attend_scratch_bytes(std::int64_t width) {
  return 3 * width * static_cast<std::int64_t>(sizeof(float));
}

/// One query head of one token: the softmax is carried from page to page by its running maximum.
void attend_head(const AttendTask& task, const BFloat16* q, BFloat16* out, std::int64_t visible) {
  constexpr std::int64_t kPage = 64;
  const std::int64_t width = task.width;
  float* query = reinterpret_cast<float*>(task.scratch);
  float* row = query + width;
  float* sums = row + width;
  const Format format = task.k_scales != nullptr ? Format::e4m3 : Format::bf16;
  const std::int64_t element = format == Format::e4m3 ? 1 : 2;
  upcast(query, Format::bf16, q, 0, width);
  std::fill_n(sums, width, 0.0F);
  float maximum = -std::numeric_limits<float>::infinity();
  float total = 0.0F;
  for (std::int64_t first = 0; first < visible; first += kPage) {
    const std::int64_t keys = std::min(kPage, visible - first);
    const std::int64_t page = task.pages[first / kPage];
    const std::byte* k = task.k + page * task.page_stride * element;
    const std::byte* v = task.v + page * task.page_stride * element;
    std::array<float, kPage> scores;
    float page_maximum = maximum;
    for (std::int64_t i = 0; i < keys; ++i) {
      upcast(row, format, k + i * width * element, 0, width);
      float score = 0.0F;
      for (std::int64_t d = 0; d < width; ++d) score += query[d] * row[d];
      score *= task.scale;
      if (format == Format::e4m3) score *= task.k_scales[page * task.scale_page_stride + i];
      scores[static_cast<std::size_t>(i)] = score;
      page_maximum = std::fmax(page_maximum, score);
    }
    const float shrink = std::exp(maximum - page_maximum);
    maximum = page_maximum;
    total *= shrink;
    for (std::int64_t d = 0; d < width; ++d) sums[d] *= shrink;
    for (std::int64_t i = 0; i < keys; ++i) {
      float share = std::exp(scores[static_cast<std::size_t>(i)] - maximum);
      total += share;
      if (format == Format::e4m3) share *= task.v_scales[page * task.scale_page_stride + i];
      upcast(row, format, v + i * width * element, 0, width);
      for (std::int64_t d = 0; d < width; ++d) sums[d] += share * row[d];
    }
  }
  for (std::int64_t d = 0; d < width; ++d) out[d] = to_bf16(sums[d] / total);
}

void attend(const AttendTask& task) {
  for (std::int64_t t = 0; t < task.tokens; ++t)
    for (std::int64_t head = 0; head < task.group; ++head)
      attend_head(task, task.q + t * task.q_stride + head * task.width,
                  task.out + t * task.out_stride + head * task.width, task.visible[t]);
}

}  // namespace

const Kernels& scalar_kernels() {
  static constexpr Kernels kKernels{.name = "plain",
                                    .panel_bytes = panel_bytes,
                                    .multiply_scratch_bytes = multiply_scratch_bytes,
                                    .stage = stage,
                                    .multiply = multiply,
                                    .store = store,
                                    .add_row = add_row,
                                    .norm_row = norm_row,
                                    .quantize_row = quantize_row,
                                    .silu_mul_row = silu_mul_row,
                                    .rotate_row = rotate_row,
                                    .add_weighted_row = add_weighted_row,
                                    .round_row = round_row,
                                    .attend_scratch_bytes = attend_scratch_bytes,
                                    .attend = attend};
  return kKernels;
}

}  // namespace koho::cpu
