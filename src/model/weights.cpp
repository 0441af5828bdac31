// SPDX-License-Identifier: Apache-2.0
// The table's rows, listed, and a model whose weights come from a supplier.
#include "model/weights.h"

#include <string>
#include <utility>

#include "model/weight_walk.h"

namespace koho {
namespace {

struct Lister {
  std::vector<ExpectedWeight> rows;

  void tensor(ExpectedWeight row, ConstTensorView&) { rows.push_back(std::move(row)); }
  void linear(ExpectedWeight row, LinearSource&) { rows.push_back(std::move(row)); }
  bool fused_experts(const std::string&, MoeSources&) { return false; }
};

struct Supplied {
  WeightSupplier& supplier;

  void tensor(const ExpectedWeight& row, ConstTensorView& target) { target = supplier.tensor(row); }
  void linear(const ExpectedWeight& row, LinearSource& target) { target = supplier.linear(row); }
  bool fused_experts(const std::string&, MoeSources&) { return false; }
};

}  // namespace

std::vector<ExpectedWeight> expected_weights(const ModelConfig& config, bool with_mtp) {
  Lister lister;
  ModelSources sources;
  WeightWalk<Lister>(config, lister).model(sources, with_mtp);
  return std::move(lister.rows);
}

ModelSources supplied_weights(const ModelConfig& config, WeightSupplier& supplier) {
  Supplied visitor{supplier};
  ModelSources sources;
  WeightWalk<Supplied>(config, visitor).model(sources, false);
  return sources;
}

}  // namespace koho
