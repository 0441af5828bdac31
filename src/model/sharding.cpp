// SPDX-License-Identifier: Apache-2.0
#include "model/sharding.h"

#include "base/arithmetic.h"

namespace koho {
namespace {

/// The blocks of 128 that a range covers, if it cuts through none (the last block may be short).
Result<Range> blocks_of(Range range, std::int64_t total) {
  const bool starts = range.begin % kQuantBlock == 0;
  const bool ends = range.count % kQuantBlock == 0 || range.begin + range.count == total;
  if (starts && ends) return Range{range.begin / kQuantBlock, ceil_div(range.count, kQuantBlock)};
  return make_error(
      ErrorCode::unsupported,
      "{}..{} of {} cuts through a block of 128 of a block-quantised weight; use fewer ranks",
      range.begin, range.begin + range.count, total);
}

}  // namespace

Result<Range> share(const Shard& shard, std::int64_t total, const char* what) {
  if (total % shard.ranks != 0)
    return make_error(ErrorCode::unsupported, "{} ranks cannot divide {} {} evenly", shard.ranks,
                      total, what);
  const std::int64_t count = total / shard.ranks;
  return Range{shard.rank * count, count};
}

Result<LinearSource> rows_of(const LinearSource& source, Range rows) {
  LinearSource part = source;
  part.weight = source.weight.slice(0, rows.begin, rows.count);
  if (source.quant == WeightQuant::fp8_channel)
    part.scale = source.scale.slice(0, rows.begin, rows.count);
  if (source.quant == WeightQuant::fp8_block) {
    KOHO_TRY_ASSIGN(const Range blocks, blocks_of(rows, source.out_features()));
    part.scale = source.scale.slice(0, blocks.begin, blocks.count);
  }
  if (!source.bias.empty()) part.bias = source.bias.slice(0, rows.begin, rows.count);
  return part;
}

Result<LinearSource> columns_of(const LinearSource& source, Range columns) {
  if (columns.count == source.in_features()) return source;
  if (!source.bias.empty())
    return make_error(ErrorCode::unsupported, "a layer with a bias cannot be cut by columns");
  LinearSource part = source;
  part.weight = source.weight.slice(1, columns.begin, columns.count);
  if (source.quant == WeightQuant::fp8_block) {
    KOHO_TRY_ASSIGN(const Range blocks, blocks_of(columns, source.in_features()));
    part.scale = source.scale.slice(1, blocks.begin, blocks.count);
  }
  return part;
}

Result<MlpSource> slice_of(const MlpSource& source, const Shard& shard) {
  KOHO_TRY_ASSIGN(const Range part, share(shard, source.gate.out_features(), "columns of an FFN"));
  KOHO_TRY_ASSIGN(LinearSource gate, rows_of(source.gate, part));
  KOHO_TRY_ASSIGN(LinearSource up, rows_of(source.up, part));
  KOHO_TRY_ASSIGN(LinearSource down, columns_of(source.down, part));
  return MlpSource{gate, up, down};
}

Status Joins::sum_add_norm(const Activation& out,
                           TensorView residual,
                           TensorView branch,
                           ConstTensorView weight,
                           float eps) {
  KOHO_TRY(sum(branch));
  return backend_->add_rms_norm(out, residual, branch, weight, eps);
}

Status Joins::sum(TensorView branch) {
  return communicator_->all_reduce(branch);
}

Status Joins::gather_logits(TensorView logits, ConstTensorView part) {
  return communicator_->all_gather_columns(logits, part);
}

}  // namespace koho
