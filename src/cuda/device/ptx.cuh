// SPDX-License-Identifier: Apache-2.0
// PTX instructions as functions under their own names, and nothing else. Every wait on an mbarrier
// has a clock limit: a kernel that would hang traps instead.
#pragma once

#include <cstdint>

namespace koho::cuda {

constexpr long long kSpinCyclesMax = 4'000'000'000LL;  // about two seconds

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// The warp's index in its CTA; whole warps must call it. It comes from a shuffle, so ptxas knows
/// it to be warp-uniform: where roles part by it, ring slots and descriptors stay in uniform
/// registers instead of being moved there before each MMA.
__device__ __forceinline__ int warp_index() {
  return __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 32, 0);
}

/// True on one lane of a converged warp. NOTE: lets ptxas know that one lane copies; after a
/// comparison of thread indices it puts each copy into a loop over lanes.
__device__ __forceinline__ bool elect_one() {
  std::uint32_t elected;
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "elect.sync _|p, 0xFFFFFFFF;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(elected));
  return elected != 0;
}

/// Spins until clock64() reaches `time`.
__device__ __forceinline__ void spin_until(long long time) {
  while (clock64() < time) {
  }
}

// ---- programmatic dependent launch

/// Waits until the previous kernels are complete and their writes visible.
__device__ __forceinline__ void wait_on_dependent_grids() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
/// Lets the next kernel start.
__device__ __forceinline__ void launch_dependent_grids() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/// How simple kernels begin. NOTE: it releases after it waits, so at most two kernels overlap, and
/// a kernel may read before its wait what the last but one kernel wrote. Not after routers and, of
/// few tokens, rope, which release at once: experts and attention read before their wait only
/// weights, the step's lists and pages of older tokens.
__device__ __forceinline__ void pdl_begin() {
  wait_on_dependent_grids();
  launch_dependent_grids();
}

// ---- counters in global memory, between kernels that overlap

/// Adds after what this thread wrote, and what other lanes wrote before a __syncwarp(), is visible
/// to the GPU.
__device__ __forceinline__ void add_release(std::uint32_t* counter, std::uint32_t count) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(count) : "memory");
}
__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* counter) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}
/// Waits until a counter has reached `count`; what was written before it was added to is visible.
__device__ __forceinline__ void wait_for_count(const std::uint32_t* counter, std::uint32_t count) {
  if (load_acquire(counter) >= count) return;
  const long long start = clock64();
  while (load_acquire(counter) < count)
    if (clock64() - start > kSpinCyclesMax) __trap();
}

// ---- mbarrier

__device__ __forceinline__ void mbarrier_init(std::uint32_t barrier, std::uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
__device__ __forceinline__ void fence_mbarrier_init() {
  // NOTE: .shared::cta; without it ptxas adds a MEMBAR.ALL.GPU.
  asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::
                   : "memory");
}
/// NOTE: orders all memory, more than barriers need, with a MEMBAR.ALL.GPU. Used where measured to
/// gain.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx(std::uint32_t barrier,
                                                          std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ bool mbarrier_try_wait(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, p;\n\t}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
__device__ __forceinline__ void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  if (mbarrier_try_wait(barrier, parity)) return;
  const long long start = clock64();
  while (!mbarrier_try_wait(barrier, parity))
    if (clock64() - start > kSpinCyclesMax) __trap();
}

