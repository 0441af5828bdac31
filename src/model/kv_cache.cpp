// SPDX-License-Identifier: Apache-2.0
#include "model/kv_cache.h"

namespace koho {

std::int64_t KvCache::page_bytes(const Geometry& geometry) {
  const std::int64_t rows = geometry.layers * 2 * geometry.kv_heads * kPageTokens;
  const std::int64_t scale_bytes = geometry.dtype == DType::f8_e4m3 ? dtype_bytes(DType::f32) : 0;
  return rows * (geometry.width * dtype_bytes(geometry.dtype) + scale_bytes);
}

Result<KvCache> KvCache::allocate(Backend& backend, const Geometry& geometry) {
  KvCache cache;
  cache.geometry_ = geometry;
  const Shape rows{geometry.pages, geometry.kv_heads, kPageTokens, geometry.width};
  const Shape scales{geometry.pages, geometry.kv_heads, kPageTokens};
  for (std::int64_t layer = 0; layer < geometry.layers; ++layer) {
    for (std::vector<Tensor>* side : {&cache.k_, &cache.v_}) {
      KOHO_TRY_ASSIGN(Tensor pages, backend.allocate(geometry.dtype, rows, "KV pages"));
      side->push_back(std::move(pages));
    }
    if (geometry.dtype != DType::f8_e4m3) continue;
    for (std::vector<Tensor>* side : {&cache.k_scales_, &cache.v_scales_}) {
      KOHO_TRY_ASSIGN(Tensor values, backend.allocate(DType::f32, scales, "KV scales"));
      side->push_back(std::move(values));
    }
  }
  return cache;
}

KvLayer KvCache::layer(std::int64_t index) {
  const auto i = static_cast<std::size_t>(index);
  KvLayer pages{.k = k_[i].view(), .v = v_[i].view(), .k_scales = {}, .v_scales = {}};
  if (!k_scales_.empty()) {
    pages.k_scales = k_scales_[i].view();
    pages.v_scales = v_scales_[i].view();
  }
  return pages;
}

}  // namespace koho
