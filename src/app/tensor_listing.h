// SPDX-License-Identifier: Apache-2.0
// A short list of a model's tensors: layers with the same tensors are one group, the experts of a
// layer are one line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/weights.h"

namespace koho::app {

/// One line: a tensor of each of `count` experts, or of one (count 1).
struct ListedTensor {
  std::string name;  // in its layer, the expert's number as '*': "mlp.experts.*.up_proj.weight"
  std::string kind;  // "F8_E4M3 [1536, 5120]"
  std::int64_t count = 1;

  friend bool operator==(const ListedTensor&, const ListedTensor&) = default;
};

/// Layers first..last, all of `tensors`; or the tensors outside of layers (first -1).
struct ListedGroup {
  std::int64_t first = -1;
  std::int64_t last = -1;
  std::vector<ListedTensor> tensors;  // of one layer
};

/// The groups of a checkpoint's tensors, or of the table's rows for a config without weights.
std::vector<ListedGroup> list_tensors(const Checkpoint& checkpoint);
std::vector<ListedGroup> list_tensors(const std::vector<ExpectedWeight>& rows);

}  // namespace koho::app
