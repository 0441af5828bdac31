// SPDX-License-Identifier: Apache-2.0
// Every shape, fused by one CTA or a cluster a row and plain, one-shot and two-shot, compared bit
// by bit on fresh inputs; the reference sums of small shapes are compared with the host's.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "tests/cuda/collectives/rank.h"

namespace koho::cuda::collectives_bench {

/// The GPU's sums against the host's.
void Rank::check_cpu(const Case& c, std::uint32_t seed) {
  std::vector<Bf16> sums(static_cast<std::size_t>(c.rows * c.width));
  CHECK_CUDA(cudaMemcpyAsync(sums.data(), expected_.sum.data<Bf16>(), 2 * sums.size(),
                             cudaMemcpyDeviceToHost, stream_));
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  for (std::int64_t i = 0; i < c.rows * c.width; ++i) {
    float sum = 0.0F;
    for (int rank = 0; rank < options.running(); ++rank) {
      const std::uint32_t word =
          std::uint32_t{bits_of(seed, rank, i / c.width, i % c.width, c.width)} << 16;
      float addend;
      std::memcpy(&addend, &word, 4);
      sum += addend;
    }
    std::uint32_t word;
    std::memcpy(&word, &sum, 4);
    const Bf16 expected = std::isnan(sum)
                              ? Bf16{0x7FFF}
                              : static_cast<Bf16>((word + 0x7FFFU + (word >> 16 & 1U)) >> 16);
    if (sums[static_cast<std::size_t>(i)] == expected) continue;
    std::printf("WRONG reference: element %lld is %04x on the GPU, %04x on the host\n",
                static_cast<long long>(i), sums[static_cast<std::size_t>(i)], expected);
    shared->wrong.fetch_add(1);
    return;
  }
}

namespace {

const char* name_of(AllReduceAlgorithm algorithm) {
  return algorithm == AllReduceAlgorithm::one_shot ? "one-shot" : "two-shot";
}

/// The calls of a shape, one behind another. The last is plain.
struct Form {
  bool fused;
  AllReduceAlgorithm algorithm;
  int ctas = 1;  // most of a row
};
constexpr Form kForms[] = {
    {.fused = true, .algorithm = AllReduceAlgorithm::one_shot},
    {.fused = true, .algorithm = AllReduceAlgorithm::one_shot, .ctas = 4},
    {.fused = false, .algorithm = AllReduceAlgorithm::two_shot},
    {.fused = true, .algorithm = AllReduceAlgorithm::two_shot},
    {.fused = true, .algorithm = AllReduceAlgorithm::one_shot, .ctas = 8},  // or 2
    {.fused = false, .algorithm = AllReduceAlgorithm::one_shot},
};

/// A case of `rows` x `width` whose padding, outputs and aliasing follow from the seed.
Case seeded_case(std::int64_t rows, std::int64_t width, bool fused, std::uint32_t seed) {
  Case c{.rows = rows, .width = width};
  const std::uint32_t variant = hash(seed) % 8;
  c.pad = variant % 2 == 0 ? 0 : 16;
  c.outputs = variant < 4 ? 7 : static_cast<int>(variant);  // 7 all; 4 blocks; 5, 6; 7
  if (hash(seed) % 5 == 0) c.outputs = 1 + static_cast<int>(hash(seed + 1) % 3);
  c.in_place = !fused && variant % 4 < 2;
  return c;
}

}  // namespace

/// Enqueues one call on fresh inputs after a delay, its reference and their comparison.
void Rank::enqueue_check(const Case& c,
                         AllReduceAlgorithm algorithm,
                         bool fused,
                         std::uint32_t seed,
                         std::vector<std::string>& names) {
  poison(actual_, c, fused);
  generate((c.in_place ? actual_.sum : x_).data<Bf16>(), seed, rank_, c, c.width);
  poison(expected_, c, fused);
  if (fused) generate(actual_.residual.data<Bf16>(), seed, -1, c, c.stride());
  const std::uint32_t delay = hash(seed * 31 + static_cast<std::uint32_t>(rank_));
  if (delay % 3 != 0) launch_delay(stream_, delay % 20'000);
  CHECK_CUDA(call(c, algorithm, fused));
  reference(c, seed, fused);
  compare(c, fused, static_cast<int>(names.size()));
  char name[160];
  for (const Part& part : parts_of(actual_, c, fused)) {
    std::snprintf(name, sizeof name, "%lld x %lld %s %s ctas %d pad %lld outputs %d seed %u: %s",
                  static_cast<long long>(c.rows), static_cast<long long>(c.width),
                  fused ? "fused" : "plain", name_of(algorithm), c.ctas,
                  static_cast<long long>(c.pad), c.outputs, seed, part.name);
    names.emplace_back(name);
  }
}

/// Counts it as wrong if the ranks' sums, [rows, width], differ.
void Rank::compare_ranks(std::int64_t rows, std::int64_t width) {
  CHECK_CUDA(cudaMemsetAsync(digest_, 0, 8, stream_));
  launch_digest(stream_, actual_.sum.data<std::uint8_t>(), 2 * rows * width, digest_);
  unsigned long long digest = 0;
  CHECK_CUDA(cudaMemcpyAsync(&digest, digest_, 8, cudaMemcpyDeviceToHost, stream_));
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  const double low = static_cast<double>(digest & 0xFFFFFFFFFFFFFULL);
  if (largest(rank_, low) == smallest(rank_, low)) return;
  if (rank_ == 0)
    std::printf("WRONG ranks differ: %lld x %lld\n", static_cast<long long>(rows),
                static_cast<long long>(width));
  shared->wrong.fetch_add(1);
}

/// One shape in all forms, in one graph. Advances `seed` by its calls and
/// returns how many were made.
long long Rank::check_shape(std::int64_t rows, std::int64_t width, std::uint32_t& seed) {
  const int rounds = rows * width > 1'000'000 ? 1 : 2;
  const int replays = rows * width > 4'000'000 ? 1 : 2;
  std::vector<std::string> names;
  Case last;
  cudaGraphExec_t graph = capture([&] {
    launch_clear(stream_, differences_);
    for (int round = 0; round < rounds; ++round) {
      for (const Form& form : kForms) {
        // NOTE: alone, two-shot gathers no sums but what it has: NaN and -0 stay as they are.
        if (options.loopback && form.algorithm == AllReduceAlgorithm::two_shot) continue;
        ++seed;
        last = seeded_case(rows, width, form.fused, seed);
        last.ctas = form.ctas == 8 && hash(seed) % 2 == 0 ? 2 : form.ctas;
        enqueue_check(last, form.algorithm, form.fused, seed, names);
      }
    }
  });
  for (int replay = 0; replay < replays; ++replay) {
    barrier();
    launch(graph);
    sync("checks");
    count_wrong(names);
  }
  if (rows * width <= 40'000) check_cpu(last, seed);
  compare_ranks(rows, width);  // of the last call, which is plain
  CHECK_CUDA(cudaGraphExecDestroy(graph));
  return static_cast<long long>(std::size(kForms)) * rounds * replays;
}

void Rank::checks() {
  const double start = now_s();
  // On a GPU with 132 SMs clusters of 8, 4 and 2 take up to 8, 16 and 33 rows of at most 5,120;
  // where two ranks share the GPU up to 1, 2 and 4.
  std::vector<std::int64_t> rows = {1,  2,  3,  4,  5,   7,   8,   9,   16,   17,   32,
                                    33, 34, 64, 65, 128, 132, 133, 256, 1024, 4096, 8192};
  std::vector<std::int64_t> widths = {5120, 4096, 5000, 1032, 256, 192, 8, 7168, 10'240};
  if (options.quick) rows = {1, 3, 17, 128, 1024}, widths = {5120, 192, 10'240};
  std::uint32_t seed = options.seed * 1000;
  long long shapes = 0;
  long long calls = 0;
  for (const std::int64_t width : widths) {
    for (const std::int64_t count : rows) {
      if (count * width > kElementsMax) continue;
      calls += check_shape(count, width, seed);
      ++shapes;
    }
  }
  barrier();
  if (rank_ == 0)
    json("\"part\":\"checks\",\"shapes\":%lld,\"calls\":%lld,\"wrong\":%lld,\"seconds\":%.1f",
         shapes, calls, shared->wrong.load(), now_s() - start);
  barrier();
}

}  // namespace koho::cuda::collectives_bench
