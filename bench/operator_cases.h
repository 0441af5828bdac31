// SPDX-License-Identifier: Apache-2.0
// The parts of the list of operator cases, by theme; op_bench_cases() joins them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/operator_bench.h"

namespace koho::app {

std::vector<OpBenchCase> row_bench_cases();
std::vector<OpBenchCase> batch_slot_bench_cases();
std::vector<OpBenchCase> sampling_bench_cases();

inline TensorView cut(const TensorView& view, RowRange rows) {
  return view.empty() ? view : view.slice(0, rows.first, rows.count);
}
inline ConstTensorView cut(const ConstTensorView& view, RowRange rows) {
  return view.empty() ? view : view.slice(0, rows.first, rows.count);
}
inline Activation cut(const Activation& x, RowRange rows) {
  return {cut(x.values, rows), cut(x.quantized, rows), cut(x.scales, rows),
          cut(x.block_quantized, rows), cut(x.block_scales, rows)};
}

/// The first `tokens` rows of both.
inline Sides<TensorView> first(const Sides<TensorView>& views, std::int64_t tokens) {
  return {views.measured.first(tokens), views.reference.first(tokens)};
}

}  // namespace koho::app
