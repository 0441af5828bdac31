// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of an operator call against its contract block in ops/backend.h. An error
// names the operator and the tensor, what the contract expects and what the caller gave.
#pragma once

#include <initializer_list>
#include <string_view>

#include "base/error.h"
#include "ops/batch.h"
#include "ops/weights.h"

namespace koho {

class Contract {
 public:
  enum class Layout : std::uint8_t { packed, rows };

  Contract(std::string_view op, DeviceId device) : op_(op), device_(device) {}

  /// `view` must be `dtype` of `sizes` on the device; packed, or (Layout::rows) with packed rows.
  Status tensor(std::string_view name,
                const ConstTensorView& view,
                DType dtype,
                std::initializer_list<std::int64_t> sizes,
                Layout layout = Layout::packed) const;
  /// As tensor(), or empty.
  Status optional(std::string_view name,
                  const ConstTensorView& view,
                  DType dtype,
                  std::initializer_list<std::int64_t> sizes) const;
  /// Every format that is present must be [tokens, width], its scales [tokens] or
  /// [tokens, ceil(width/128)].
  Status activation(std::string_view name,
                    const Activation& activation,
                    std::int64_t tokens,
                    std::int64_t width) const;
  /// The same, and the formats of `needs` must be present.
  Status activation(std::string_view name,
                    const Activation& activation,
                    std::int64_t tokens,
                    std::int64_t width,
                    const ActivationNeeds& needs) const;
  /// Pages of one layer.
  Status kv(const KvLayer& kv, const std::int64_t kv_heads, std::int64_t width) const;
  /// Any other condition; `expectation` says it in words.
  Status that(bool holds, std::string_view expectation) const;

 private:
  std::string_view op_;
  DeviceId device_;
};

}  // namespace koho
