// SPDX-License-Identifier: Apache-2.0
// Placing weights: host rows go to staging memory on the device and from there into tiles.
#include <algorithm>
#include <vector>

#include "base/arithmetic.h"
#include "cuda/backend.h"
#include "cuda/draw.h"
#include "cuda/tiles.h"
#include "tensor/number.h"

namespace koho::cuda {
namespace {

TileType tile_type(WeightQuant quant) {
  switch (quant) {
    case WeightQuant::none:
      return TileType::bf16;
    case WeightQuant::fp8_channel:
    case WeightQuant::fp8_tensor:
      return TileType::fp8;
    case WeightQuant::fp8_block:
      return TileType::fp8_block;
  }
  return TileType::bf16;
}

/// Element `index` of a small f32 or bf16 host tensor, whatever its strides.
float scale_at(const ConstTensorView& scale, std::int64_t row, std::int64_t column) {
  std::int64_t at = scale.shape.rank() > 0 ? row * scale.stride(0) : 0;
  if (scale.shape.rank() > 1) at += column * scale.stride(1);
  return scale.dtype == DType::bf16 ? to_float(scale.as<BFloat16>()[at]) : scale.as<float>()[at];
}

/// The scale of weight row `row`, for one scale a row or one a tensor.
float row_scale(const LinearSource& source, std::int64_t row) {
  return scale_at(source.scale, source.quant == WeightQuant::fp8_tensor ? 0 : row, 0);
}

/// Whether gate and up of all experts are stored in one way, and down.
bool alike(std::span<const MlpSource* const> experts) {
  return std::all_of(experts.begin(), experts.end(), [&](const MlpSource* expert) {
    return tile_type(expert->gate.quant) == tile_type(experts[0]->gate.quant) &&
           tile_type(expert->up.quant) == tile_type(experts[0]->gate.quant) &&
           tile_type(expert->down.quant) == tile_type(experts[0]->down.quant) &&
           expert->gate.bias.empty() && expert->up.bias.empty() && expert->down.bias.empty();
  });
}

constexpr std::int64_t kChannelTile = kTileRows / 2;  // gate (or up) rows of a SwiGLU tile

}  // namespace

/// Draws the elements of `view`, whose first one is at `place`, into packed rows.
cudaError_t CudaBackend::draw(void* out,
                              const ConstTensorView& view,
                              const DrawnMemory::Place& place) {
  const bool rows = view.shape.rank() == 2;
  return launch_draw({.out = out,
                      .key = place.tensor.key,
                      .first = place.first,
                      .row_stride = rows ? view.stride(0) : 0,
                      .rows = rows ? view.size(0) : 1,
                      .columns = rows ? view.size(1) : view.elements(),
                      .factor = place.tensor.factor,
                      .offset = place.tensor.offset,
                      .element_bytes = static_cast<int>(dtype_bytes(view.dtype))},
                     stream_);
}

Result<const std::uint8_t*> CudaBackend::stage(const ConstTensorView& view) {
  const std::int64_t row_bytes = view.size(1) * dtype_bytes(view.dtype);
  const std::int64_t bytes = view.size(0) * row_bytes;
  if (staging_.bytes() < bytes) {
    KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
    staging_ = DeviceBlock();
    KOHO_TRY_ASSIGN(staging_, DeviceBlock::allocate(memory_, bytes, "staging of weights"));
  }
  DrawnMemory::Place drawn;
  if (options_.drawn != nullptr && options_.drawn->find(view.data, drawn)) {
    KOHO_CUDA_TRY(draw(staging_.as<void>(), view, drawn));
    return staging_.as<const std::uint8_t>();
  }
  KOHO_CUDA_TRY(
      cudaMemcpy2DAsync(staging_.as<void>(), static_cast<std::size_t>(row_bytes), view.data,
                        static_cast<std::size_t>(view.stride(0) * dtype_bytes(view.dtype)),
                        static_cast<std::size_t>(row_bytes), static_cast<std::size_t>(view.size(0)),
                        cudaMemcpyHostToDevice, stream_));
  return staging_.as<const std::uint8_t>();
}

Result<DeviceBlock> CudaBackend::to_device(std::span<const float> values,
                                           std::string_view purpose) {
  KOHO_TRY_ASSIGN(
      DeviceBlock block,
      DeviceBlock::allocate(memory_, static_cast<std::int64_t>(values.size_bytes()), purpose));
  KOHO_CUDA_TRY(cudaMemcpyAsync(block.as<void>(), values.data(), values.size_bytes(),
                                cudaMemcpyHostToDevice, stream_));
  KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
  return block;
}

Result<TiledMatrices> CudaBackend::make_tiles(
    TileType type, bool interleaved, std::int64_t count, std::int64_t rows, std::int64_t columns) {
  TiledMatrices matrix;
  matrix.type = type;
  matrix.interleaved = interleaved;
  matrix.count = count;
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.width_bytes =
      round_up<std::int64_t>(columns * (type == TileType::bf16 ? 2 : 1), kTileWidthStep);
  matrix.tiles = ceil_div<std::int64_t>(rows, interleaved ? kChannelTile : kTileRows);
  const std::int64_t bytes = count * matrix.tiles * kTileRows * matrix.width_bytes;
  KOHO_TRY_ASSIGN(matrix.weight, DeviceBlock::allocate(memory_, bytes, "weights"));
  // Rows beyond the matrix are zeros; rows within are written whole.
  if (rows % (interleaved ? kChannelTile : kTileRows) != 0) {
    KOHO_CUDA_TRY(
        cudaMemsetAsync(matrix.weight.as<void>(), 0, static_cast<std::size_t>(bytes), stream_));
    KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));  // rows are written on other streams
  }
  return matrix;
}

