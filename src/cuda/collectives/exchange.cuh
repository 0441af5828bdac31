// SPDX-License-Identifier: Apache-2.0
// How CTAs of different ranks pass rows to each other: by 16-byte stores into the receiver's memory
// that carry their own arrival, as NCCL's LL protocols and TensorRT-LLM's Lamport kernels do. Owns
// slots, epochs, memory ordering, and waits with timeouts; knows nothing of what rows mean.
//
// A slot that waits for data holds kSentinel in each 32-bit word. A word of data is never kSentinel
// (a pair of NaNs that no conversion gives; the sender replaces it in values that it did not
// compute), so a receiver that reads no kSentinel has the data: no flag, no fence, one link
// latency. The receiver checks words one by one, so nothing relies on 16 bytes arriving together,
// only on an aligned 32-bit word doing so (PTX's vector accesses are accesses of their elements).
//
// Channel c of every rank belongs to CTA c of its kernels, or to cluster c, each of whose CTAs
// exchanges a part of the vectors. Row k of a channel (its epoch) uses slot k % 3 of each rank:
//
//   1. the sender stores row k into slots k % 3 of its peers;
//   2. the receiver polls its slot until all data is there, and resets it to sentinels before its
//      next row.
//
// Why no store meets an older one: the sender's next store to this slot belongs to row k + 3, after
// its thread has read row k + 2 of the same receiver. The receiver sent row k + 2 after it reset
// the slot of row k, with a fence or the end of a kernel between (next_row()), and the sender put a
// fence or the end of a kernel between reading row k + 2 and sending k + 3. So the reset happens
// before the next store. Two slots would do; the third keeps a whole exchange between them. The
// same thread resets what it read, at the same address, so rows of different widths and algorithms
// may follow each other. Two-shot, a vector of a slot belongs to another warp three rows later:
// there a CTA's warps must synchronise once a row (all_reduce_kernel does so).
//
// Where a cluster exchanges a row, the kernel has one row a channel. So two rows of a channel that
// lie in one kernel lie in one CTA, where one thread has a vector in all rows, as above. Between
// rows of different kernels stands the end of the earlier one, which orders the reads and resets of
// all its threads before all stores of the later one, whichever threads those are of. Both steps of
// the argument hold either way: from the receiver's reset of row k to its sending row k + 2, and
// from the sender's reading all of row k + 2 to its sending row k + 3. Kernels may therefore follow
// each other in any order. Where a plain message's last row k + 2 lacks a vector, row k + 1 has it
// and proves the same.
//
// The epoch lies in this rank's device memory and advances by the rows that a CTA took, so kernels
// replayed by CUDA graphs find their slots. Ranks never compare epochs: equal calls in equal order
// make them equal.
//
// Loopback: the other ranks are not there, and all buffers are this rank's. Instead of what it
// would send it stores as many bytes where it waits: zeros as the others' addends, its own values
// as their sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/collectives/all_reduce_norm.h"
#include "cuda/device/numeric.cuh"
#include "cuda/device/ptx.cuh"

namespace koho::cuda {

constexpr std::uint32_t kSentinel = 0xFFFFFFFFU;
constexpr std::uint32_t kNanPair = 0x7FFF7FFFU;
constexpr unsigned kSlots = 3;
constexpr std::uint32_t kPollsPerTimeoutCheck = 32;  // reads the clock about every 25 us
constexpr std::uint32_t kTimeoutChecksPerHostPoll =
    8;  // CollectiveHostState::abort is read over PCIe

/// The first words of an exchange buffer.
struct ExchangeHeader {
  std::uint32_t aborted;   // set by this rank or a peer
  std::uint32_t reported;  // the fault is in CollectiveHostState
  // Of row_exchange.cu: how often this rank passed each barrier, and how often each peer has come
  // there. A reset clears all words of the header.
  std::uint32_t barrier_epochs[2];
  std::uint32_t barrier_flags[2][kCollectiveRanksMax];
};

// ---- memory that other GPUs see

__device__ __forceinline__ void store_system(std::uint64_t to, const uint4& value) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}
__device__ __forceinline__ uint4 load_system(std::uint64_t from) {
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}
__device__ __forceinline__ void store_system_word(void* to, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ std::uint32_t load_system_word(const void* from) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void fence_system() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}
__device__ __forceinline__ std::uint64_t global_time_ns() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// ---- words

