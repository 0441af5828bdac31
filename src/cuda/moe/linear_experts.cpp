// SPDX-License-Identifier: Apache-2.0
// Experts as two linear layers, which multiply every token: a shared expert of another width or
// format than the routed ones, and all experts of a layer whose experts are not stored in one
// format, which the grouped kernels need. Those take slices of 64 tokens, and the combine only what
// the router chose: rare and slow.
#include <algorithm>

#include "cuda/backend.h"
#include "cuda/moe/expert_group.h"
#include "cuda/moe/expert_permutation.h"

namespace koho::cuda {
namespace {

constexpr std::int64_t kSliceTokens = 64;

Activation slice_of(const Activation& x, std::int64_t begin, std::int64_t count) {
  const auto cut = [&](const TensorView& view) {
    return view.empty() ? view : view.slice(0, begin, count);
  };
  return {cut(x.values), cut(x.quantized), cut(x.scales), cut(x.block_quantized),
          cut(x.block_scales)};
}

}  // namespace

Result<LinearExpert> CudaBackend::place_linear_expert(const MlpSource& source) {
  LinearExpert expert;
  const LinearSource gate_up[] = {source.gate, source.up};
  KOHO_TRY_ASSIGN(expert.gate_up, place_linear(gate_up, false));
  KOHO_TRY_ASSIGN(expert.down, place_linear({&source.down, 1}, false));
  return expert;
}

Status CudaBackend::run_linear_expert(TensorView out,
                                      const Activation& x,
                                      const LinearExpert& expert,
                                      TensorView gate_up,
                                      const Activation& inner) {
  KOHO_TRY(do_linear(gate_up, x, expert.gate_up));
  KOHO_TRY(do_silu_mul(inner, gate_up));
  return do_linear(out, inner, expert.down);
}

Status CudaBackend::reserve_mixed_format(MixedFormatExperts& mixed_format, std::int64_t hidden) {
  std::int64_t bytes = 0;
  for (const LinearExpert& expert : mixed_format.experts) {
    ScratchAllocator scratch_memory(nullptr);
    LinearExpertScratch(scratch_memory, {}, kSliceTokens, expert);
    bytes = std::max(bytes, scratch_memory.used());
  }
  KOHO_TRY_ASSIGN(mixed_format.scratch,
                  DeviceBlock::allocate(memory_, bytes, "experts of mixed formats"));
  const std::int64_t count = std::ssize(mixed_format.experts);
  const auto tensor = [&](Tensor& target, DType dtype, Shape shape) -> Status {
    KOHO_TRY_ASSIGN(target, allocate(dtype, shape, "experts of mixed formats"));
    return {};
  };
  KOHO_TRY(tensor(mixed_format.y, DType::bf16, {count * kSliceTokens, hidden}));
  return tensor(mixed_format.permuted_row, DType::i32, {kSliceTokens * kExpertsMax});
}

Status CudaBackend::run_mixed_format(TensorView out,
                                     const Activation& x,
                                     const Routing& routing,
                                     const Experts& weights) {
  MixedFormatExperts& mixed_format =
      *static_cast<const PlacedExperts&>(*weights.placed).mixed_format;
  const std::int64_t top_k = routing.ids.size(1);
  if (top_k > kExpertsMax)
    return make_error(ErrorCode::unsupported, "the CUDA backend chooses at most {} experts",
                      kExpertsMax);
  for (std::int64_t begin = 0; begin < out.size(0); begin += kSliceTokens) {
    const std::int64_t tokens = std::min(kSliceTokens, out.size(0) - begin);
    const Activation rows = slice_of(x, begin, tokens);
    // Before the experts: the combine reads permuted_row before it waits for its predecessor.
    const TensorView ids = routing.ids.slice(0, begin, tokens);
    KOHO_CUDA_TRY(launch_dense_expert_rows(
        {.ids = ids.as<const std::int32_t>(),
         .permuted_row = mixed_format.permuted_row.view().as<std::int32_t>(),
         .tokens = tokens,
         .top_k = static_cast<int>(top_k),
         .first = static_cast<int>(weights.first),
         .count = static_cast<int>(weights.count),
         .rows_each = static_cast<int>(kSliceTokens)},
        stream_));
    for (std::size_t e = 0; e < mixed_format.experts.size(); ++e) {
      const LinearExpert& expert = mixed_format.experts[e];
      ScratchAllocator scratch_memory(mixed_format.scratch.as<std::byte>());
      const LinearExpertScratch s(scratch_memory, device_id_, tokens, expert);
      KOHO_TRY(run_linear_expert(
          mixed_format.y.view().slice(0, static_cast<std::int64_t>(e) * kSliceTokens, tokens), rows,
          expert, s.gate_up, s.inner));
    }
    ExpertCombine combine;
    combine.y = mixed_format.y.view().as<const Bf16>();
    if (mixed_format.shared)
      combine.shared = combine.y + weights.count * kSliceTokens * weights.hidden;
    combine.weights = routing.weights.slice(0, begin, tokens).as<const float>();
    combine.permuted_row = mixed_format.permuted_row.view().as<const std::int32_t>();
    combine.out = out.slice(0, begin, tokens).as<Bf16>();
    combine.tokens = tokens;
    combine.top_k = static_cast<int>(top_k);
    combine.hidden = static_cast<int>(weights.hidden);
    KOHO_CUDA_TRY(launch_expert_combine(combine, stream_));
  }
  return {};
}

}  // namespace koho::cuda
