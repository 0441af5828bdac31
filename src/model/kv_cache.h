// SPDX-License-Identifier: Apache-2.0
// The KV cache's memory on one rank: the pages of every layer, allocated once. It refuses to know
// which sequence owns a page: kvcache/ decides that, by page numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "ops/backend.h"

namespace koho {

class KvCache {
 public:
  struct Geometry {
    std::int64_t layers = 0;
    std::int64_t pages = 0;     // N
    std::int64_t kv_heads = 0;  // K, on this rank
    std::int64_t width = 0;     // D
    DType dtype = DType::bf16;  // or f8_e4m3
  };

  /// Bytes of one page over all layers, K and V, scales included.
  static std::int64_t page_bytes(const Geometry& geometry);

  /// Errors: resource_exhausted.
  static Result<KvCache> allocate(Backend& backend, const Geometry& geometry);

  /// The pages of one layer.
  ///
  /// shapes    k, v [N, K, 64, D]; scales as KvLayer
  KvLayer layer(std::int64_t index);
  const Geometry& geometry() const { return geometry_; }

 private:
  Geometry geometry_;
  std::vector<Tensor> k_;
  std::vector<Tensor> v_;
  std::vector<Tensor> k_scales_;
  std::vector<Tensor> v_scales_;
};

}  // namespace koho