__device__ __forceinline__ bool has_arrived(const uint4& v) {
  return v.x != kSentinel && v.y != kSentinel && v.z != kSentinel && v.w != kSentinel;
}
__device__ __forceinline__ std::uint32_t replace_sentinel(std::uint32_t word) {
  return word == kSentinel ? kNanPair : word;
}
__device__ __forceinline__ uint4 replace_sentinel(const uint4& v) {
  return make_uint4(replace_sentinel(v.x), replace_sentinel(v.y), replace_sentinel(v.z),
                    replace_sentinel(v.w));
}

/// Eight f32 sums of bf16, from +0.
struct Accumulator {
  float of[8] = {};

  __device__ __forceinline__ void add(const uint4& v) {
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      of[2 * i] += __uint_as_float(words[i] << 16);
      of[2 * i + 1] += __uint_as_float(words[i] & 0xFFFF0000U);
    }
  }
  /// NOTE: never kSentinel: a NaN is rounded to 0x7FFF.
  __device__ __forceinline__ uint4 rounded() const {
    return make_uint4(pack_bf16(of[0], of[1]), pack_bf16(of[2], of[3]), pack_bf16(of[4], of[5]),
                      pack_bf16(of[6], of[7]));
  }
};

// ---- waits with timeouts

/// Reports the first aborted wait to the host, and aborts all waits of the group unless a peer did.
static __device__ __noinline__ void report_fault(const PeerGroup& group, CollectiveFault fault) {
  auto* const header = reinterpret_cast<ExchangeHeader*>(group.buffers[group.rank]);
  // NOTE: before the abort, which would let another thread of this rank report it as a peer's.
  if (atomicCAS(&header->reported, 0U, 1U) == 0) {
    auto* const words = reinterpret_cast<std::uint8_t*>(&group.host->fault);
    store_system_word(words + offsetof(CollectiveFault, rank), fault.rank);
    store_system_word(words + offsetof(CollectiveFault, waited_for), fault.waited_for);
    store_system_word(words + offsetof(CollectiveFault, epoch), fault.epoch);
    store_system_word(words + offsetof(CollectiveFault, channel), fault.channel);
    store_system_word(words + offsetof(CollectiveFault, phase), fault.phase);
    fence_system();
    store_system_word(words + offsetof(CollectiveFault, kind), fault.kind);
  }
  if (fault.kind == static_cast<std::uint32_t>(FaultKind::aborted_by_peer)) return;
  fence_system();
  for (int rank = 0; rank < group.layout.ranks; ++rank)
    store_system_word(group.buffers[rank] + offsetof(ExchangeHeader, aborted), 1);
}

/// A thread's polling loop. Once one wait of a thread is `aborted`, later ones return at once.
struct SpinWait {
  const PeerGroup& group;
  ExchangePhase phase;
  std::uint32_t epoch;
  std::uint32_t channel;
  bool& aborted;
  std::uint32_t polls = 0;
  std::uint64_t deadline_ns = 0;

