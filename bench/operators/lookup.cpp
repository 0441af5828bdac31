// SPDX-License-Identifier: Apache-2.0
// embed and gather_rows: rows that are looked up in a table, or in a step's rows.
#include <algorithm>
#include <memory>

#include "bench/operators/operator_case.h"

namespace koho::bench {
namespace {

using Own = std::shared_ptr<Operands>;
using Views = Sides<TensorView>;

enum class Lookup { embed, gather_rows };

/// The run of the first `tokens` ids, of which `distinct` differ.
OperatorRun make_run(const Own& own,
                     Lookup lookup,
                     std::int64_t tokens,
                     std::int64_t distinct,
                     const Views& table,
                     const Views& ids,
                     const Views& out) {
  const std::int64_t hidden = table.measured.size(1);
  OperatorRun run;
  run.op = lookup == Lookup::embed ? "embed" : "gather_rows";
  run.shape = {{"tokens", tokens}, {"hidden", hidden}, {"rows", table.measured.size(0)}};
  run.bytes = static_cast<double>(2 * hidden * (distinct + tokens) + 4 * tokens);
  run.rows = tokens;
  run.outputs = {{.name = "out", .view = first(out, tokens)}};
  run.run = [=](Side side, RowRange range, std::int64_t) {
    Backend& backend = own->backend(side);
    const TensorView part = cut(out.on(side), range);
    const TensorView chosen = cut(ids.on(side), range);
    return lookup == Lookup::embed ? backend.embed(part, chosen, table.on(side))
                                   : backend.gather_rows(part, table.on(side), chosen);
  };
  return run;
}

/// `rows`: of the table, to choose from.
Result<std::vector<OperatorRun>> build(const BenchBackends& site,
                                       Lookup lookup,
                                       std::int64_t rows,
                                       std::int64_t hidden,
                                       const Rows& token_counts) {
  const auto own = std::make_shared<Operands>(site);
  const std::int64_t most = most_of(token_counts);
  KOHO_TRY_ASSIGN(const Views table, own->input(DType::bf16, {rows, hidden}, own->normals()));
  const HostTensor chosen = random_indices(own->random(), most, rows);
  KOHO_TRY_ASSIGN(const Views ids, own->input(chosen));
  KOHO_TRY_ASSIGN(const Views out, own->output(DType::bf16, {most, hidden}));
  std::vector<OperatorRun> runs;
  for (const std::int64_t tokens : token_counts) {
    const auto* values = chosen.as<std::int32_t>();
    std::vector<std::int32_t> sorted(values, values + tokens);
    std::sort(sorted.begin(), sorted.end());
    const auto distinct = std::unique(sorted.begin(), sorted.end()) - sorted.begin();
    runs.push_back(make_run(own, lookup, tokens, distinct, table, ids, out));
  }
  return runs;
}

Result<OperatorRun> build_random(const Own& own, Lookup lookup, bool many) {
  Random& random = own->random();
  const RowShape shape = random_row_shape(random, many);
  const bool embed = lookup == Lookup::embed;
  const bool none = random.chance(0.1);
  const std::int64_t rows = embed ? random.integer(1, 300) : shape.tokens;
  const std::int64_t tokens = none ? 0 : embed ? shape.tokens : random.integer(1, shape.tokens + 3);
  LookupOperands operands{
      random_values(random, DType::bf16, {rows, shape.width}, random_spread(random, true)),
      random_indices(random, tokens, rows)};
  const std::int64_t gap = !embed && random.chance(0.5) ? random.integer(1, 40) : 0;
  KOHO_TRY_ASSIGN(const Views table, own->input(operands.table, gap));
  KOHO_TRY_ASSIGN(const Views ids, own->input(operands.ids));
  KOHO_TRY_ASSIGN(const Views out, own->output(DType::bf16, {tokens, shape.width}));
  OperatorRun run = make_run(own, lookup, tokens, tokens, table, ids, out);
  run.operands = std::move(operands);
  return run;
}

}  // namespace

std::vector<OperatorCase> lookup_cases() {
  constexpr std::int64_t kHidden = 5120;
  constexpr std::int64_t kVocabulary = 151552;
  constexpr std::int64_t kTokensMax = 8192;
  std::vector<OperatorCase> cases;
  for (const Lookup lookup : {Lookup::embed, Lookup::gather_rows})
    for (const bool many : {false, true})
      cases.push_back(
          {.name = std::string(lookup == Lookup::embed ? "embed" : "gather_rows") +
                   (many ? "_many" : ""),
           .build_random = [=](const Own& own) { return build_random(own, lookup, many); },
           .is_large = many});
  cases.push_back({.name = "embed_tp4",
                   .tokens = {1, 8, 16, 32, 64, 256, 8192},
                   .build = [](const BenchBackends& site, const Rows& chosen) {
                     return build(site, Lookup::embed, kVocabulary / 4, kHidden, chosen);
                   }});
  cases.push_back({.name = "gather_rows_5120",
                   .tokens = {1, 64, 256},
                   .build = [](const BenchBackends& site, const Rows& chosen) {
                     return build(site, Lookup::gather_rows, kTokensMax, kHidden, chosen);
                   }});
  return cases;
}

}  // namespace koho::bench
