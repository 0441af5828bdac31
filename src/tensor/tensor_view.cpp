// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor_view.h"

namespace koho {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(shape[axis]);
  }
  return text + "]";
}

std::string describe(const ConstTensorView& view) {
  return std::string(dtype_name(view.dtype)) + " " + to_string(view.shape);
}

}  // namespace koho