  /// After a poll that lacked the data of rank missing(): true if the wait must abort.
  template <typename Missing>
  __device__ __forceinline__ bool must_abort(const Missing& missing) {
    if (++polls % kPollsPerTimeoutCheck != 0) return false;
    const std::uint64_t now_ns = global_time_ns();
    if (deadline_ns == 0) {
      // NOTE: the wait for sums is longer: a rank that waits for an addend knows better who failed.
      deadline_ns = now_ns + group.timeout_ns;
      if (phase == ExchangePhase::all_gather) deadline_ns += group.timeout_ns / 4;
    }
    FaultKind kind = FaultKind::none;
    if (load_system_word(group.buffers[group.rank] + offsetof(ExchangeHeader, aborted)) != 0)
      kind = FaultKind::aborted_by_peer;
    else if (now_ns > deadline_ns)
      kind = FaultKind::timed_out;
    else if (polls % (kPollsPerTimeoutCheck * kTimeoutChecksPerHostPoll) == 0 &&
             load_system_word(&group.host->abort) != 0)
      kind = FaultKind::aborted_by_host;
    if (kind == FaultKind::none) return false;
    CollectiveFault fault;
    fault.kind = static_cast<std::uint32_t>(kind);
    fault.rank = static_cast<std::uint32_t>(group.rank);
    fault.waited_for = static_cast<std::uint32_t>(missing());
    fault.epoch = epoch;
    fault.channel = channel;
    fault.phase = static_cast<std::uint32_t>(phase);
    report_fault(group, fault);
    aborted = true;
    return true;
  }
};

// ---- channels

/// A thread's side of its CTA's channel. A row is `kSteps` vectors of 16 bytes a thread: vector
/// step * blockDim.x + threadIdx.x, where that is below `vectors`.
///
/// Two-shot: rank (vector / 32 + row) % ranks reduces a vector, so that a warp pushes 512
/// contiguous bytes without divergence, and over rows all ranks reduce equally much. kTogether
/// sources are polled together.
template <int kRanks, bool kOneShot, int kSteps, int kTogether = kRanks>
struct Channel {
  const PeerGroup& group;
  unsigned channel;
  std::uint32_t epoch = 0;
  bool aborted = false;

  __device__ __forceinline__ Channel(const PeerGroup& of, unsigned number)
      : group(of), channel(number) {}

  __device__ __forceinline__ std::uint8_t* epoch_word() const {
    return group.buffers[group.rank] + group.layout.epochs +
           sizeof(std::uint32_t) *
               (channel + (kOneShot ? 0U : static_cast<unsigned>(group.layout.channels)));
  }
  /// After wait_on_dependent_grids(), by all threads.
  __device__ __forceinline__ void open() { epoch = load_system_word(epoch_word()); }
  /// By one thread, once all threads have opened the channel.
  __device__ __forceinline__ void close() const { store_system_word(epoch_word(), epoch); }
  /// After a row is received. NOTE: before the next is sent: the fence orders this row's reads and
  /// resets before it; after the last row, the end of the kernel does.
  __device__ __forceinline__ void next_row(bool in_this_kernel) {
    if (in_this_kernel) fence_system();
    epoch = epoch + 1 == kCollectiveEpochs ? 0 : epoch + 1;
  }

  static __device__ __forceinline__ unsigned vector_of(int step) {
    return static_cast<unsigned>(step) * blockDim.x + threadIdx.x;
  }
  static __device__ __forceinline__ int reducing_rank(unsigned vector, unsigned row) {
    return static_cast<int>((vector / 32 + row) % kRanks);
  }
  /// A vector's index among those of its row that its rank reduces.
  static __device__ __forceinline__ unsigned shard_index(unsigned vector) {
    return vector / 32 / kRanks * 32 + vector % 32;
  }
  __device__ __forceinline__ unsigned slot() const { return channel * kSlots + epoch % kSlots; }
  __device__ __forceinline__ std::uint64_t base(int rank, std::int64_t offset) const {
    return reinterpret_cast<std::uint64_t>(group.buffers[rank]) +
           static_cast<std::uint64_t>(offset);
  }
  /// Address of a source's addends in a rank's memory.
  __device__ __forceinline__ std::uint64_t addends(int rank, int source) const {
    const ExchangeLayout& layout = group.layout;
    const auto row = static_cast<std::uint64_t>(slot() * kRanks + static_cast<unsigned>(source));
    return kOneShot
               ? base(rank, layout.one_shot) + row * static_cast<std::uint64_t>(layout.row_bytes)
               : base(rank, layout.reduce_scatter_slots) +
                     row * static_cast<std::uint64_t>(layout.shard_bytes);
  }
  /// Address of the sums in a rank's memory.
  __device__ __forceinline__ std::uint64_t gathered(int rank) const {
    return base(rank, group.layout.gathered) +
           static_cast<std::uint64_t>(slot()) * static_cast<std::uint64_t>(group.layout.row_bytes);
  }

