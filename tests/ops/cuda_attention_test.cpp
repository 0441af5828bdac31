// SPDX-License-Identifier: Apache-2.0
// Attention of the CUDA backend beside the list of cases: long prompts, every split of a context,
// and tokens stored by the kernel before.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/arithmetic.h"
#include "cuda/cuda_backend.h"
#include "ops/captured_backend.h"
#include "ops/compare.h"
#include "ops/on_cuda.h"
#include "ops/reference.h"
#include "support/step_limits.h"

namespace koho::testing {
namespace {

class CudaAttention : public OnCuda {};

/// Random keys and values in pages [N, K, 64, D] on the device.
struct RandomPages {
  DeviceArray k, v, k_scales, v_scales;
  KvLayer kv;

  RandomPages(Backend& backend, Random& random, DType dtype, const Shape& shape, double scale)
      : k(backend, random_values(random, dtype, shape, Spread::normal)),
        v(backend, random_values(random, dtype, shape, Spread::normal)),
        k_scales(backend, scales_of(random, shape, scale)),
        v_scales(backend, scales_of(random, shape, scale)),
        kv{k.view(), v.view(), {}, {}} {
    if (dtype != DType::f8_e4m3) return;
    kv.k_scales = k_scales.view();
    kv.v_scales = v_scales.view();
  }

 private:
  static HostTensor scales_of(Random& random, const Shape& shape, double scale) {
    return random_scales(random, DType::f32, {shape[0], shape[1], shape[2]}, scale);
  }
};

/// A batch of decoded rows on the device, one a context.
struct DecodeBatch {
  DeviceArray starts, positions, lengths, tables;
  Batch batch;

  DecodeBatch(Backend& backend,
              const std::vector<std::int64_t>& contexts,
              const HostTensor& page_tables) {
    const auto sequences = static_cast<std::int64_t>(contexts.size());
    std::vector<std::int64_t> start_values{0};
    std::vector<std::int64_t> last;
    for (const std::int64_t context : contexts) {
      start_values.push_back(start_values.back() + 1);
      last.push_back(std::max<std::int64_t>(context - 1, 0));
      batch.context_max = std::max(batch.context_max, context);
    }
    starts = DeviceArray(backend, integers(DType::i32, start_values));
    positions = DeviceArray(backend, integers(DType::i32, last));
    lengths = DeviceArray(backend, integers(DType::i32, contexts));
    tables = DeviceArray(backend, page_tables);
    batch.tokens = batch.sequences = batch.decodes = sequences;
    batch.query_max = 1;
    batch.positions = positions.view();
    batch.query_starts = starts.view();
    batch.context_lengths = lengths.view();
    batch.page_tables = tables.view();
  }
};

constexpr std::int64_t kWidth = 128;

/// A prompt with many tiles a multiprocessor, and rows that belong to nobody: the same bits each
/// time, whichever CTA takes a tile, and the quantised values of what was written. What attention
/// computes is checked by the cases.
TEST_F(CudaAttention, LongPromptsAreReproducible) {
  constexpr std::int64_t kTokens = 3000;
  constexpr std::int64_t kPadding = 3;
  constexpr std::int64_t kContext = 3200;
  constexpr std::int64_t kPages = kContext / kPageTokens;
  Backend& backend = *backend_;
  constexpr std::int64_t kRows = kTokens + kPadding;
  ASSERT_TRUE(backend
                  .reserve(with_glm47_facts({.tokens_max = kRows,
                                             .sequences_max = 2,
                                             .context_max = kContext,
                                             .logit_rows_max = 1,
                                             .vocabulary = 1}))
                  .ok());
  const auto integers = [&](const Shape& shape, std::int64_t first, std::int64_t step) {
    HostTensor tensor(DType::i32, shape);
    for (std::int64_t i = 0; i < tensor.elements(); ++i)
      tensor.set(i, static_cast<double>(first + i * step));
    return DeviceArray(backend, tensor);
  };
  const DeviceArray positions = integers({kRows}, kContext - kTokens, 1);
  const DeviceArray starts = integers({2}, 0, kTokens);
  const DeviceArray contexts = integers({1}, kContext, 0);
  const DeviceArray tables = integers({1, kPages}, 0, 1);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3})
    for (const auto& [query_heads, kv_heads] : {std::pair{36, 3}, std::pair{32, 2}}) {
      SCOPED_TRACE(std::to_string(query_heads) + " heads, KOHO_OP_SEED=" + std::to_string(seed_));
      Random random(seed_);
      const HeadShape heads{query_heads, kv_heads, kWidth, 64};
      const DeviceArray q(
          backend,
          random_values(random, DType::bf16, {kRows, heads.query_heads, kWidth}, Spread::normal));
      const RandomPages pages(backend, random, dtype, {kPages, kv_heads, kPageTokens, kWidth}, 0.1);
      Batch batch;
      batch.tokens = kRows;
      batch.sequences = 1;
      batch.query_max = kTokens;
      batch.context_max = kContext;
      batch.positions = positions.view();
      batch.query_starts = starts.view();
      batch.context_lengths = contexts.view();
      batch.page_tables = tables.view();
      HostTensor first;
      for (int time = 0; time < 3; ++time) {
        const DeviceActivation out(backend, kRows, heads.query_heads * kWidth,
                                   {.values = true, .per_token = true});
        EXPECT_EQ(
            fault_of("attention", backend.attention(out.view(), q.view(), pages.kv, batch, heads)),
            "");
        EXPECT_EQ(out.check_quantized("out") + out.guard_fault("out"), "");
        const HostTensor got = out.values.get();
        for (std::int64_t i = kTokens * heads.query_heads * kWidth; i < got.elements(); ++i)
          ASSERT_EQ(got.at(i), 0.0);
        if (time == 0)
          first = got;
        else
          EXPECT_EQ(compare_bits("once more", got, first), "");
      }
    }
}

