// SPDX-License-Identifier: Apache-2.0
#include "ops/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/arithmetic.h"
#include "ops/compare.h"

namespace koho::testing {

DeviceActivation::DeviceActivation(Backend& backend,
                                   const SyntheticActivation& source,
                                   const ActivationNeeds& needs,
                                   std::int64_t row_gap)
    : needs_(needs) {
  if (needs.values) values = DeviceArray(backend, source.values, row_gap);
  if (needs.per_token) {
    quantized = DeviceArray(backend, source.quantized);
    scales = DeviceArray(backend, source.scales);
  }
  if (needs.per_block) {
    block_quantized = DeviceArray(backend, source.block_quantized);
    block_scales = DeviceArray(backend, source.block_scales);
  }
}

DeviceActivation::DeviceActivation(Backend& backend,
                                   std::int64_t tokens,
                                   std::int64_t columns,
                                   const ActivationNeeds& needs)
    : needs_(needs) {
  if (needs.values) values = DeviceArray(backend, DType::bf16, {tokens, columns});
  if (needs.per_token) {
    quantized = DeviceArray(backend, DType::f8_e4m3, {tokens, columns});
    scales = DeviceArray(backend, DType::f32, {tokens});
  }
  if (needs.per_block) {
    block_quantized = DeviceArray(backend, DType::f8_e4m3, {tokens, columns});
    block_scales = DeviceArray(backend, DType::f32, {tokens, ceil_div(columns, kQuantBlock)});
  }
}

Activation DeviceActivation::view() const {
  return {values.view(), quantized.view(), scales.view(), block_quantized.view(),
          block_scales.view()};
}

std::string DeviceActivation::check_quantized(const std::string& name) const {
  std::string faults;
  const HostTensor written = values.get();
  if (needs_.per_token)
    faults += compare_quantized(name, written, quantized.get(), scales.get(), 0);
  if (needs_.per_block)
    faults += compare_quantized(name + ".block", written, block_quantized.get(), block_scales.get(),
                                kQuantBlock);
  return faults;
}

std::string DeviceActivation::guard_fault(const std::string& name) const {
  std::string faults;
  if (needs_.values) faults += values.guard_fault(name + ".values");
  if (needs_.per_token)
    faults += quantized.guard_fault(name + ".quantized") + scales.guard_fault(name + ".scales");
  if (needs_.per_block)
    faults += block_quantized.guard_fault(name + ".block_quantized") +
              block_scales.guard_fault(name + ".block_scales");
  return faults;
}

LinearReference linear_reference(const SyntheticLinear& weight,
                                 const SyntheticActivation& x,
                                 std::int64_t tokens) {
  LinearReference reference;
  reference.sums.resize(static_cast<std::size_t>(tokens * weight.rows));
  reference.magnitudes.resize(reference.sums.size());
  reference.steps.resize(reference.sums.size());
  constexpr std::int64_t kInstruction = 32;
  const std::int64_t chain = weight.quant == WeightQuant::fp8_block ? 128 : 256;
  std::vector<std::vector<double>> inputs;
  for (std::int64_t t = 0; t < tokens; ++t) inputs.push_back(x.seen(weight.quant, t));
  for (std::int64_t n = 0; n < weight.rows; ++n) {
    const std::vector<double> weights = weight.row(n);
    const double* const row = weights.data();
    const double bias = weight.bias.empty() ? 0.0 : weight.bias.at(n);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const double* const input = inputs[static_cast<std::size_t>(t)].data();
      double sum = bias;
      double magnitude = std::fabs(bias);
      double steps = 0.0;
      double chained = 0.0;
      for (std::int64_t first = 0; first < weight.columns; first += kInstruction) {
        if (first % chain == 0) chained = 0.0;
        double largest = std::fabs(chained);
        const std::int64_t end = std::min(first + kInstruction, weight.columns);
        for (std::int64_t k = first; k < end; ++k) {
          const double product = input[k] * row[k];
          sum += product;
          magnitude += std::fabs(product);
          chained += product;
          largest = std::max(largest, std::fabs(product));
        }
        steps += largest * largest;
      }
      reference.sums[static_cast<std::size_t>(t * weight.rows + n)] = sum;
      reference.magnitudes[static_cast<std::size_t>(t * weight.rows + n)] = magnitude;
      reference.steps[static_cast<std::size_t>(t * weight.rows + n)] = steps;
    }
  }
  return reference;
}

std::string fault_of(const std::string& op, const Status& status) {
  return status.ok() ? std::string() : op + ": " + status.error().message + "\n";
}

}  // namespace koho::testing