  /// Sends this rank's addends of row `row`, in the current epoch, to the ranks that reduce them.
  __device__ __forceinline__ void push(const uint4 (&x)[kSteps],
                                       unsigned vectors,
                                       unsigned row) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const unsigned vector = vector_of(step);
      if (vector >= vectors) continue;
      const uint4 value = replace_sentinel(x[step]);
      if constexpr (kOneShot) {
#pragma unroll
        for (int i = 1; i < kRanks; ++i) {
          const int peer = (group.rank + i) % kRanks;
          if (group.loopback)
            store_system(addends(group.rank, peer) + 16ULL * vector, make_uint4(0, 0, 0, 0));
          else
            store_system(addends(peer, group.rank) + 16ULL * vector, value);
        }
      } else {
        const int reducer = reducing_rank(vector, row);
        if (group.loopback) {
          if (reducer != group.rank) continue;
#pragma unroll
          for (int i = 1; i < kRanks; ++i)
            store_system(
                addends(group.rank, (group.rank + i) % kRanks) + 16ULL * shard_index(vector),
                make_uint4(0, 0, 0, 0));
        } else if (reducer != group.rank)
          store_system(addends(reducer, group.rank) + 16ULL * shard_index(vector), value);
      }
    }
  }

  /// Bytes from one source's addends to the next's.
  __device__ __forceinline__ std::uint32_t stride() const {
    return static_cast<std::uint32_t>(kOneShot ? group.layout.row_bytes : group.layout.shard_bytes);
  }
  /// Waits for all ranks' addends, rank 0's at `at` in this rank's memory, and returns the rounded
  /// sum; `own` is this rank's addend.
  __device__ __forceinline__ uint4 reduce(const uint4& own, std::uint64_t at) {
    constexpr ExchangePhase kPhase =
        kOneShot ? ExchangePhase::one_shot : ExchangePhase::reduce_scatter;
    Accumulator sums;
#pragma unroll
    for (int source = 0; source < kRanks; source += kTogether) {
      uint4 v[kTogether];
      SpinWait wait{group, kPhase, epoch, channel, aborted};
      for (;;) {
        bool missing = false;
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          v[i] = source + i == group.rank
                     ? own
                     : load_system(at + static_cast<unsigned>(source + i) * stride());
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          missing = missing || (source + i != group.rank && !has_arrived(v[i]));
        if (!missing || aborted) break;
        if (wait.must_abort([&] {
              int rank = 0;
#pragma unroll
              for (int i = kTogether - 1; i >= 0; --i)
                if (source + i != group.rank && !has_arrived(v[i])) rank = source + i;
              return rank;
            }))
          break;
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) sums.add(v[i]);
    }
    return sums.rounded();
  }
  /// Resets what reduce() has read.
  __device__ __forceinline__ void reset(std::uint64_t at) const {
#pragma unroll
    for (int i = 0; i < kRanks; ++i)
      if (i != group.rank)
        store_system(at + static_cast<unsigned>(i) * stride(),
                     make_uint4(kSentinel, kSentinel, kSentinel, kSentinel));
  }

  /// Replaces this rank's addends `x` of row `row`, in the current epoch, by the sums.
  __device__ __forceinline__ void receive(uint4 (&x)[kSteps], unsigned vectors, unsigned row) {
    if constexpr (kOneShot) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const unsigned vector = vector_of(step);
        if (vector >= vectors) continue;
        const std::uint64_t at = addends(group.rank, 0) + 16ULL * vector;
        x[step] = reduce(x[step], at);
        reset(at);
      }
    } else {
      // NOTE: reduces everything that is this rank's before it waits for a peer's sum; otherwise
      // two ranks could wait for each other, and would at best wait one after the other.
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const unsigned vector = vector_of(step);
        if (vector >= vectors) continue;
        if (reducing_rank(vector, row) != group.rank) {
          if (group.loopback)
            store_system(gathered(group.rank) + 16ULL * vector, replace_sentinel(x[step]));
          continue;
        }
        const std::uint64_t at = addends(group.rank, 0) + 16ULL * shard_index(vector);
        x[step] = reduce(x[step], at);
#pragma unroll
        for (int i = 1; i < kRanks; ++i)
          if (!group.loopback)
            store_system(gathered((group.rank + i) % kRanks) + 16ULL * vector, x[step]);
        reset(at);  // behind the sums, for which others wait
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const unsigned vector = vector_of(step);
        if (vector >= vectors || reducing_rank(vector, row) == group.rank) continue;
        const std::uint64_t at = gathered(group.rank) + 16ULL * vector;
        SpinWait wait{group, ExchangePhase::all_gather, epoch, channel, aborted};
        for (;;) {
          x[step] = load_system(at);
          if (has_arrived(x[step]) || aborted) break;
          if (wait.must_abort([&] { return reducing_rank(vector, row); })) break;
        }
        store_system(at, make_uint4(kSentinel, kSentinel, kSentinel, kSentinel));
      }
    }
  }
};

