// SPDX-License-Identifier: Apache-2.0
// attention: random steps that reach each kernel and each split of the context, and the decodes
// and prompts of GLM-4.7 on one GPU and on one of 4 and of 8.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "base/arithmetic.h"
#include "bench/operators/attention_step.h"
#include "bench/operators/operator_case.h"

namespace koho::bench {
namespace {

using Own = std::shared_ptr<Operands>;
using Views = Sides<TensorView>;

/// What attention reads and writes: call i takes cache i of those placed.
struct AttentionArrays {
  HeadShape heads;
  Views q;
  Sides<std::vector<KvLayer>> caches;
  Sides<Batch> batches;
  Views few_starts;  // of one sequence of few rows, which the reference computes of a prompt
  Sides<Activation> out;
};

/// Token rows of a batch whose sequences have `queries` each: whole sequences of one row, or some
/// rows of the only one.
Batch cut(const Batch& batch, RowRange rows, const Sides<TensorView>& starts, Side side) {
  Batch part = batch;
  part.tokens = rows.count;
  part.positions = batch.positions.slice(0, rows.first, rows.count);
  part.query_starts = starts.on(side);
  if (batch.decodes == 0) {
    part.query_max = rows.count;
    return part;
  }
  part.sequences = part.decodes = rows.count;
  part.query_starts = starts.on(side).first(rows.count + 1);
  part.context_lengths = batch.context_lengths.slice(0, rows.first, rows.count);
  part.page_tables = batch.page_tables.slice(0, rows.first, rows.count);
  return part;
}

/// The run of all rows of a step.
OperatorRun make_run(const Own& own, const AttentionArrays& arrays) {
  // Softmax and sums of both within 5e-3 of the reference, then quantised values.
  constexpr double kError = 2 * 5e-3;
  OperatorRun run;
  run.op = arrays.batches.measured.decodes > 0 ? "attention_decode" : "attention_prefill";
  run.rows = arrays.batches.measured.tokens;
  run.outputs = activation_outputs(arrays.out, run.rows, bf16_tolerance(kError, 1),
                                   quantized_tolerance(kError));
  run.run = [own, arrays](Side side, RowRange range, std::int64_t i) {
    const std::vector<KvLayer>& caches = arrays.caches.on(side);
    const Batch& batch = arrays.batches.on(side);
    const Views& starts = arrays.few_starts;
    return own->backend(side).attention(
        cut(arrays.out.on(side), range), cut(arrays.q.on(side), range),
        caches[static_cast<std::size_t>(i) % caches.size()],
        side == Side::measured ? batch : cut(batch, range, starts, side), arrays.heads);
  };
  return run;
}

/// Index arrays of a step, and of `padding` rows and sequences more that belong to nobody.
Result<Sides<Batch>> place_step(Operands& own, const Step& step, std::int64_t padding = 0) {
  std::vector<std::int64_t> position_values;
  std::vector<std::int64_t> start_values{0};
  std::vector<std::int64_t> context_values;
  std::int64_t columns = 1;
  Batch batch;
  for (const Sequence& sequence : step.sequences) {
    for (std::int64_t i = sequence.context - sequence.queries; i < sequence.context; ++i)
      position_values.push_back(i);
    start_values.push_back(static_cast<std::int64_t>(position_values.size()));
    context_values.push_back(sequence.context);
    columns = std::max(columns, static_cast<std::int64_t>(sequence.pages.size()));
    batch.query_max = std::max(batch.query_max, sequence.queries);
  }
  for (std::int64_t i = 0; i < padding; ++i) {
    position_values.push_back(0);
    start_values.push_back(static_cast<std::int64_t>(position_values.size()));
    context_values.push_back(0);
  }
  batch.context_max = step.context_max();
  batch.tokens = static_cast<std::int64_t>(position_values.size());
  batch.sequences = static_cast<std::int64_t>(context_values.size());
  batch.decodes = step.decodes + padding;
  HostTensor table(DType::i32, {batch.sequences, columns});
  for (std::int64_t i = 0; i < table.elements(); ++i)
    table.set(i, 1e9);  // entries past a context are unspecified: a page that does not exist
  for (std::size_t s = 0; s < step.sequences.size(); ++s)
    for (std::size_t i = 0; i < step.sequences[s].pages.size(); ++i)
      table.set(static_cast<std::int64_t>(s) * columns + static_cast<std::int64_t>(i),
                static_cast<double>(step.sequences[s].pages[i]));
  KOHO_TRY_ASSIGN(const Views positions, own.input(integers(DType::i32, position_values)));
  KOHO_TRY_ASSIGN(const Views starts, own.input(integers(DType::i32, start_values)));
  KOHO_TRY_ASSIGN(const Views contexts, own.input(integers(DType::i32, context_values)));
  KOHO_TRY_ASSIGN(const Views tables, own.input(std::move(table)));
  Sides<Batch> batches{batch, batch};
  for (const Side side : {Side::measured, Side::reference}) {
    Batch& one = side == Side::measured ? batches.measured : batches.reference;
    one.positions = positions.on(side);
    one.query_starts = starts.on(side);
    one.context_lengths = contexts.on(side);
    one.page_tables = tables.on(side);
  }
  return batches;
}

// ---- a model's shapes

struct AttentionShape {
  std::int64_t query_heads, kv_heads;
  DType dtype;
  std::int64_t sequences, context, queries;
};

constexpr std::int64_t kWidth = 128;

/// The same keys and values in as many caches as are rotated: random ones for each would take
/// longer than all else.
Status add_caches(Operands& own, const Step& step, std::int64_t copies, AttentionArrays& arrays) {
  const DType dtype = step.quantized ? DType::f8_e4m3 : DType::bf16;
  const Shape shape{step.pages, step.heads.kv_heads, kPageTokens, kWidth};
  const Shape scales{step.pages, step.heads.kv_heads, kPageTokens};
  KvLayer made;
  KOHO_TRY_ASSIGN(made.k, own.host(dtype, shape, own.normals()));
  KOHO_TRY_ASSIGN(made.v, own.host(dtype, shape, own.normals()));
  if (step.quantized) {
    KOHO_TRY_ASSIGN(made.k_scales, own.host(DType::f32, scales, own.about(1.0)));
    KOHO_TRY_ASSIGN(made.v_scales, own.host(DType::f32, scales, own.about(0.02)));
  }
  arrays.caches.reference.push_back(made);
  for (; copies > 0; --copies) {
    KvLayer kv;
    KOHO_TRY_ASSIGN(kv.k, own.copy(made.k));
    KOHO_TRY_ASSIGN(kv.v, own.copy(made.v));
    if (step.quantized) {
      KOHO_TRY_ASSIGN(kv.k_scales, own.copy(made.k_scales));
      KOHO_TRY_ASSIGN(kv.v_scales, own.copy(made.v_scales));
    }
    arrays.caches.measured.push_back(kv);
  }
  return {};
}

Result<std::vector<OperatorRun>> build(const BenchBackends& site, const AttentionShape& shape) {
  const auto own = std::make_shared<Operands>(site);
  const bool decode = shape.queries == 1;
  KOHO_CHECK(decode || shape.sequences == 1);
  Step step;
  step.heads = {shape.query_heads, shape.kv_heads, kWidth, 64};
  step.quantized = shape.dtype == DType::f8_e4m3;
  step.decodes = decode ? shape.sequences : 0;
  step.sequences.assign(static_cast<std::size_t>(shape.sequences), {shape.context, shape.queries});
  place_pages(own->random(), step, 0);
  const std::int64_t element = dtype_bytes(shape.dtype);
  const double layer_bytes =
      2.0 * static_cast<double>(shape.sequences * shape.context * shape.kv_heads *
                                (kWidth * element + (step.quantized ? 4 : 0)));
  const double rotated = std::min(site.rotated_bytes, 2.5e8);  // four times an H200's L2
  AttentionArrays arrays;
  arrays.heads = step.heads;
  KOHO_TRY(add_caches(*own, step, copies_of(layer_bytes, rotated, 200), arrays));
  const std::int64_t tokens = step.tokens();
  KOHO_TRY(own->reserve({.tokens_max = tokens,
                         .sequences_max = shape.sequences,
                         .context_max = shape.context,
                         .logit_rows_max = 1}));
  KOHO_TRY_ASSIGN(arrays.batches, place_step(*own, step));
  if (decode) {
    KOHO_TRY_ASSIGN(arrays.few_starts,
                    own->input(DType::i32, {shape.sequences + 1}, Operands::counting()));
  } else {
    KOHO_TRY_ASSIGN(arrays.few_starts, own->input(integers(DType::i32, {0, kRowsCompared})));
  }
  const std::int64_t width = shape.query_heads * kWidth;
  KOHO_TRY_ASSIGN(arrays.q,
                  own->input(DType::bf16, {tokens, shape.query_heads, kWidth}, own->normals()));
  KOHO_TRY_ASSIGN(arrays.out, own->output_activation(tokens, width, {.per_token = true}));
  OperatorRun run = make_run(own, arrays);
  run.shape = {{"tokens", tokens},           {"sequences", shape.sequences},
               {"context", shape.context},   {"query_heads", shape.query_heads},
               {"kv_heads", shape.kv_heads}, {"kv_bytes", element}};
  run.bytes = layer_bytes + static_cast<double>(tokens * width * 3);
  const double visible =
      static_cast<double>(shape.context) - (static_cast<double>(shape.queries) - 1.0) / 2.0;
  run.flops = 4.0 * visible * static_cast<double>(tokens * width);
  std::vector<OperatorRun> runs;
  runs.push_back(std::move(run));
  return runs;
}

// ---- random shapes

Result<KvLayer> place_cache(Operands& own, const Cache& cache, bool quantized) {
  KvLayer kv;
  KOHO_TRY_ASSIGN(const Views k, own.input(cache.k));
  KOHO_TRY_ASSIGN(const Views v, own.input(cache.v));
  kv.k = k.measured;
  kv.v = v.measured;
  if (!quantized) return kv;
  KOHO_TRY_ASSIGN(const Views k_scales, own.input(cache.k_scales));
  KOHO_TRY_ASSIGN(const Views v_scales, own.input(cache.v_scales));
  kv.k_scales = k_scales.measured;
  kv.v_scales = v_scales.measured;
  return kv;
}

/// All of a step's arrays; rows of q beyond the step's are padding.
Result<AttentionArrays> place(Operands& own,
                              const AttentionOperands& in,
                              const ActivationNeeds& needs) {
  AttentionArrays arrays;
  arrays.heads = in.step.heads;
  const std::int64_t tokens = in.q.shape[0];
  KOHO_TRY_ASSIGN(arrays.q, own.input(in.q));
  KOHO_TRY_ASSIGN(arrays.batches, place_step(own, in.step, tokens - in.step.tokens()));
  KOHO_TRY_ASSIGN(const KvLayer kv, place_cache(own, in.cache, in.step.quantized));
  arrays.caches.measured = {kv};
  KOHO_TRY_ASSIGN(arrays.out, own.output_activation(
                                  tokens, in.step.heads.query_heads * in.step.heads.width, needs));
  return arrays;
}

Result<OperatorRun> run_of(const Own& own,
                           const std::shared_ptr<const AttentionOperands>& in,
                           const ActivationNeeds& needs) {
  const std::int64_t tokens = in->q.shape[0];
  KOHO_TRY(own->reserve({.tokens_max = tokens,
                         .sequences_max = static_cast<std::int64_t>(in->step.sequences.size()) +
                                          tokens - in->step.tokens(),
                         .context_max = in->step.context_max(),
                         .logit_rows_max = 1,
                         .vocabulary = 1}));
  KOHO_TRY_ASSIGN(const AttentionArrays arrays, place(*own, *in, needs));
  OperatorRun run = make_run(own, arrays);
  run.operands = in;
  return run;
}

/// Row `row` of a step alone, its sequence in other pages.
Result<OperatorRun> row_alone(const Own& own,
                              const AttentionOperands& in,
                              std::int64_t row,
                              bool decoded) {
  std::size_t s = 0;
  std::int64_t query = row;
  while (query >= in.step.sequences[s].queries) query -= in.step.sequences[s++].queries;
  const Sequence& sequence = in.step.sequences[s];
  Step step;
  step.heads = in.step.heads;
  step.quantized = in.step.quantized;
  step.decodes = decoded || static_cast<std::int64_t>(s) < in.step.decodes ? 1 : 0;
  step.sequences = {{sequence.context - sequence.queries + query + 1, 1}};
  step.pages = ceil_div(step.sequences[0].context, kPageTokens) + 1;
  for (std::int64_t page = step.pages - 1; page > 0; --page)
    step.sequences[0].pages.push_back(page);
  const AttentionOperands alone{step, moved_cache(in.step, sequence, in.cache, step),
                                row_of(in.q, row)};
  KOHO_TRY_ASSIGN(const AttentionArrays arrays, place(*own, alone, {.values = true}));
  return make_run(own, arrays);
}

using RandomStep = Step (*)(Random& random, bool quantized);

Result<OperatorRun> build_random(const Own& own, RandomStep random_step_of, bool quantized) {
  Random& random = own->random();
  const Step step = random_step_of(random, quantized);
  const Cache cache = random_cache(random, step);
  const HostTensor q =
      random_values(random, DType::bf16, {step.tokens(), step.heads.query_heads, step.heads.width},
                    random.chance(0.8) ? Spread::normal : Spread::outliers);
  const auto in = std::make_shared<const AttentionOperands>(AttentionOperands{step, cache, q});
  const ActivationNeeds needs = with_values(random_needs(random));
  KOHO_TRY_ASSIGN(OperatorRun run, run_of(own, in, needs));
  if (step.decodes > 0 && random.chance(0.5)) {
    // A sequence that has ended has no context, and the others the same bits.
    const std::int64_t ended = random.integer(0, step.decodes - 1);
    run.same_bits = {{"beside an ended sequence",
                      [=]() -> Result<OperatorRun> {
                        KOHO_TRY_ASSIGN(AttentionArrays arrays, place(*own, *in, needs));
                        std::vector<std::int64_t> contexts;
                        for (const Sequence& sequence : in->step.sequences)
                          contexts.push_back(sequence.context);
                        contexts[static_cast<std::size_t>(ended)] = 0;
                        KOHO_TRY_ASSIGN(const Views lengths,
                                        own->input(integers(DType::i32, contexts)));
                        arrays.batches.measured.context_lengths = lengths.measured;
                        return make_run(own, arrays);
                      },
                      ended}};
  }
  run.row_alone = [=](std::int64_t row) { return row_alone(own, *in, row, false); };
  run.row_decoded = [=](std::int64_t row) { return row_alone(own, *in, row, true); };
  run.rows_alone = {random.integer(0, step.tokens() - 1)};
  return run;
}

/// The last token of GLM-4.7's longest context, decoded, or the end of a prompt of that length, of
/// which two rows and heads are compared. So many keys of like weight would hide one that is left
/// out; so q leans to one direction, along which lie the keys of some hundred tokens at both ends
/// and in between: together they weigh about as much as all others.
Result<OperatorRun> build_longest(const Own& own, bool quantized, bool decodes) {
  constexpr std::int64_t kContext = 131072;
  Random& random = own->random();
  Step step;
  step.quantized = quantized;
  step.heads = {2, 1, 128, 64};
  step.decodes = decodes ? 1 : 0;
  const std::int64_t tokens = decodes ? 1 : random.integer(64, 140);
  step.sequences.push_back({kContext, tokens});
  place_pages(random, step, random.integer(0, 4));
  std::vector<double> direction;
  for (std::int64_t i = 0; i < step.heads.width; ++i)
    direction.push_back(random.chance(0.5) ? 1 : -1);
  std::vector<std::int64_t> marked{0, 63, 64, kContext - 2, kContext - 1};
  for (int i = 0; i < 60; ++i) marked.push_back(random.integer(0, kContext - 1));
  for (int i = 0; i < 10; ++i) marked.push_back(random.integer(kContext - 140, kContext - 1));
  const Cache cache = long_cache(random, step, direction, marked);
  HostTensor q(DType::bf16, {tokens, step.heads.query_heads, step.heads.width});
  for (std::int64_t i = 0; i < q.elements(); ++i)  // a score of 8 at the marked tokens
    q.set(i,
          0.5 * random.normal() + 0.7 * direction[static_cast<std::size_t>(i % step.heads.width)]);
  // The last row and one of the others, a head each; of a decoded row both heads.
  const auto in = std::make_shared<const AttentionOperands>(AttentionOperands{
      step, cache, q, {{tokens - 1, 0}, {tokens == 1 ? 0 : random.integer(0, tokens - 2), 1}}});
  KOHO_TRY_ASSIGN(OperatorRun run, run_of(own, in, with_values(random_needs(random))));
  run.once = true;
  return run;
}

/// Padding: token rows and sequences at the end that belong to nobody must come out finite.
Result<OperatorRun> build_padding(const Own& own) {
  Random& random = own->random();
  Step step = random_step(random, false);
  step.sequences.resize(1);
  step.sequences[0].queries = 1;
  step.decodes = 1;
  const HostTensor q = random_values(
      random, DType::bf16, {1 + random.integer(1, 5), step.heads.query_heads, step.heads.width},
      Spread::normal);
  const auto in = std::make_shared<const AttentionOperands>(
      AttentionOperands{step, random_cache(random, step), q});
  return run_of(own, in, {.values = true});
}

}  // namespace

std::vector<OperatorCase> attention_cases() {
  std::vector<OperatorCase> cases;
  const auto random = [&](const std::string& name, RandomStep step, bool is_large) {
    for (const bool quantized : {false, true})
      cases.push_back(
          {.name = name + (quantized ? "_e4m3" : "_bf16"),
           .build_random = [=](const Own& own) { return build_random(own, step, quantized); },
           .is_large = is_large});
  };
  random("attention", random_step, false);
  random("attention_long", random_long_step, true);
  random("attention_decodes", random_decodes_step, true);
  random("attention_prompt", random_prompt_step, true);
  random("attention_full_batch", random_full_batch_step, true);
  for (const bool decodes : {true, false})
    for (const bool quantized : {false, true})
      cases.push_back(
          {.name =
               std::string(decodes ? "attention_decode_of_131072" : "attention_prompt_of_131072") +
               (quantized ? "_e4m3" : "_bf16"),
           .build_random = [=](const Own& own) { return build_longest(own, quantized, decodes); },
           .is_large = true,
           .rounds_max = 1});
  cases.push_back({.name = "attention_padding", .build_random = build_padding});

  const auto attention = [&](const char* name, AttentionShape shape) {
    cases.push_back({std::string("attention_") + name,
                     {shape.sequences * shape.queries},
                     [=](const BenchBackends& site, const Rows&) { return build(site, shape); },
                     nullptr,
                     shape.sequences * shape.context > 100000 ||
                         shape.query_heads * shape.queries * shape.context > 12 * 4096 * 4096});
  };
  attention("decode_1x1k_tp1", {96, 8, DType::bf16, 1, 1024, 1});
  attention("decode_1x8k_tp4", {24, 2, DType::bf16, 1, 8192, 1});
  attention("decode_16x1k_tp1", {96, 8, DType::bf16, 16, 1024, 1});
  attention("decode_64x1k_tp4", {24, 2, DType::bf16, 64, 1024, 1});
  attention("decode_64x1k_tp1", {96, 8, DType::bf16, 64, 1056, 1});
  attention("decode_256x548_tp1", {96, 8, DType::bf16, 256, 548, 1});
  attention("decode_256x548_tp1_e4m3", {96, 8, DType::f8_e4m3, 256, 548, 1});
  attention("decode_64x548_tp1", {96, 8, DType::bf16, 64, 548, 1});
  attention("decode_16x1k_tp8", {12, 1, DType::bf16, 16, 1060, 1});
  attention("decode_64x1k_tp8", {12, 1, DType::bf16, 64, 1060, 1});
  attention("decode_256x1k_tp8", {12, 1, DType::bf16, 256, 1060, 1});
  attention("decode_256x1k_tp4", {24, 2, DType::bf16, 256, 1060, 1});
  attention("decode_64x8k_tp4", {24, 2, DType::bf16, 64, 8192, 1});
  attention("decode_64x8k_tp4_e4m3", {24, 2, DType::f8_e4m3, 64, 8192, 1});
  attention("decode_64x8k_tp8", {12, 1, DType::bf16, 64, 8192, 1});
  attention("decode_64x8k_tp8_e4m3", {12, 1, DType::f8_e4m3, 64, 8192, 1});
  attention("decode_64x8k_tp1", {96, 8, DType::bf16, 64, 8192, 1});
  attention("decode_64x8k_tp1_e4m3", {96, 8, DType::f8_e4m3, 64, 8192, 1});
  attention("decode_1x1k_tp1_e4m3", {96, 8, DType::f8_e4m3, 1, 1024, 1});
  attention("decode_4x1k_tp1", {96, 8, DType::bf16, 4, 1024, 1});
  attention("decode_1x128k_tp4", {24, 2, DType::bf16, 1, 131072, 1});
  attention("prefill_4k_tp4", {24, 2, DType::bf16, 1, 4096, 4096});
  attention("prefill_4k_tp4_e4m3", {24, 2, DType::f8_e4m3, 1, 4096, 4096});
  attention("prefill_4k_tp8", {12, 1, DType::bf16, 1, 4096, 4096});
  attention("prefill_8k_tp1", {96, 8, DType::bf16, 1, 8192, 8192});
  attention("prefill_8k_tp1_e4m3", {96, 8, DType::f8_e4m3, 1, 8192, 8192});
  return cases;
}

}  // namespace koho::bench
