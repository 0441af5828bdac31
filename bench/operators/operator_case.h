// SPDX-License-Identifier: Apache-2.0
// The one list of operator cases. A case knows an operator's shapes, makes its operands, launches
// it and names its results. It judges nothing: two drivers do.
//
//   parity (tests/ops/operator_parity.h)    random shapes and difficult values; every result
//                                           against a float64 reference, guard bands and poison
//   `koho bench ops` (bench/operator_bench.h) a model's shapes; results against the CPU backend's
//                                           (bench/operator_check.h), then the time of a call
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "bench/operators/attention_step.h"
#include "bench/operators/operands.h"
#include "ops/backend.h"
#include "sampling/output_record.h"
#include "sampling/sampler.h"

namespace koho::bench {

/// Rows first..first+count-1 of a case's T.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// How far two backends' results may be apart, each within its tolerance of the float64 reference
/// (tests/ops/compare.h), so within both tolerances of the other. Numbers, row by row:
/// |got - expected| <= of_element |expected| + of_largest max|expected row|, and relative L2 <= l2.
struct OutputTolerance {
  bool bits = true;
  double l2 = 0.0;
  double of_element = 0.0;
  double of_largest = 0.0;
  /// Whether what token row `row` chose was a matter of rounding, so that it may differ.
  std::function<bool(std::int64_t row)> excused{};
};

/// bf16 values that `roundings` roundings in a row lead to: each may fall to the other side.
OutputTolerance bf16_tolerance(double l2, int roundings);
/// E4M3 values and scales of values that are known to `error` (relative L2).
OutputTolerance quantized_tolerance(double error);

/// One result of a case.
struct OpOutput {
  std::string name;
  Sides<TensorView> view;  // [T, …], or anything if the operator has no rows
  /// Of quantised values: f32, each for so many neighbouring elements; may be empty.
  Sides<TensorView> scales{};
  OutputTolerance tolerance{};
  /// The values of a result that is changed in place; empty: poison, of which nothing may be left.
  ConstTensorView before{};
  /// A row for the tolerance and for poison: so many elements; 0: those of view.size(0).
  std::int64_t row_elements = 0;
  /// Row t is of token t; else what the reference leaves poisoned is not compared.
  bool by_row = true;
};

struct OperatorRun;

// ---- what a float64 reference reads of guarded operands

/// out = x * weights^T + bias, the weights' rows one after the other.
struct LinearOperands {
  std::shared_ptr<const std::vector<SyntheticLinear>> weights;
  std::shared_ptr<const SyntheticActivation> x;
  bool bf16 = false;  // weights are stored in bf16 by the case's definition
  bool unrounded = false;
  /// Rows that are compared, each group by itself; empty: all rows as one group.
  std::vector<std::vector<std::int64_t>> compared;
};

/// out = norm(x) * weight, of x as it is or after block_output was added to it.
struct NormOperands {
  HostTensor x;             // [T, H]; the residual if there is a block_output
  HostTensor block_output;  // [T, H] or empty
  HostTensor weight;        // [H]
  float eps = 0.0F;
};

/// out = silu(gate) * up.
struct SiluOperands {
  HostTensor gate_up;  // [T, 2F]
};

/// out[i] = table[ids[i]].
struct LookupOperands {
  HostTensor table;  // [V, H]
  HostTensor ids;    // [T] i32
};

struct RouteOperands {
  HostTensor x, weight, bias;
  RouterSettings settings;
  std::int64_t first_compared = 0;  // rows from it on, `step` apart
  std::int64_t step = 1;
};

struct SyntheticMlp {
  SyntheticLinear gate, up, down;

  MlpSource source() const { return {gate.source(), up.source(), down.source()}; }
};

/// Experts first.. of a layer live here, and a shared one or none.
struct ExpertsOperands {
  std::vector<SyntheticMlp> experts;
  std::optional<SyntheticMlp> shared;
  std::int64_t first = 0;
  SyntheticActivation x;
  HostTensor ids, weights;          // [T, A]
  std::int64_t first_compared = 0;  // rows from it on, `step` apart
  std::int64_t step = 1;
};

struct AttentionOperands {
  Step step;
  Cache cache;
  HostTensor q;  // [T, Q, D]
  /// (row, query head) pairs that are compared; empty: all of the step's rows.
  std::vector<std::pair<std::int64_t, std::int64_t>> compared{};
};

/// What qk_norm_rope_store_kv reads.
struct QkOperands {
  HeadShape heads;
  std::int64_t pages = 0;
  DType cache = DType::bf16;
  HostTensor qkv;  // [T, (Q + 2K) * D] bf16: what arrives, or what its quantised values mean
  HostTensor quantized, scales;  // [T, (Q + 2K) * D] e4m3, [T] f32, or empty: values arrive
  HostTensor q_norm, k_norm;     // [D], or empty
  HostTensor table;              // [positions, 2, rotary/2]
  std::vector<std::int64_t> positions{}, slots{};
  /// Of quantised values: the run of what they mean in their place, and what owns its arrays.
  std::function<Result<OperatorRun>()> as_values{};
  std::shared_ptr<Operands> own{};

