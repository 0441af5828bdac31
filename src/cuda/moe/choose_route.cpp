// SPDX-License-Identifier: Apache-2.0
// Which of the router's kernels runs: docs/kernels/router.md.
#include "cuda/moe/route_kernels.h"

namespace koho::cuda {
namespace {

/// Whether the kernels that multiply with mma.sync in 16 splits take the router's shape.
bool is_fast(const Route& p) {
  return !p.weight_f32 && p.groups == 1 && p.experts <= kFastExperts &&
         p.hidden % kRouteStep == 0 && p.hidden >= kRouteSplitK * kRouteStep * kRouteFewSteps &&
         p.hidden <= kRouteSplitK * kRouteStep * kFastStepsMax && p.x_stride % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(p.x) % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(p.weight) % 16 == 0;
}

}  // namespace

cudaError_t launch_route(const Route& p, cudaStream_t stream) {
  if (p.experts > kRouteExpertsMax || p.top_k > kRouteChoicesMax) return cudaErrorInvalidValue;
  if (!is_fast(p) || !route_has_clusters()) return launch_route_plain(p, stream);
  if (p.tokens >= kRouteStream && route_streams(p)) return launch_route_stream(p, stream);
  return p.tokens == 1 ? launch_route_one(p, stream) : launch_route_few(p, stream);
}

}  // namespace koho::cuda
