// SPDX-License-Identifier: Apache-2.0
// Checks a tensor against the words of an operator's contract, and says which operator, which
// tensor, what was expected and what was found.
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

  /// `view` must be `dtype` of `sizes` on the device, packed, or with packed rows.
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
  /// Every form that is there must have [tokens, width]; scales [tokens] or [tokens,
  /// ceil(width/128)].
  Status activation(std::string_view name,
                    const Activation& activation,
                    std::int64_t tokens,
                    std::int64_t width) const;
  /// As activation(), and the forms of `needs` must be there.
  Status activation(std::string_view name,
                    const Activation& activation,
                    std::int64_t tokens,
                    std::int64_t width,
                    const ActivationNeeds& needs) const;
  /// Pages of one layer.
  Status kv(const KvLayer& kv, const std::int64_t kv_heads, std::int64_t width) const;
  /// A fact that must hold, in words.
  Status that(bool holds, std::string_view expectation) const;

 private:
  std::string_view op_;
  DeviceId device_;
};

}  // namespace koho