/// Attention of one decoded row a context, packed.
HostTensor decode_rows(Backend& backend,
                       const HostTensor& q,
                       const std::vector<std::int64_t>& contexts,
                       const HostTensor& tables,
                       const KvLayer& kv,
                       const HeadShape& heads) {
  const DecodeBatch arrays(backend, contexts, tables);
  const DeviceArray q_array(backend, q);
  const auto attend = [&](const ActivationNeeds& needs) {
    DeviceActivation out(backend, arrays.batch.sequences, heads.query_heads * kWidth, needs);
    EXPECT_EQ(fault_of("attention",
                       backend.attention(out.view(), q_array.view(), kv, arrays.batch, heads)),
              "");
    EXPECT_EQ(out.guard_fault("out"), "");
    return out;
  };
  const DeviceActivation out = attend({.values = true, .per_token = true, .per_block = true});
  EXPECT_EQ(out.check_quantized("out"), "");
  const DeviceActivation without_values = attend({.per_token = true});
  EXPECT_EQ(compare_bits("without bf16", without_values.quantized.get(), out.quantized.get()) +
                compare_bits("their scales", without_values.scales.get(), out.scales.get()),
            "");
  return out.values.get();
}

/// Decoded rows of contexts around the places where split-KV cuts them, few to very many at a
/// time, so that a work tile is a KV tile, a chunk of a context, several, or a whole one
/// (src/cuda/attention/attention_split_kv.cuh): each row alone has the same bits. What attention
/// computes is checked by the cases.
TEST_F(CudaAttention, ADecodedRowIsBatchInvariantUnderEverySplitKv) {
  constexpr std::int64_t kPages = 90;  // many sequences have the same ones
  struct Contexts {
    std::vector<std::int64_t> edges;
    std::int64_t most;
    std::vector<std::int64_t> kv_heads;
    std::vector<std::int64_t> batches;
  };
  const Contexts all_contexts[] = {
      {{128, 512, 1024, 2048, 2560, 4096, 4608, 6144, 8192, 12288, 20480},
       20500,
       {1, 2},
       {2, 7, 40, 70, 140, 210, 300}},
      {{1, 16, 32, 48, 64, 128, 384, 512, 544, 640, 1024, 1056, 4096, 4608},
       4700,
       {1, 8},
       {64, 256}},
      // Short contexts of about the same length, and some long ones.
      {{512, 544, 600, 640, 9000}, 700, {8}, {64, 256}}};
  constexpr std::int64_t kContextMax = 20500;
  constexpr std::int64_t kSequencesMax = 300;
  Backend& backend = *backend_;
  ASSERT_TRUE(backend
                  .reserve(with_glm47_facts({.tokens_max = kSequencesMax,
                                             .sequences_max = kSequencesMax,
                                             .context_max = kContextMax,
                                             .logit_rows_max = 1,
                                             .vocabulary = 1}))
                  .ok());
  SCOPED_TRACE("KOHO_OP_SEED=" + std::to_string(seed_));
  Random random(seed_);
  const auto check = [&](const Contexts& of, const HeadShape& heads, std::int64_t sequences,
                         const KvLayer& kv) {
    const std::int64_t columns =
        ceil_div(std::max(of.most, *std::ranges::max_element(of.edges) + 1), kPageTokens);
    std::vector<std::int64_t> contexts;
    HostTensor tables(DType::i32, {sequences, columns});
    for (std::int64_t s = 0; s < sequences; ++s) {
      const std::int64_t edge =
          of.edges[static_cast<std::size_t>(random.integer(0, std::ssize(of.edges) - 1))];
      contexts.push_back(random.chance(0.05)  ? 0
                         : random.chance(0.7) ? edge + random.integer(-1, 1)
                                              : random.integer(1, of.most));
      const std::int64_t pages = ceil_div(contexts.back(), kPageTokens);
      for (std::int64_t i = 0; i < columns; ++i)  // a page that does not exist beyond
        tables.set(s * columns + i,
                   i < pages ? static_cast<double>(random.integer(0, kPages - 1)) : 1e9);
    }
    const HostTensor q =
        random_values(random, DType::bf16, {sequences, heads.query_heads, kWidth}, Spread::normal);
    const HostTensor all = decode_rows(backend, q, contexts, tables, kv, heads);
    EXPECT_EQ(compare_bits("once more", decode_rows(backend, q, contexts, tables, kv, heads), all),
              "");
    for (int i = 0; i < 6; ++i) {
      const std::int64_t s = random.integer(0, sequences - 1);
      const std::int64_t context = contexts[static_cast<std::size_t>(s)];
      EXPECT_EQ(
          compare_bits("row " + std::to_string(s) + " of " + std::to_string(context),
                       decode_rows(backend, row_of(q, s), {context}, row_of(tables, s), kv, heads),
                       row_of(all, s)),
          "");
    }
  };
  for (const DType dtype : {DType::bf16, DType::f8_e4m3})
    for (const Contexts& of : all_contexts)
      for (const std::int64_t kv_heads : of.kv_heads) {
        const HeadShape heads{12 * kv_heads, kv_heads, kWidth, 64};
        const RandomPages pages(backend, random, dtype, {kPages, kv_heads, kPageTokens, kWidth},
                                0.1);
        for (const std::int64_t sequences : of.batches) {
          SCOPED_TRACE(std::to_string(sequences) + " sequences, " + std::to_string(kv_heads) +
                       " kv heads");
          check(of, heads, sequences, pages.kv);
        }
      }
}