Result<bool> CudaBackend::put_large(const ConstTensorView& source,
                                    const Repack& repack,
                                    std::uint8_t* copy) {
  if (!Loader::takes(source)) return false;
  if (loader_ == nullptr) {
    KOHO_TRY_ASSIGN(loader_, Loader::start(options_.device, memory_, options_.progress));
  }
  LoadJob job;
  job.source = source;
  job.drawn = options_.drawn != nullptr && options_.drawn->find(source.data, job.place);
  job.repack = repack;
  job.copy = copy;
  KOHO_TRY(loader_->put(job));
  loading_ = true;
  return true;
}

Status CudaBackend::finish_loading() {
  if (!loading_) return {};
  KOHO_TRY(loader_->finish());  // NOTE: an error stays: weights that did not arrive never will
  loading_ = false;
  return {};
}

Status CudaBackend::put_rows(const TiledMatrices& matrix,
                             std::int64_t index,
                             std::int64_t first_row,
                             int interleave,
                             const LinearSource& source,
                             std::uint8_t* copy) {
  const std::int64_t row_bytes = source.in_features() * dtype_bytes(source.weight.dtype);
  Repack repack{.tiles = matrix.weight.as<std::uint8_t>() +
                         index * matrix.tiles * kTileRows * matrix.width_bytes,
                .source = nullptr,
                .source_stride_bytes = row_bytes,
                .rows = source.out_features(),
                .row_bytes = row_bytes,
                .width_bytes = matrix.width_bytes,
                .first_row = first_row,
                .interleave = interleave};
  KOHO_TRY_ASSIGN(const bool taken, put_large(source.weight, repack, copy));
  if (taken) return {};
  KOHO_TRY_ASSIGN(repack.source, stage(source.weight));
  KOHO_CUDA_TRY(launch_repack(repack, stream_));
  if (copy != nullptr)
    KOHO_CUDA_TRY(cudaMemcpyAsync(copy, staging_.as<void>(),
                                  static_cast<std::size_t>(source.out_features() * row_bytes),
                                  cudaMemcpyDeviceToDevice, stream_));
  return {};
}

