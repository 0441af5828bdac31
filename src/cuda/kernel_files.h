// SPDX-License-Identifier: Apache-2.0
// One kernel of every file of kernels, by which the driver finds the others (load_kernels() in
// runtime.h).
#pragma once

namespace koho::cuda::kernel_of {

const void* attention_decode();
const void* attention_merge();
const void* attention_plain();
const void* attention_prefill();
const void* draw();
const void* experts();
const void* experts_down_portable();
const void* matmul_portable();
const void* matmul_scale();
const void* norm();
const void* repack();
const void* rope_kv();
const void* route();
const void* route_few();
const void* route_many();
const void* route_one();
const void* rows();
const void* sample_cut();
const void* sample_draw();
const void* sample_stream();
const void* seats();
// Hopper's.
const void* attention_wgmma();
const void* experts_down_wgmma();
const void* matmul_dense();
const void* matmul_prefill();
const void* matmul_turned();
const void* matmul_wgmma();

}  // namespace koho::cuda::kernel_of