  std::int64_t tokens() const { return qkv.shape[0]; }
  bool has_quantized() const { return !quantized.empty(); }
  bool has_quantized_pages() const { return cache == DType::f8_e4m3; }
  std::int64_t position(std::int64_t t) const { return positions[static_cast<std::size_t>(t)]; }
  std::int64_t slot(std::int64_t t) const { return slots[static_cast<std::size_t>(t)]; }
  /// Where a head of token t lies in the pages, counted in heads.
  std::int64_t place(std::int64_t t, std::int64_t head) const {
    return (slot(t) / kPageTokens * heads.kv_heads + head) * kPageTokens + slot(t) % kPageTokens;
  }
};

/// The tables of some batch slots.
struct BatchSlotsOperands {
  HostTensor pages;         // [B, pages of a sequence]
  HostTensor last_sampled;  // [B]
  HostTensor outputs;       // [B, words of an OutputRecord]

  static constexpr std::int64_t kTokens = 4;  // ids of random outputs, so that stops are completed
  bool has_ended(std::int64_t batch_slot) const {
    return outputs.as<std::int32_t>()[batch_slot * OutputRecord::kWords + OutputRecord::kEnded] !=
           0;
  }
};

struct GatherInputIdsOperands {
  BatchSlotsOperands batch_slots;
  std::vector<std::int64_t> given, slots;  // [T]
  std::vector<std::int64_t> of_sequences;  // [S] batch slots
  std::vector<std::int64_t> contexts;      // [S]
};

struct CommitSampledOperands {
  BatchSlotsOperands batch_slots;
  std::vector<std::int64_t> of_rows;  // [R] batch slots, or -1
  std::vector<std::int64_t> ids;      // [R]
};

struct SetEntriesOperands {
  HostTensor table;  // [n]
  HostTensor pairs;  // [C, 2]
};

struct CopyPagesOperands {
  std::vector<std::pair<std::string, HostTensor>> parts{};  // by name of the result
  std::int64_t from = 0;
  std::int64_t to = 0;
};

struct ResetCountsOperands {
  std::int64_t slot = 0;
  HostTensor entries, nonzero;  // before
  HostTensor prompt, output;    // ids
};

struct CountSampledOperands {
  HostTensor counts;  // [slots, V] before
  std::vector<SamplingRow> rows;
  std::vector<std::int64_t> ids;  // [R]
};

/// Row r of a step counts in row r of the table, or not at all.
struct SampleOperands {
  HostTensor logits;  // [R, V]
  HostTensor masks;   // [M, words]
  HostTensor counts;  // [R, V]
  std::vector<LogitBias> biases;
  std::vector<SamplingRow> rows;
  std::int64_t tokens = 0;  // that may be sampled
};

/// The bitmap of those counts that are not zero.
HostTensor nonzero_of(const HostTensor& counts);

using ReferenceOperands = std::variant<std::monostate,
                                       LinearOperands,
                                       NormOperands,
                                       SiluOperands,
                                       GatherInputIdsOperands,
                                       CommitSampledOperands,
                                       SetEntriesOperands,
                                       CopyPagesOperands,
                                       ResetCountsOperands,
                                       CountSampledOperands,
                                       std::shared_ptr<const SampleOperands>,
                                       LookupOperands,
                                       RouteOperands,
                                       std::shared_ptr<const QkOperands>,
                                       std::shared_ptr<const AttentionOperands>,
                                       std::shared_ptr<const ExpertsOperands>>;

/// Another call that computes some of the same results: those of one name have the same bits, but
/// for one row of them that is unspecified.
struct SameBits {
  std::string name;
  std::function<Result<OperatorRun>()> build;
  std::int64_t except_row = -1;
};

/// An operator at one shape: what a driver runs, compares and times.
struct OperatorRun {
  std::string op;                             // as in src/ops
  std::map<std::string, std::int64_t> shape;  // "tokens", "context", …
  double bytes = 0.0;                         // each distinct weight or cache byte once
  double flops = 0.0;
  DType math = DType::bf16;  // of its MMAs
  /// Enqueues call number `i` of some rows; of the measured side always all.
  std::function<Status(Side side, RowRange rows, std::int64_t i)> run;
  std::int64_t rows = 0;  // T
  bool whole = false;     // the reference cannot take a part of the rows
  bool counts = false;    // calls add to results, which are put back before each reading
  std::vector<OpOutput> outputs;