Result<LinearSegment> CudaBackend::place_segment(std::span<const LinearSource> blocks) {
  const TileType type = tile_type(blocks[0].quant);
  const std::int64_t columns = blocks[0].in_features();
  std::int64_t rows = 0;
  bool has_bias = false;
  for (const LinearSource& block : blocks) {
    rows += block.out_features();
    has_bias = has_bias || !block.bias.empty();
  }
  LinearSegment segment;
  KOHO_TRY_ASSIGN(segment.matrix, make_tiles(type, false, 1, rows, columns));
  TiledMatrices& matrix = segment.matrix;
  const bool twice =
      type == TileType::fp8 && library_ != nullptr && MatmulLibrary::takes(rows, columns);
  if (twice) {
    KOHO_TRY_ASSIGN(segment.rows,
                    DeviceBlock::allocate(memory_, rows * columns, "weights for cuBLASLt"));
    library_->expect(rows, columns, has_bias);
  }

  const std::int64_t width_blocks = ceil_div<std::int64_t>(matrix.width_bytes, kBlockWidth);
  std::vector<float> row_scales(
      static_cast<std::size_t>(type == TileType::fp8 ? matrix.tiles * kTileRows : 0));
  std::vector<float> block_scales(
      static_cast<std::size_t>(type == TileType::fp8_block ? matrix.tiles * 2 * width_blocks : 0));
  std::vector<BFloat16> bias(static_cast<std::size_t>(has_bias ? rows : 0));
  std::int64_t first = 0;
  for (const LinearSource& block : blocks) {
    std::uint8_t* const copy = twice ? segment.rows.as<std::uint8_t>() + first * columns : nullptr;
    KOHO_TRY(put_rows(matrix, 0, first, 0, block, copy));
    for (std::int64_t row = 0; row < block.out_features(); ++row) {
      const auto at = static_cast<std::size_t>(first + row);
      if (type == TileType::fp8) row_scales[at] = row_scale(block, row);
      if (!block.bias.empty()) bias[at] = block.bias.as<BFloat16>()[row * block.bias.stride(0)];
      if (type != TileType::fp8_block || row % kTileRows != 0) continue;
      const auto tile = static_cast<std::size_t>((first + row) / kTileRows);
      for (std::size_t k = 0; k < static_cast<std::size_t>(width_blocks); ++k)
        for (std::size_t half = 0; half < 2; ++half)
          block_scales[(tile * 2 + half) * static_cast<std::size_t>(width_blocks) + k] =
              scale_at(block.scale, row / kQuantBlock, static_cast<std::int64_t>(k));
    }
    first += block.out_features();
  }
  if (!row_scales.empty()) {
    KOHO_TRY_ASSIGN(matrix.row_scales, to_device(row_scales, "weight scales"));
  }
  if (!block_scales.empty()) {
    KOHO_TRY_ASSIGN(matrix.block_scales, to_device(block_scales, "weight scales"));
  }
  if (has_bias) {
    KOHO_TRY_ASSIGN(matrix.bias, DeviceBlock::allocate(memory_, rows * 2, "bias"));
    KOHO_CUDA_TRY(cudaMemcpyAsync(matrix.bias.as<void>(), bias.data(), bias.size() * 2,
                                  cudaMemcpyHostToDevice, stream_));
  }
  KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
  return segment;
}

