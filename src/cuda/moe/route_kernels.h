// SPDX-License-Identifier: Apache-2.0
// The router's kernels, of which choose_route.cpp takes one for each call (contract:
// Backend::route).
#pragma once

#include <cstdint>

#include "cuda/kernels.h"

namespace koho::cuda {

constexpr int kRouteStep = 32;     // elements of H that one step multiplies
constexpr int kRouteSplitK = 16;   // splits of H, and CTAs of a cluster
constexpr int kFastStepsMax = 16;  // of a split: H <= 8192
constexpr int kFastExperts = 192;  // E at most

constexpr std::int64_t kRouteFew = 64;      // tokens at most of a decode step's clusters
constexpr std::int64_t kRouteStream = 256;  // tokens at least of launch_route_stream()
constexpr int kRouteFewSteps = 8;           // of a split at least: H >= 4096

/// One token, H >= 4096.
cudaError_t launch_route_one(const Route& parameters, cudaStream_t stream);
/// Any number of tokens, H >= 4096; in waves of clusters if they are many.
cudaError_t launch_route_few(const Route& parameters, cudaStream_t stream);
/// Any number of tokens of a shape that route_streams(); the faster one from kRouteStream on.
cudaError_t launch_route_stream(const Route& parameters, cudaStream_t stream);
/// Whether launch_route_stream() takes the router's shape.
bool route_streams(const Route& parameters);
/// Any dtype, width, number of experts and groups.
cudaError_t launch_route_plain(const Route& parameters, cudaStream_t stream);

/// Whether the current GPU runs launch_route_few(): clusters of 16 CTAs.
bool route_has_clusters();

}  // namespace koho::cuda
