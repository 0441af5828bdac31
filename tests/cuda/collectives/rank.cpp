// SPDX-License-Identifier: Apache-2.0
// Set-up of a rank, calls and their reference, comparison, timing.
#include "tests/cuda/collectives/rank.h"

#include <algorithm>
#include <cstdio>
#include <new>

namespace koho::cuda::collectives_bench {

namespace {

/// Bytes of a buffer that a case uses, and the guards around them.
std::int64_t span(std::int64_t bytes) {
  return (bytes + 15) / 16 * 16 + 2 * kGuard;
}

}  // namespace

RowOutputs outputs_of(const Outputs& o, const Case& c, std::int64_t first_row) {
  RowOutputs outputs;
  if ((c.outputs & 1) != 0) {
    outputs.values = o.values.data<Bf16>() + first_row * c.stride();
    outputs.values_stride = c.stride();
  }
  if ((c.outputs & 2) != 0) {
    outputs.quantized = o.quantized.data<std::uint8_t>() + first_row * c.stride();
    outputs.quantized_stride = c.stride();
    outputs.scales = o.scales.data<float>() + first_row;
  }
  if ((c.outputs & 4) != 0) {
    outputs.block_quantized = o.block_quantized.data<std::uint8_t>() + first_row * c.stride();
    outputs.block_quantized_stride = c.stride();
    outputs.block_scales = o.block_scales.data<float>() + first_row * c.blocks();
    outputs.block_scales_stride = c.blocks();
  }
  return outputs;
}

void Rank::set_up() {
  const int device = options.devices[static_cast<std::size_t>(rank_) % options.devices.size()];
  CHECK_CUDA(cudaSetDevice(device));
  CHECK_CUDA(cudaFree(nullptr));
  barrier();
  cudaDeviceProp properties;
  CHECK_CUDA(cudaGetDeviceProperties(&properties, device));
  multiprocessors_ = properties.multiProcessorCount;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  group_.layout = exchange_layout(options.ranks, kWidthMax,
                                  exchange_channels(multiprocessors_, options.ranks_on_gpu()));
  group_.rank = rank_;
  group_.shares_gpu = options.ranks_on_gpu() > 1;
  group_.loopback = options.loopback;
  group_.timeout_ns = 4'000'000'000ULL;
  void* buffer = nullptr;
  CHECK_CUDA(cudaMalloc(&buffer, static_cast<std::size_t>(group_.layout.total_bytes)));
  group_.buffers[rank_] = static_cast<std::uint8_t*>(buffer);
  shared->pointers[rank_] = buffer;
  if (options.processes) CHECK_CUDA(cudaIpcGetMemHandle(&shared->handles[rank_], buffer));
  barrier();
  for (std::size_t i = 0; i < options.devices.size() && !options.processes; ++i) {
    if (options.devices[i] == device) continue;
    const cudaError_t status = cudaDeviceEnablePeerAccess(options.devices[i], 0);
    if (status != cudaErrorPeerAccessAlreadyEnabled) CHECK_CUDA(status);
    cudaGetLastError();
  }
  for (int peer = 0; peer < options.ranks; ++peer) {
    if (peer == rank_) continue;
    void* mapped = shared->pointers[options.loopback ? rank_ : peer];
    if (options.processes)
      CHECK_CUDA(
          cudaIpcOpenMemHandle(&mapped, shared->handles[peer], cudaIpcMemLazyEnablePeerAccess));
    group_.buffers[peer] = static_cast<std::uint8_t*>(mapped);
  }
  void* words = nullptr;
  CHECK_CUDA(cudaHostAlloc(&words, sizeof(CollectiveHostState), cudaHostAllocMapped));
  host_state_ = new (words) CollectiveHostState{};
  void* device_words = nullptr;
  CHECK_CUDA(cudaHostGetDevicePointer(&device_words, words, 0));
  group_.host = static_cast<CollectiveHostState*>(device_words);

  x_.allocate(2 * kElementsMax);
  weight_.allocate(2 * kWidthMax);
  actual_.allocate();
  expected_.allocate();
  CHECK_CUDA(cudaMalloc(&differences_, kDifferencesMax * sizeof(Difference)));
  CHECK_CUDA(cudaMalloc(&digest_, sizeof(unsigned long long)));
  generate(weight_.data<Bf16>(), 4711, -1, Case{.rows = 1, .width = kWidthMax}, kWidthMax);
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  reset(0);
  if (rank_ == 0)
    json(
        "\"part\":\"setup\",\"gpu\":\"%s\",\"multiprocessors\":%d,\"channels\":%d,"
        "\"buffer_mib\":%.1f",
        properties.name, multiprocessors_, group_.layout.channels,
        static_cast<double>(group_.layout.total_bytes) / (1 << 20));
}

void Rank::reset(std::uint32_t first_epoch) {
  barrier();
  CHECK_CUDA(launch_reset_exchange(group_, first_epoch, stream_));
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  *host_state_ = CollectiveHostState{};
  barrier();
}

void Rank::generate(Bf16* to, std::uint32_t seed, int of, const Case& c, std::int64_t stride) {
  launch_generate(stream_, to, seed, of, c.rows, c.width, stride);
}

std::vector<Part> parts_of(const Outputs& o, const Case& c, bool fused) {
  if (!fused) return {{&o.sum, 2 * c.rows * c.width, "sum"}};
  return {{&o.residual, 2 * c.rows * c.stride(), "residual"},
          {&o.values, 2 * c.rows * c.stride(), "values"},
          {&o.quantized, c.rows * c.stride(), "quantized"},
          {&o.scales, 4 * c.rows, "scales"},
          {&o.block_quantized, c.rows * c.stride(), "block_quantized"},
          {&o.block_scales, 4 * c.rows * c.blocks(), "block_scales"}};
}

void Rank::poison(const Outputs& o, const Case& c, bool fused) {
  for (const Part& part : parts_of(o, c, fused))
    launch_fill(stream_, part.buffer->all, span(part.bytes), kPoison);
}

/// Compares all buffers of a call, guards and poison included.
void Rank::compare(const Case& c, bool fused, int check) {
  const std::vector<Part> actual = parts_of(actual_, c, fused);
  const std::vector<Part> expected = parts_of(expected_, c, fused);
  for (std::size_t i = 0; i < actual.size(); ++i)
    launch_compare(stream_, actual[i].buffer->all, expected[i].buffer->all, span(actual[i].bytes),
                   differences_ + check + static_cast<int>(fused ? i : 0));
}

/// expected_ as norm.cu makes it of a sum in rank order.
void Rank::reference(const Case& c, std::uint32_t seed, bool fused) {
  launch_sum(stream_, expected_.sum.data<Bf16>(), seed, options.running(), c.rows, c.width);
  if (!fused) return;
  generate(expected_.residual.data<Bf16>(), seed, -1, c, c.stride());
  NormRows norm;
  norm.x = norm.residual = expected_.residual.data<Bf16>();
  norm.x_stride = c.stride();
  norm.block_output = expected_.sum.data<Bf16>();
  norm.weight = weight_.data<Bf16>();
  norm.eps = kEps;
  norm.rows = c.rows;
  norm.width = c.width;
  CHECK_CUDA(launch_rms_norm(outputs_of(expected_, c), norm, stream_));
}

cudaError_t Rank::call(const Case& c,
                       AllReduceAlgorithm algorithm,
                       bool fused,
                       std::int64_t first_row) {
  const std::int64_t first = first_row * c.width;
  if (!fused) {
    AllReduce reduce;
    reduce.group = &group_;
    reduce.algorithm = algorithm;
    reduce.x = (c.in_place ? actual_.sum : x_).data<Bf16>() + first;
    reduce.out = actual_.sum.data<Bf16>() + first;
    reduce.elements = c.rows * c.width;
    return launch_all_reduce(reduce, stream_);
  }
  AllReduceNorm reduce;
  reduce.group = &group_;
  reduce.algorithm = algorithm;
  reduce.x = x_.data<Bf16>() + first;
  reduce.residual = actual_.residual.data<Bf16>() + first_row * c.stride();
  reduce.residual_stride = c.stride();
  reduce.weight = weight_.data<Bf16>();
  reduce.eps = kEps;
  reduce.rows = c.rows;
  reduce.width = c.width;
  reduce.ctas_per_row_max = c.ctas;
  return launch_all_reduce_norm(outputs_of(actual_, c, first_row), reduce, stream_);
}

cudaGraphExec_t Rank::capture(const std::function<void()>& body) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  body();
  CHECK_CUDA(cudaStreamEndCapture(stream_, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CHECK_CUDA(cudaGraphDestroy(graph));
  CHECK_CUDA(cudaGraphUpload(executable, stream_));
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  return executable;
}

std::string described(const CollectiveFault& fault) {
  const char* kinds[] = {"none", "timed out", "aborted by a peer", "aborted by the host"};
  const char* phases[] = {"one-shot", "reduce-scatter", "all-gather"};
  char text[200];
  std::snprintf(text, sizeof text, "rank %u waited for rank %u: %s, %s, channel %u, epoch %u",
                fault.rank, fault.waited_for, kinds[fault.kind % 4], phases[fault.phase % 3],
                fault.channel, fault.epoch);
  return text;
}

void Rank::sync(const char* what) {
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  const volatile std::uint32_t& kind = host_state_->fault.kind;
  if (kind != 0) fail("FAULT in %s: %s", what, described(host_state_->fault).c_str());
}

void Rank::count_wrong(const std::vector<std::string>& names) {
  Difference found[kDifferencesMax];
  CHECK_CUDA(cudaMemcpyAsync(found, differences_, sizeof found, cudaMemcpyDeviceToHost, stream_));
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (found[i].words == 0) continue;
    if (shared->wrong.fetch_add(1) < 40) {
      std::printf("WRONG rank %d %s: %llu words, first at byte %lld of the data\n", rank_,
                  names[i].c_str(), found[i].words,
                  static_cast<long long>(found[i].first) - kGuard);
      std::fflush(stdout);
    }
  }
}

/// Microseconds a call: of the slowest rank, the median of replays.
double Rank::time(int calls, int replays, const std::function<void()>& one) {
  cudaGraphExec_t graph = capture([&] {
    for (int i = 0; i < calls; ++i) one();
  });
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<double> each;
  for (int i = 0; i <= replays; ++i) {
    barrier();
    CHECK_CUDA(cudaEventRecord(begin, stream_));
    launch(graph);
    CHECK_CUDA(cudaEventRecord(end, stream_));
    sync("times");
    float ms = 0;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) each.push_back(ms * 1e3 / calls);
  }
  std::sort(each.begin(), each.end());
  CHECK_CUDA(cudaEventDestroy(begin));
  CHECK_CUDA(cudaEventDestroy(end));
  CHECK_CUDA(cudaGraphExecDestroy(graph));
  return largest(rank_, each[each.size() / 2]);
}

void Rank::run() {
  set_up();
  if (options.has("checks")) checks();
  if (options.has("soak")) {
    soak(0);
    soak(kCollectiveEpochs - 7);
  }
  if (options.has("link")) link();
  if (options.has("times")) times();
  if (options.has("faults") && !options.loopback) faults();
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  barrier();
}

}  // namespace koho::cuda::collectives_bench