Result<Linear> CudaBackend::do_place_linear(std::span<const LinearSource> blocks) {
  KOHO_TRY(bind());
  Linear linear;
  linear.in_features = blocks[0].in_features();
  auto placed = std::make_unique<PlacedLinear>();
  std::size_t begin = 0;
  while (begin < blocks.size()) {
    // Blocks of one storage type make one matrix; under block scales only at whole tiles.
    std::size_t end = begin + 1;
    while (end < blocks.size() && tile_type(blocks[end].quant) == tile_type(blocks[begin].quant) &&
           (blocks[begin].quant != WeightQuant::fp8_block ||
            blocks[end - 1].out_features() % kTileRows == 0))
      ++end;
    KOHO_TRY_ASSIGN(LinearSegment segment, place_segment(blocks.subspan(begin, end - begin)));
    segment.first_column = linear.out_features;
    linear.out_features += segment.matrix.rows;
    linear.needs = linear.needs | activation_needs(blocks[begin].quant);
    placed->segments.push_back(std::move(segment));
    begin = end;
  }
  linear.placed = std::move(placed);
  return linear;
}

Result<TiledMatrices> CudaBackend::place_gate_up(std::span<const MlpSource* const> experts) {
  const LinearSource& model = experts[0]->gate;
  const TileType type = tile_type(model.quant);
  const auto count = static_cast<std::int64_t>(experts.size());
  KOHO_TRY_ASSIGN(TiledMatrices matrix,
                  make_tiles(type, true, count, model.out_features(), model.in_features()));
  const std::int64_t width_blocks = ceil_div<std::int64_t>(matrix.width_bytes, kBlockWidth);
  const auto per_matrix = static_cast<std::size_t>(matrix.tiles * kTileRows);
  const auto per_blocks = static_cast<std::size_t>(matrix.tiles * 2 * width_blocks);
  std::vector<float> row_scales(type == TileType::fp8 ? experts.size() * per_matrix : 0);
  std::vector<float> block_scales(type == TileType::fp8_block ? experts.size() * per_blocks : 0);
  for (std::size_t e = 0; e < experts.size(); ++e) {
    for (int half = 0; half < 2; ++half) {
      const LinearSource& source = half == 0 ? experts[e]->gate : experts[e]->up;
      KOHO_TRY(put_rows(matrix, static_cast<std::int64_t>(e), 0, half + 1, source, nullptr));
      for (std::int64_t row = 0; type == TileType::fp8 && row < source.out_features(); ++row)
        row_scales[e * per_matrix + static_cast<std::size_t>(interleaved_row(row, half == 1))] =
            row_scale(source, row);
      for (std::int64_t tile = 0; type == TileType::fp8_block && tile < matrix.tiles; ++tile)
        for (std::int64_t k = 0; k < width_blocks; ++k)
          block_scales[e * per_blocks +
                       static_cast<std::size_t>((tile * 2 + half) * width_blocks + k)] =
              scale_at(source.scale, tile * kChannelTile / kQuantBlock, k);
    }
  }
  if (!row_scales.empty()) {
    KOHO_TRY_ASSIGN(matrix.row_scales, to_device(row_scales, "weight scales"));
  }
  if (!block_scales.empty()) {
    KOHO_TRY_ASSIGN(matrix.block_scales, to_device(block_scales, "weight scales"));
  }
  return matrix;
}

Result<TiledMatrices> CudaBackend::place_down(std::span<const MlpSource* const> experts) {
  const LinearSource& model = experts[0]->down;
  const TileType type = tile_type(model.quant);
  const auto count = static_cast<std::int64_t>(experts.size());
  KOHO_TRY_ASSIGN(TiledMatrices matrix,
                  make_tiles(type, false, count, model.out_features(), model.in_features()));
  const std::int64_t width_blocks = ceil_div<std::int64_t>(matrix.width_bytes, kBlockWidth);
  const auto per_matrix = static_cast<std::size_t>(matrix.tiles * kTileRows);
  std::vector<float> row_scales(type == TileType::fp8 ? experts.size() * per_matrix : 0);
  std::vector<float> block_scales;
  for (std::size_t e = 0; e < experts.size(); ++e) {
    const LinearSource& source = experts[e]->down;
    KOHO_TRY(put_rows(matrix, static_cast<std::int64_t>(e), 0, 0, source, nullptr));
    for (std::int64_t row = 0; type == TileType::fp8 && row < source.out_features(); ++row)
      row_scales[e * per_matrix + static_cast<std::size_t>(row)] = row_scale(source, row);
    for (std::int64_t tile = 0; type == TileType::fp8_block && tile < matrix.tiles; ++tile)
      for (int half = 0; half < 2; ++half)
        for (std::int64_t k = 0; k < width_blocks; ++k)
          block_scales.push_back(scale_at(source.scale, tile * kTileRows / kQuantBlock, k));
  }
  if (!row_scales.empty()) {
    KOHO_TRY_ASSIGN(matrix.row_scales, to_device(row_scales, "weight scales"));
  }
  if (!block_scales.empty()) {
    KOHO_TRY_ASSIGN(matrix.block_scales, to_device(block_scales, "weight scales"));
  }
  return matrix;
}

