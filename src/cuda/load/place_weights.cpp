// SPDX-License-Identifier: Apache-2.0
// Places weights on the device: copies host rows to staging memory there, and repacks them into
// tiles.
#include <algorithm>
#include <vector>

#include "base/arithmetic.h"
#include "cuda/backend.h"
#include "cuda/gemm/tiled_layout.h"
#include "cuda/load/synthetic_weights.h"
#include "cuda/load/tiled_scales.h"
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

/// Whether gate and up of all experts have one storage type, and down has one.
bool alike(std::span<const MlpSource* const> experts) {
  return std::all_of(experts.begin(), experts.end(), [&](const MlpSource* expert) {
    return tile_type(expert->gate.quant) == tile_type(experts[0]->gate.quant) &&
           tile_type(expert->up.quant) == tile_type(experts[0]->gate.quant) &&
           tile_type(expert->down.quant) == tile_type(experts[0]->down.quant) &&
           expert->gate.bias.empty() && expert->up.bias.empty() && expert->down.bias.empty();
  });
}

MatrixSize size_of(const LinearSource& source) {
  return {source.out_features(), source.in_features()};
}

}  // namespace

/// Generates the elements of a synthetic `view`, whose first one is at `place`, into packed rows.
cudaError_t CudaBackend::draw(void* out,
                              const ConstTensorView& view,
                              const SyntheticAddressMap::Place& place) {
  const bool rows = view.shape.rank() == 2;
  return launch_synthetic_weights({.out = out,
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
  SyntheticAddressMap::Place synthetic;
  if (options_.synthetic != nullptr && options_.synthetic->find(view.data, synthetic)) {
    KOHO_CUDA_TRY(draw(staging_.as<void>(), view, synthetic));
    return staging_.as<const std::uint8_t>();
  }
  KOHO_CUDA_TRY(
      cudaMemcpy2DAsync(staging_.as<void>(), static_cast<std::size_t>(row_bytes), view.data,
                        static_cast<std::size_t>(view.stride(0) * dtype_bytes(view.dtype)),
                        static_cast<std::size_t>(row_bytes), static_cast<std::size_t>(view.size(0)),
                        cudaMemcpyHostToDevice, stream_));
  return staging_.as<const std::uint8_t>();
}

Result<DeviceBlock> CudaBackend::to_device(std::span<const std::byte> bytes,
                                           std::string_view purpose) {
  KOHO_TRY_ASSIGN(DeviceBlock block, DeviceBlock::allocate(memory_, std::ssize(bytes), purpose));
  KOHO_CUDA_TRY(cudaMemcpyAsync(block.as<void>(), bytes.data(), bytes.size(),
                                cudaMemcpyHostToDevice, stream_));
  KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
  return block;
}

Result<TiledWeights> CudaBackend::make_tiles(TileType type,
                                             bool interleaved,
                                             std::int64_t count,
                                             const MatrixSize& each,
                                             const MatrixSize& last) {
  const std::int64_t tile_rows = interleaved ? kPairRows : kTileRows;
  const auto width_of = [&](const MatrixSize& size) {
    return round_up<std::int64_t>(size.columns * (type == TileType::bf16 ? 2 : 1), kTileWidthStep);
  };
  TiledWeights matrix;
  matrix.type = type;
  matrix.interleaved = interleaved;
  matrix.count = count;
  matrix.rows = each.rows;
  matrix.columns = each.columns;
  matrix.width_bytes = width_of(each);
  matrix.tiles = ceil_div(each.rows, tile_rows);
  matrix.last_width_bytes = width_of(last);
  matrix.last_tiles = ceil_div(last.rows, tile_rows);
  const std::int64_t bytes = kTileRows * ((count - 1) * matrix.tiles * matrix.width_bytes +
                                          matrix.last_tiles * matrix.last_width_bytes);
  KOHO_TRY_ASSIGN(matrix.weight, DeviceBlock::allocate(memory_, bytes, "weights"));
  // Rows beyond the matrix are zeros; rows within are written whole.
  if (each.rows % tile_rows != 0 || last.rows % tile_rows != 0) {
    KOHO_CUDA_TRY(
        cudaMemsetAsync(matrix.weight.as<void>(), 0, static_cast<std::size_t>(bytes), stream_));
    KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));  // rows are written on other streams
  }
  return matrix;
}

