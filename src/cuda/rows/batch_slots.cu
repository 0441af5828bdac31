// SPDX-License-Identifier: Apache-2.0
// What the device keeps of a batch slot between steps (its page table, its last token, where its
// output ends) on the way into a step's rows and back. In gather_input_ids blocks 0 .. S-1 copy a
// page table each, the others resolve token ids. Bytes: a few KB; bound by launch.
//
// NOTE: a batch slot, or an index beyond its table, would touch foreign memory, so kernels skip it;
// the contract forbids it and the engine checks before.
#include "cuda/device/launch.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/kernels.h"
#include "sampling/output_record.h"

namespace koho::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kCommitThreads = 32;  // rows spread over SMs: each is a chain of dependent reads
constexpr int kPageTokens = 64;

__global__ void gather_input_ids_kernel(const GatherInputIds p) {
  pdl_begin();
  const std::int64_t block = blockIdx.x;
  if (block < p.sequences) {
    const std::int64_t batch_slot = p.batch_slots[block];
    if (batch_slot < 0 || batch_slot >= p.batch_slot_count) return;
    if (p.outputs[batch_slot * OutputRecord::kWords + OutputRecord::kEnded] != 0) {
      if (threadIdx.x == 0) p.context_lengths[block] = 0;
      return;
    }
    const std::int64_t pages =
        min((static_cast<std::int64_t>(p.context_lengths[block]) + kPageTokens - 1) / kPageTokens,
            p.width);
    for (std::int64_t i = threadIdx.x; i < pages; i += kThreads)
      p.page_tables[block * p.width + i] = p.batch_slot_pages[batch_slot * p.width + i];
    return;
  }
  const std::int64_t token = (block - p.sequences) * kThreads + threadIdx.x;
  if (token >= p.tokens) return;
  const std::int32_t given = p.given_ids[token];
  std::int32_t id = given;
  if (given < 0) {
    const std::int64_t batch_slot = -1 - static_cast<std::int64_t>(given);
    id = batch_slot < p.batch_slot_count ? p.last_sampled[batch_slot] : 0;
    if (batch_slot < p.batch_slot_count &&
        p.outputs[batch_slot * OutputRecord::kWords + OutputRecord::kEnded] != 0)
      p.slots[token] = -1;
  }
  p.token_ids[token] = id;
}

/// A thread a row: matching an output's few stop sequences takes a few hundred instructions.
__global__ void commit_sampled_kernel(const CommitSampled p) {
  pdl_begin();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kCommitThreads + threadIdx.x;
  if (row >= p.rows) return;
  const std::int32_t batch_slot = p.batch_slots[row];
  if (batch_slot < 0 || batch_slot >= p.batch_slot_count) return;
  const std::int32_t id = p.ids[row];
  const RowEnd end = take_token(p.outputs + std::int64_t{batch_slot} * OutputRecord::kWords, id);
  if (end != RowEnd::frozen) p.last_sampled[batch_slot] = max(id, 0);
  p.ends[row] = static_cast<std::uint8_t>(end);
}

__global__ void set_entries_kernel(std::int32_t* table,
                                   std::int64_t entries,
                                   const std::int32_t* pairs,
                                   std::int64_t count) {
  pdl_begin();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const std::int32_t place = pairs[2 * i];
  if (place >= 0 && place < entries) table[place] = pairs[2 * i + 1];
}

unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

cudaError_t launch_gather_input_ids(const GatherInputIds& p, cudaStream_t stream) {
  return launch_kernel(
      gather_input_ids_kernel,
      {dim3(static_cast<unsigned>(p.sequences) + blocks_for(p.tokens)), dim3(kThreads)}, stream, p);
}

cudaError_t launch_commit_sampled(const CommitSampled& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((p.rows + kCommitThreads - 1) / kCommitThreads);
  return launch_kernel(commit_sampled_kernel, {dim3(blocks), dim3(kCommitThreads)}, stream, p);
}

cudaError_t launch_set_entries(std::int32_t* table,
                               std::int64_t entries,
                               const std::int32_t* pairs,
                               std::int64_t count,
                               cudaStream_t stream) {
  return launch_kernel(set_entries_kernel, {dim3(blocks_for(count)), dim3(kThreads)}, stream, table,
                       entries, pairs, count);
}

const void* kernel_of::batch_slots() {
  return reinterpret_cast<const void*>(&any_kernel);
}

}  // namespace koho::cuda