Result<ExpertGroup> CudaBackend::place_group(std::span<const MlpSource* const> experts) {
  ExpertGroup group;
  KOHO_TRY_ASSIGN(group.gate_up, place_gate_up(experts));
  KOHO_TRY_ASSIGN(group.down, place_down(experts));
  return group;
}

Result<Experts> CudaBackend::do_place_experts(const ExpertsSource& source) {
  KOHO_TRY(bind());
  Experts experts;
  experts.first = source.first;
  experts.count = static_cast<std::int64_t>(source.experts.size());
  auto placed = std::make_unique<PlacedExperts>();
  placed->total = std::max(source.total, experts.count);
  std::vector<const MlpSource*> routed;
  for (const MlpSource& expert : source.experts) routed.push_back(&expert);
  const auto note = [&](const MlpSource& mlp) {
    experts.hidden = mlp.gate.in_features();
    experts.needs =
        experts.needs | activation_needs(mlp.gate.quant) | activation_needs(mlp.up.quant);
    // Inner values and codes, scales, the output, and the row's share of the lists (GroupScratch).
    expert_row_bytes_ =
        std::max(expert_row_bytes_, 4 * round_up<std::int64_t>(mlp.gate.out_features(), 32) +
                                        3 * mlp.gate.in_features() + 128);
  };
  for (const MlpSource* expert : routed) note(*expert);
  if (!routed.empty()) experts.ffn = routed[0]->gate.out_features();
  if (source.shared) {
    note(*source.shared);
    experts.shared_ffn = source.shared->gate.out_features();
  }
  const MlpSource* const lone[] = {source.shared ? &*source.shared : nullptr};
  if (!alike(routed) || (source.shared && !alike(lone))) {
    placed->unlike = std::make_unique<UnlikeExperts>();
    placed->unlike->shared = source.shared.has_value();
    if (source.shared) routed.push_back(&*source.shared);
    for (const MlpSource* expert : routed) {
      KOHO_TRY_ASSIGN(UnlikeExpert unlike, place_unlike(*expert));
      placed->unlike->experts.push_back(std::move(unlike));
    }
    KOHO_TRY(reserve_unlike(*placed->unlike, experts.hidden));
    experts.placed = std::move(placed);
    return experts;
  }
  if (source.shared) {
    placed->shared_in_routed =
        !routed.empty() && experts.shared_ffn == experts.ffn &&
        tile_type(source.shared->gate.quant) == tile_type(routed[0]->gate.quant) &&
        tile_type(source.shared->down.quant) == tile_type(routed[0]->down.quant);
    const MlpSource* shared[] = {&*source.shared};
    if (placed->shared_in_routed) {
      routed.push_back(&*source.shared);
    } else {
      KOHO_TRY_ASSIGN(placed->shared, place_group(shared));
    }
  }
  if (!routed.empty()) {
    KOHO_TRY_ASSIGN(placed->routed, place_group(routed));
  }
  experts.placed = std::move(placed);
  return experts;
}

}  // namespace koho::cuda
