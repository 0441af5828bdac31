// SPDX-License-Identifier: Apache-2.0
// One kernel of every .cu file. load_kernels() (runtime.h) finds the module of each by it, and
// loads all kernels of that module.
#pragma once

namespace koho::cuda::kernel_of {

const void* attention_decode();
const void* attention_combine();
const void* attention_reference();
const void* attention_prefill();
const void* synthetic_weights();
const void* experts();
const void* experts_down_portable();
const void* gemm_grouped_decode_portable();
const void* gemm_prefill_portable();
const void* gemm_scale_epilogue();
const void* norm();
const void* repack();
const void* rope_kv();
const void* route();
const void* route_few();
const void* route_one();
const void* route_stream();
const void* gather_copy();
const void* sample_threshold_cluster();
const void* sample_gumbel_max();
const void* sample_threshold_stream();
const void* batch_slots();
const void* all_reduce_norm();
const void* row_exchange();
// Hopper's.
const void* attention_wgmma();
const void* experts_down_wgmma();
const void* experts_thin();
const void* gemm_decode_swap_ab_sm90();
const void* gemm_prefill_sm90();
const void* gemm_decode_unswapped_sm90();
const void* gemm_grouped_decode_sm90();

}  // namespace koho::cuda::kernel_of