  // Of guarded operands:
  ReferenceOperands operands;
  /// The run of one row by itself, whose results have the bits of that row here.
  std::function<Result<OperatorRun>(std::int64_t row)> row_alone;
  /// The same decoded, where it may be a prompt's row here; null where there is no difference.
  std::function<Result<OperatorRun>(std::int64_t row)> row_decoded;
  std::vector<std::int64_t> rows_alone;  // that a parity test runs so
  std::vector<SameBits> same_bits;
  bool once = false;         // too long for a second run
  bool large_batch = false;  // a backend may promise those bits for small batches only
};

/// Number of tokens of each run.
using Rows = std::vector<std::int64_t>;

/// A case is built when its turn comes, so that one case's memory is held at a time.
struct OperatorCase {
  std::string name{};
  /// A model's shape: a run of each number of tokens, some several. Empty: there is none.
  Rows tokens{};
  std::function<Result<std::vector<OperatorRun>>(const BenchBackends& site, const Rows& tokens)>
      build{};
  /// A random shape and operands, from the generator of guarded operands. Null: there is none.
  std::function<Result<OperatorRun>(const std::shared_ptr<Operands>& own)> build_random{};
  /// Gigabytes, or many seconds on a CPU; tests run fewer rounds of it, or none.
  bool is_large = false;
  /// Rounds beyond these would show little for their time.
  std::uint64_t rounds_max = UINT64_MAX;
};

/// Every case of every operator, in the order of the files below.
const std::vector<OperatorCase>& operator_cases();

// ---- the parts of the list: one file an operator or a few that are alike

std::vector<OperatorCase> linear_cases();
std::vector<OperatorCase> expert_cases();
std::vector<OperatorCase> attention_cases();
std::vector<OperatorCase> qk_norm_rope_cases();
std::vector<OperatorCase> norm_cases();
std::vector<OperatorCase> router_cases();
std::vector<OperatorCase> lookup_cases();
std::vector<OperatorCase> batch_slot_cases();
std::vector<OperatorCase> page_and_count_cases();
std::vector<OperatorCase> sampling_cases();

// ---- what they share

std::int64_t most_of(const Rows& tokens);
/// How many copies of `bytes` make `rotated` bytes, 1 to `most`.
std::int64_t copies_of(double bytes, double rotated, std::int64_t most);

inline TensorView cut(const TensorView& view, RowRange rows) {
  return view.empty() ? view : view.slice(0, rows.first, rows.count);
}
inline ConstTensorView cut(const ConstTensorView& view, RowRange rows) {
  return view.empty() ? view : view.slice(0, rows.first, rows.count);
}
inline Activation cut(const Activation& x, RowRange rows) {
  return {cut(x.values, rows), cut(x.quantized, rows), cut(x.scales, rows),
          cut(x.block_quantized, rows), cut(x.block_scales, rows)};
}

/// The first `tokens` rows of both.
inline Sides<TensorView> first(const Sides<TensorView>& views, std::int64_t tokens) {
  return {cut(views.measured, {0, tokens}), cut(views.reference, {0, tokens})};
}

/// The forms of a result [T, H], each a result of its own.
std::vector<OpOutput> activation_outputs(const Sides<Activation>& out,
                                         std::int64_t tokens,
                                         const OutputTolerance& values,
                                         const OutputTolerance& quantized);

// ---- random shapes

/// How many rows, and how wide: very many only of narrow ones, for their time.
struct RowShape {
  std::int64_t tokens = 0;
  std::int64_t width = 0;
};
RowShape random_row_shape(Random& random, bool many);
/// `count` integers in 0..size-1.
HostTensor random_indices(Random& random, std::int64_t count, std::int64_t size);

/// Token counts that kernels trip over: none, one, around a power of two, many.
std::int64_t random_tokens(Random& random);
/// Of a chunk of a prompt: hundreds, and around powers of two.
std::int64_t many_tokens(Random& random);
/// Widths: around vector and block sizes, odd ones, powers of two.
std::int64_t random_width(Random& random);
/// Forms of an output, at least one of them.
ActivationNeeds random_needs(Random& random);
/// The same forms, values included.
ActivationNeeds with_values(ActivationNeeds needs);
WeightQuant random_quant(Random& random);

}  // namespace koho::bench