/// Many steps one after another, each of which stores the newest token of each sequence over the
/// one that the step before stored, and attends to it.
class StoreThenAttend {
 public:
  static constexpr std::int64_t kSteps = 10;
  static constexpr std::int64_t kColumns = 9;  // pages of a sequence
  static constexpr HeadShape kHeads{24, 2, kWidth, 64};

  StoreThenAttend(Backend& backend, Random& random, DType dtype, std::int64_t sequences)
      : backend_(backend),
        contexts_(random_contexts(random, sequences)),
        pages_(backend,
               random,
               dtype,
               {sequences * kColumns, kHeads.kv_heads, kPageTokens, kWidth},
               0.01),
        rows_(backend, contexts_, tables_of(sequences)),
        slots_(backend, integers(DType::i64, slots_of(contexts_))),
        rope_table_(backend,
                    random_values(random,
                                  DType::f32,
                                  {kColumns * kPageTokens, 2, kHeads.rotary / 2},
                                  Spread::normal)),
        q_(backend, DType::bf16, {sequences, kHeads.query_heads, kWidth}) {
    rows_.batch.context_max = kColumns * kPageTokens;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      qkv_.emplace_back(
          backend, random_values(random, DType::bf16,
                                 {sequences, (kHeads.query_heads + 2 * kHeads.kv_heads) * kWidth},
                                 Spread::normal));
      outs_.push_back(
          std::make_unique<DeviceActivation>(backend, sequences, kHeads.query_heads * kWidth,
                                             ActivationNeeds{.values = true, .per_token = true}));
    }
  }

  /// `waits`: between the two operators.
  Status run(std::int64_t step, bool waits) {
    Queries queries;
    queries.values = q_.view();
    Activation in;
    in.values = qkv_[static_cast<std::size_t>(step)].view();
    QkNormRope weights;
    weights.heads = kHeads;
    weights.rope_table = rope_table_.view();
    KOHO_TRY(backend_.qk_norm_rope_store_kv(queries, pages_.kv, in, rows_.positions.view(),
                                            slots_.view(), weights));
    if (waits) KOHO_TRY(backend_.synchronize());
    return backend_.attention(outs_[static_cast<std::size_t>(step)]->view(), q_.view(), pages_.kv,
                              rows_.batch, kHeads);
  }
  HostTensor result(std::int64_t step) const {
    return outs_[static_cast<std::size_t>(step)]->values.get();
  }

 private:
  static std::vector<std::int64_t> random_contexts(Random& random, std::int64_t sequences) {
    constexpr std::int64_t kEdges[] = {1, 64, 65, 127, 128, 129, 200, 512, 513, 576};
    std::vector<std::int64_t> contexts;
    for (std::int64_t s = 0; s < sequences; ++s)
      contexts.push_back(kEdges[random.integer(0, std::size(kEdges) - 1)]);
    return contexts;
  }
  /// Sequence s has the pages s * kColumns and on.
  static HostTensor tables_of(std::int64_t sequences) {
    HostTensor tables(DType::i32, {sequences, kColumns});
    for (std::int64_t i = 0; i < tables.elements(); ++i) tables.set(i, static_cast<double>(i));
    return tables;
  }
  static std::vector<std::int64_t> slots_of(const std::vector<std::int64_t>& contexts) {
    std::vector<std::int64_t> slots;
    for (std::size_t s = 0; s < contexts.size(); ++s)
      slots.push_back(static_cast<std::int64_t>(s) * kColumns * kPageTokens + contexts[s] - 1);
    return slots;
  }

  Backend& backend_;
  std::vector<std::int64_t> contexts_;
  RandomPages pages_;
  DecodeBatch rows_;
  DeviceArray slots_, rope_table_, q_;
  std::vector<DeviceArray> qkv_;
  std::vector<std::unique_ptr<DeviceActivation>> outs_;
};