/// As mbarrier_wait(), with cluster scope: for bytes that other CTAs of the cluster send.
__device__ __forceinline__ void mbarrier_wait_cluster(std::uint32_t barrier,
                                                      std::uint32_t parity,
                                                      long long cycles_max = kSpinCyclesMax) {
  const long long start = clock64();
  for (;;) {
    std::uint32_t done;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    if (done != 0) return;
    if (clock64() - start > cycles_max) __trap();
  }
}
/// Arrives on another CTA's barrier, at an address from map_shared_rank(). NOTE: without
/// .release.cluster, which would wait for all memory operations of the thread. That is enough to
/// release a slot that the tensor cores have read.
__device__ __forceinline__ void mbarrier_arrive_remote(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// The same, after what this thread has read and written: for a slot that ordinary loads have read.
__device__ __forceinline__ void mbarrier_arrive_remote_release(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}

// ---- copies

/// Drops 128 bytes, aligned to as many, from L2: nobody reads them again before they are written,
/// so memory need not get them. NOTE: orders like a write of this thread.
__device__ __forceinline__ void discard_line(const void* line) {
  asm volatile("discard.global.L2 [%0], 128;" ::"l"(line) : "memory");
}
__device__ __forceinline__ std::uint64_t evict_normal_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ std::uint64_t evict_first_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// Copies contiguous bytes to shared memory; they complete on `barrier`.
__device__ __forceinline__ void bulk_copy(std::uint32_t destination,
                                          const void* source,
                                          std::uint32_t bytes,
                                          std::uint32_t barrier,
                                          std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], "
      "%2, [%3], %4;" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
/// Copies the TMA box at (column, row) of a tensor to shared memory. Its bytes complete on
/// `barrier`; elements beyond the tensor are zeros and count.
__device__ __forceinline__ void tma_load(
    std::uint32_t destination, const void* map, int column, int row, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(destination),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
/// The same with an L2 policy.
__device__ __forceinline__ void tma_load(std::uint32_t destination,
                                         const void* map,
                                         int column,
                                         int row,
                                         std::uint32_t barrier,
                                         std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(destination),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}
/// The same for a tensor of four dimensions; the first coordinate is 0.
__device__ __forceinline__ void tma_load(std::uint32_t destination,
                                         const void* map,
                                         int second,
                                         int third,
                                         int fourth,
                                         std::uint32_t barrier,
                                         std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(destination),
      "l"(map), "r"(0), "r"(second), "r"(third), "r"(fourth), "r"(barrier), "l"(policy)
      : "memory");
}
/// Multicasts a TMA box to the same address in every CTA of `mask`; its bytes complete on each
/// one's barrier.
__device__ __forceinline__ void tma_load_multicast(std::uint32_t destination,
                                                   const void* map,
                                                   int column,
                                                   int row,
                                                   std::uint32_t barrier,
                                                   std::uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(destination),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(mask)
      : "memory");
}
__device__ __forceinline__ void tma_load_multicast(std::uint32_t destination,
                                                   const void* map,
                                                   int second,
                                                   int third,
                                                   int fourth,
                                                   std::uint32_t barrier,
                                                   std::uint16_t mask,
                                                   std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7, %8;" ::"r"(
          destination),
      "l"(map), "r"(0), "r"(second), "r"(third), "r"(fourth), "r"(barrier), "h"(mask), "l"(policy)
      : "memory");
}
/// Stores a TMA box from shared memory to a tensor, as part of the thread's bulk group. Elements
/// beyond the tensor are not stored.
__device__ __forceinline__ void tma_store(const void* map,
                                          int column,
                                          int row,
                                          std::uint32_t source) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
      "r"(column), "r"(row), "r"(source)
      : "memory");
}
/// Commits the thread's TMA and bulk stores so far as a group.
__device__ __forceinline__ void bulk_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until the thread's committed groups of stores have read shared memory.
__device__ __forceinline__ void bulk_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/// Waits until the thread's stores so far have read shared memory.
__device__ __forceinline__ void tma_store_wait_read() {
  bulk_store_commit();
  bulk_store_wait_read();
}
/// Stores contiguous bytes from shared memory, as part of the thread's bulk group; both sides are
/// aligned to 16 bytes.
__device__ __forceinline__ void bulk_store(void* destination,
                                           std::uint32_t source,
                                           std::uint32_t bytes,
                                           std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(
          destination),
      "r"(source), "r"(bytes), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// Prefetches bytes into L2: a multiple of 16, aligned to 16.
__device__ __forceinline__ void prefetch_bulk(const void* pointer, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(pointer), "r"(bytes) : "memory");
}
/// Copies `bytes` of 16 to shared memory; the rest become zero.
__device__ __forceinline__ void cp_async_16(std::uint32_t destination,
                                            const void* source,
                                            std::uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(bytes)
               : "memory");
}
/// Arrives on `barrier` once this thread's cp.async copies so far are complete.
__device__ __forceinline__ void cp_async_mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
/// Makes ordinary writes to shared memory that this thread knows of (its own, and those it waited
/// for) visible to wgmma and TMA.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- barriers