/// A thread's side of a channel of one row, one-shot: one vector. Its CTA or cluster has the row.
template <int kRanks>
struct OneShotVector {
  Channel<kRanks, true, 1> channel;
  // Addresses in the first slot: of this rank's addend, by distance of the peer; of rank 0's here.
  std::uint64_t to[kRanks - 1];
  std::uint64_t from;
  std::uint64_t epoch_at;

  /// Computes addresses, which depend on no earlier kernel; by whole warps.
  __device__ __forceinline__ OneShotVector(const PeerGroup& group, unsigned number, unsigned vector)
      : channel(group, number) {
#pragma unroll
    for (int i = 1; i < kRanks; ++i) {
      const int peer = (group.rank + i) % kRanks;
      to[i - 1] = pinned(
          (group.loopback ? channel.addends(group.rank, peer) : channel.addends(peer, group.rank)) +
          16ULL * vector);
    }
    from = pinned(channel.addends(group.rank, 0) + 16ULL * vector);
    epoch_at = pinned(reinterpret_cast<std::uint64_t>(channel.epoch_word()));
  }
  /// After wait_on_dependent_grids().
  __device__ __forceinline__ void open() {
    channel.epoch = load_system_word(reinterpret_cast<const void*>(epoch_at));
  }
  __device__ __forceinline__ void push(const uint4& x) const {
    const uint4 value = channel.group.loopback ? make_uint4(0, 0, 0, 0) : replace_sentinel(x);
#pragma unroll
    for (const std::uint64_t address : to) store_system(address + slot_offset(), value);
  }
  /// The rounded sum of all ranks' addends, of which `own` is this rank's.
  __device__ __forceinline__ uint4 sum(const uint4& own) {
    return channel.reduce(own, from + slot_offset());
  }
  /// After sum().
  __device__ __forceinline__ void reset() const {
    channel.reset(from + slot_offset());
  }
  /// By one thread, once all threads have opened the channel and this one has reset its slot.
  __device__ __forceinline__ void close() {
    channel.next_row(false);
    channel.close();
  }

 private:
  __device__ __forceinline__ std::uint64_t slot_offset() const {
    return static_cast<std::uint64_t>(channel.epoch % kSlots) * kRanks *
           static_cast<std::uint64_t>(channel.group.layout.row_bytes);
  }
  /// NOTE: through a shuffle, which the compiler does not move behind the wait for the previous
  /// kernel, where it would compute the address otherwise.
  static __device__ __forceinline__ std::uint64_t pinned(std::uint64_t value) {
    return __shfl_sync(0xFFFFFFFFU, value, static_cast<int>(threadIdx.x) % 32);
  }
};

}  // namespace koho::cuda