/// Attention's kernel prefetches pages before the kernel that stores each row's newest token has
/// ended, and sees that token all the same: steps in a row have the bits of steps with a wait
/// between the two kernels.
TEST_F(CudaAttention, ADecodedRowSeesTheTokenStoredByThePreviousKernel) {
  constexpr std::int64_t kSequencesMax = 40;
  Backend& backend = *backend_;
  ASSERT_TRUE(backend
                  .reserve(with_glm47_facts({.tokens_max = kSequencesMax,
                                             .sequences_max = kSequencesMax,
                                             .context_max = StoreThenAttend::kColumns * kPageTokens,
                                             .logit_rows_max = 1,
                                             .vocabulary = 1}))
                  .ok());
  SCOPED_TRACE("KOHO_OP_SEED=" + std::to_string(seed_));
  Random random(seed_);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3})
    for (const std::int64_t sequences : {std::int64_t{1}, std::int64_t{3}, kSequencesMax}) {
      SCOPED_TRACE(std::to_string(sequences) + " sequences");
      StoreThenAttend steps(backend, random, dtype, sequences);
      std::vector<HostTensor> alone;
      for (std::int64_t step = 0; step < StoreThenAttend::kSteps; ++step) {
        EXPECT_EQ(fault_of("alone", steps.run(step, true)), "");
        alone.push_back(steps.result(step));
      }
      Result<std::unique_ptr<CapturedGraph>> graph = backend.capture([&]() -> Status {
        for (std::int64_t step = 0; step < StoreThenAttend::kSteps; ++step)
          KOHO_TRY(steps.run(step, false));
        return {};
      });
      ASSERT_TRUE(graph.ok()) << graph.error().message;
      for (int time = 0; time < 3; ++time) {
        EXPECT_EQ(fault_of("replay", (*graph)->replay()), "");
        for (std::int64_t step = 0; step < StoreThenAttend::kSteps; ++step)
          EXPECT_EQ(compare_bits("step " + std::to_string(step), steps.result(step),
                                 alone[static_cast<std::size_t>(step)]),
                    "");
      }
    }
}

}  // namespace
}  // namespace koho::testing