__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// True on all of `threads` if `value` is on any.
__device__ __forceinline__ bool named_barrier_or(int id, int threads, bool value) {
  std::uint32_t any;
  asm volatile(
      "{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\t"
      "barrier.cta.red.or.pred q, %2, %3, p;\n\tselp.u32 %0, 1, 0, q;\n\t}"
      : "=r"(any)
      : "r"(static_cast<std::uint32_t>(value)), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
/// Both halves of a cluster barrier that orders no memory beyond fence_mbarrier_init(). All threads
/// of a CTA that have not exited pass through both.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ std::uint32_t cluster_size() {
  std::uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// The address of the same location in another CTA's shared memory.
__device__ __forceinline__ std::uint32_t map_shared_rank(std::uint32_t address,
                                                         std::uint32_t rank) {
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
/// Sends 16 bytes to another CTA's shared memory; they complete on a barrier there.
__device__ __forceinline__ void st_async(std::uint32_t remote,
                                         float4 value,
                                         std::uint32_t remote_barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(remote),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(remote_barrier)
      : "memory");
}
/// Copies shared memory of this CTA to another's; the bytes complete on a barrier there.
__device__ __forceinline__ void bulk_copy_to_cluster(std::uint32_t remote,
                                                     std::uint32_t source,
                                                     std::uint32_t bytes,
                                                     std::uint32_t remote_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(remote),
      "r"(source), "r"(bytes), "r"(remote_barrier)
      : "memory");
}
/// Sends 4 bytes as st_async() above.
__device__ __forceinline__ void st_async(std::uint32_t remote,
                                         float value,
                                         std::uint32_t remote_barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
          remote),
      "f"(value), "r"(remote_barrier)
      : "memory");
}
/// Loads two floats from the same location of another CTA's shared memory.
__device__ __forceinline__ float2 cluster_load(std::uint32_t address, std::uint32_t rank) {
  float2 value;
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(remote)
               : "memory");
  return value;
}
/// Loads an integer from the same location of another CTA's shared memory.
__device__ __forceinline__ std::uint32_t cluster_load_word(std::uint32_t address,
                                                           std::uint32_t rank) {
  std::uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];"
               : "=r"(value)
               : "r"(map_shared_rank(address, rank))
               : "memory");
  return value;
}

/// 2^value; results below the normal numbers become zero.
__device__ __forceinline__ float exp2_approximate(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// ---- matrix fragments

/// Loads four 8x8 blocks of 16-bit elements; lane l gives the address of row l % 8 of block l / 8.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
/// Stores four 8x8 blocks of 16-bit elements transposed; lane l gives the address of row l % 8,
/// as it lies in memory, of block l / 8.
__device__ __forceinline__ void stmatrix_x4_trans(std::uint32_t address,
                                                  const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
/// Loads 16 bytes of shared memory.
__device__ __forceinline__ void load_shared(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void store_shared(
    std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}
/// Converts four e4m3 values of a register to two f16x2 registers, exactly.
__device__ __forceinline__ void e4m3_to_f16(std::uint32_t values,
                                            std::uint32_t& low,
                                            std::uint32_t& high) {
  asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\t"
      "cvt.rn.f16x2.e4m3x2 %0, l;\n\tcvt.rn.f16x2.e4m3x2 %1, h;\n\t}"
      : "=r"(low), "=r"(high)
      : "r"(values));
}
/// d[16, 8] += a[16, 16] * b[16, 8], f16 in, f32 sum.
__device__ __forceinline__ void mma_f16(float (&d)[4],
                                        std::uint32_t a0,
                                        std::uint32_t a1,
                                        std::uint32_t a2,
                                        std::uint32_t a3,
                                        std::uint32_t b0,
                                        std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/// d[16, 8] += a[16, 16] * b[16, 8], bf16 in, f32 sum.
__device__ __forceinline__ void mma_bf16(float (&d)[4],
                                         std::uint32_t a0,
                                         std::uint32_t a1,
                                         std::uint32_t a2,
                                         std::uint32_t a3,
                                         std::uint32_t b0,
                                         std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace koho::cuda