Result<bool> CudaBackend::enqueue_large(const ConstTensorView& source,
                                        const Repack& repack,
                                        std::uint8_t* copy) {
  if (!Loader::takes(source)) return false;
  if (loader_ == nullptr) {
    KOHO_TRY_ASSIGN(loader_, Loader::start({.device = options_.device,
                                            .devices = options_.rank_devices,
                                            .rank = options_.rank,
                                            .progress = options_.progress},
                                           memory_));
  }
  LoadJob job;
  job.source = source;
  job.synthetic = options_.synthetic != nullptr && options_.synthetic->find(source.data, job.place);
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

Status CudaBackend::put_rows(const TiledWeights& matrix,
                             const RowDestination& place,
                             const LinearSource& source) {
  const std::int64_t row_bytes = source.in_features() * dtype_bytes(source.weight.dtype);
  Repack repack{.tiles = matrix.weight.as<std::uint8_t>() +
                         place.matrix * matrix.tiles * kTileRows * matrix.width_bytes,
                .source = nullptr,
                .source_stride_bytes = row_bytes,
                .rows = source.out_features(),
                .row_bytes = row_bytes,
                .width_bytes =
                    place.matrix + 1 == matrix.count ? matrix.last_width_bytes : matrix.width_bytes,
                .first_row = place.first,
                .interleave = place.interleave};
  KOHO_TRY_ASSIGN(const bool taken, enqueue_large(source.weight, repack, place.copy));
  if (taken) return {};
  KOHO_TRY_ASSIGN(repack.source, stage(source.weight));
  KOHO_CUDA_TRY(launch_repack(repack, stream_));
  if (place.copy != nullptr)
    KOHO_CUDA_TRY(cudaMemcpyAsync(place.copy, staging_.as<void>(),
                                  static_cast<std::size_t>(source.out_features() * row_bytes),
                                  cudaMemcpyDeviceToDevice, stream_));
  return {};
}

Status CudaBackend::put_scales(TiledWeights& matrix, const TiledScales& scales) {
  if (!scales.of_rows().empty()) {
    KOHO_TRY_ASSIGN(matrix.row_scales, to_device(std::as_bytes(scales.of_rows()), "weight scales"));
  }
  if (!scales.of_blocks().empty()) {
    KOHO_TRY_ASSIGN(matrix.block_scales,
                    to_device(std::as_bytes(scales.of_blocks()), "weight scales"));
  }
  return {};
}

Result<LinearSegment> CudaBackend::place_segment(std::span<const LinearSource> blocks, bool twice) {
  const TileType type = tile_type(blocks[0].quant);
  const std::int64_t columns = blocks[0].in_features();
  std::int64_t rows = 0;
  bool has_bias = false;
  for (const LinearSource& block : blocks) {
    rows += block.out_features();
    has_bias = has_bias || !block.bias.empty();
  }
  LinearSegment segment;
  const MatrixSize size{rows, columns};
  KOHO_TRY_ASSIGN(segment.weight, make_tiles(type, false, 1, size, size));
  TiledWeights& matrix = segment.weight;
  twice =
      twice && type == TileType::fp8 && cublaslt_ != nullptr && CublasLtGemm::takes(rows, columns);
  if (twice) {
    KOHO_TRY_ASSIGN(segment.rows,
                    DeviceBlock::allocate(memory_, rows * columns, "weights for cuBLASLt"));
    cublaslt_->expect(rows, columns, has_bias);
  }

  TiledScales scales(matrix);
  std::vector<BFloat16> bias(static_cast<std::size_t>(has_bias ? rows : 0));
  std::int64_t first = 0;
  for (const LinearSource& block : blocks) {
    const RowDestination place{
        .first = first,
        .copy = twice ? segment.rows.as<std::uint8_t>() + first * columns : nullptr};
    KOHO_TRY(put_rows(matrix, place, block));
    scales.take(place, block);
    for (std::int64_t row = 0; !block.bias.empty() && row < block.out_features(); ++row)
      bias[static_cast<std::size_t>(first + row)] =
          block.bias.as<BFloat16>()[row * block.bias.stride(0)];
    first += block.out_features();
  }
  KOHO_TRY(put_scales(matrix, scales));
  if (has_bias) {
    KOHO_TRY_ASSIGN(matrix.bias, to_device(std::as_bytes(std::span(bias)), "bias"));
  }
  KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
  return segment;
}

Result<Linear> CudaBackend::place_linear(std::span<const LinearSource> blocks, bool twice) {
  Linear linear;
  linear.in_features = blocks[0].in_features();
  auto placed = std::make_unique<PlacedLinear>();
  std::size_t begin = 0;
  while (begin < blocks.size()) {
    // Adjacent blocks of one storage type become one weight; with block scales only at whole tiles.
    std::size_t end = begin + 1;
    while (end < blocks.size() && tile_type(blocks[end].quant) == tile_type(blocks[begin].quant) &&
           (blocks[begin].quant != WeightQuant::fp8_block ||
            blocks[end - 1].out_features() % kTileRows == 0))
      ++end;
    KOHO_TRY_ASSIGN(LinearSegment segment,
                    place_segment(blocks.subspan(begin, end - begin), twice));
    segment.first_column = linear.out_features;
    linear.out_features += segment.weight.rows;
    linear.needs = linear.needs | activation_needs(blocks[begin].quant);
    placed->segments.push_back(std::move(segment));
    begin = end;
  }
  linear.placed = std::move(placed);
  return linear;
}

Result<Linear> CudaBackend::do_place_linear(std::span<const LinearSource> blocks) {
  KOHO_TRY(bind());
  return place_linear(blocks, true);
}

Result<TiledWeights> CudaBackend::place_gate_up(std::span<const MlpSource* const> experts) {
  const LinearSource& model = experts[0]->gate;
  KOHO_TRY_ASSIGN(TiledWeights matrix, make_tiles(tile_type(model.quant), true, std::ssize(experts),
                                                  size_of(model), size_of(experts.back()->gate)));
  TiledScales scales(matrix);
  for (RowDestination place; place.matrix < matrix.count; ++place.matrix) {
    const MlpSource& expert = *experts[static_cast<std::size_t>(place.matrix)];
    for (const LinearSource* source : {&expert.gate, &expert.up}) {
      place.interleave = source == &expert.gate ? 1 : 2;
      KOHO_TRY(put_rows(matrix, place, *source));
      scales.take(place, *source);
    }
  }
  KOHO_TRY(put_scales(matrix, scales));
  return matrix;
}

Result<TiledWeights> CudaBackend::place_down(std::span<const MlpSource* const> experts) {
  const LinearSource& model = experts[0]->down;
  KOHO_TRY_ASSIGN(TiledWeights matrix,
                  make_tiles(tile_type(model.quant), false, std::ssize(experts), size_of(model),
                             size_of(experts.back()->down)));
  TiledScales scales(matrix);
  for (RowDestination place; place.matrix < matrix.count; ++place.matrix) {
    const LinearSource& source = experts[static_cast<std::size_t>(place.matrix)]->down;
    KOHO_TRY(put_rows(matrix, place, source));
    scales.take(place, source);
  }
  KOHO_TRY(put_scales(matrix, scales));
  return matrix;
}

Result<ExpertGroup> CudaBackend::place_group(std::span<const MlpSource* const> experts) {
  ExpertGroup group;
  KOHO_TRY_ASSIGN(group.gate_up, place_gate_up(experts));
  KOHO_TRY_ASSIGN(group.down, place_down(experts));
  group.last_ffn = experts.back()->gate.out_features();
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
    // Inner values and quantised values, scales, the output, and the row's share of the lists
    // (GroupScratch).
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
    placed->mixed_format = std::make_unique<MixedFormatExperts>();
    placed->mixed_format->shared = source.shared.has_value();
    if (source.shared) routed.push_back(&*source.shared);
    for (const MlpSource* expert : routed) {
      KOHO_TRY_ASSIGN(LinearExpert linear, place_linear_expert(*expert));
      placed->mixed_format->experts.push_back(std::move(linear));
    }
    KOHO_TRY(reserve_mixed_format(*placed->mixed_format, experts.hidden));
    experts.placed = std::move(placed);
    return experts;
  }
  if (source.shared) {
    placed->shared_in_routed =
        !routed.empty() &&
        (experts.shared_ffn == experts.ffn ||
         takes_narrow(*routed[0], *source.shared, experts.count)) &&
        tile_type(source.shared->gate.quant) == tile_type(routed[0]->gate.quant) &&
        tile_type(source.shared->down.quant) == tile_type(routed[0]->down.quant);
    if (placed->shared_in_routed) {
      routed.push_back(&*source.shared);
    } else {
      KOHO_TRY_ASSIGN(placed->shared, place_linear_expert(*source.shared));
    }
  }
  if (!routed.empty()) {
    KOHO_TRY_ASSIGN(placed->routed, place_group(routed));
  }
  experts.placed = std::move(placed);
  return experts;
}

}  // namespace koho::cuda
