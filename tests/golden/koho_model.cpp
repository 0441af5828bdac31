// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/koho_model.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/arithmetic.h"
#include "checkpoint/checkpoint.h"
#include "comm/one_rank.h"
#include "model/config.h"
#include "model/glm4_moe.h"
#include "model/weights.h"

namespace koho::testing {
namespace {

template <typename T>
ConstTensorView view_of(const std::vector<T>& values, DType dtype, Shape shape) {
  return ConstTensorView(reinterpret_cast<const std::byte*>(values.data()), dtype, shape);
}

}  // namespace

/// Owners before borrowers.
struct KohoModel::Parts {
  Parts(ModelConfig model_config, Checkpoint files)
      : config(std::move(model_config)), checkpoint(std::move(files)) {}

  /// Runs tokens ids[begin..] of one sequence whose earlier tokens are in the cache; the logits of
  /// the last `logit_rows` of them.
  Result<std::vector<float>> step(std::span<const std::int32_t> ids,
                                  std::size_t begin,
                                  std::int64_t logit_rows);

  ModelConfig config;
  Checkpoint checkpoint;
  ResolvedWeights weights;
  std::unique_ptr<Backend> backend;
  OneRank communicator;
  std::unique_ptr<Glm4Moe> model;
  std::int64_t pages = 0;
};

KohoModel::KohoModel(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
KohoModel::KohoModel(KohoModel&&) noexcept = default;
KohoModel::~KohoModel() = default;

Result<KohoModel> KohoModel::load(const std::filesystem::path& directory,
                                  std::int64_t context_max,
                                  CpuIsa isa) {
  std::vector<std::string> warnings;
  KOHO_TRY_ASSIGN(ModelConfig config, read_model_config(directory, warnings));
  KOHO_TRY_ASSIGN(Checkpoint checkpoint, Checkpoint::open(directory));
  auto parts = std::make_unique<Parts>(std::move(config), std::move(checkpoint));
  KOHO_TRY_ASSIGN(parts->weights, resolve_weights(parts->config, parts->checkpoint));
  KOHO_TRY_ASSIGN(parts->backend, make_cpu_backend({.threads = 2, .isa = isa}));
  parts->pages = ceil_div(context_max, kPageTokens);
  LoadSettings settings;
  settings.limits = {.tokens_max = context_max,
                     .sequences_max = 1,
                     .context_max = context_max,
                     .logit_rows_max = context_max,
                     .vocabulary = parts->config.vocab_size};
  settings.kv_pages = parts->pages;
  KOHO_TRY_ASSIGN(Glm4Moe model, Glm4Moe::load(parts->config, parts->weights.sources, settings,
                                               *parts->backend, parts->communicator));
  parts->model = std::make_unique<Glm4Moe>(std::move(model));
  return KohoModel(std::move(parts));
}

Result<std::vector<float>> KohoModel::Parts::step(std::span<const std::int32_t> ids,
                                                  std::size_t begin,
                                                  std::int64_t logit_rows) {
  const std::vector<std::int32_t> tokens(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                                         ids.end());
  const auto count = static_cast<std::int64_t>(tokens.size());
  const auto context = static_cast<std::int32_t>(ids.size());
  // Pages from the last to the first, so that a page's number is not its place.
  std::vector<std::int32_t> page_table(static_cast<std::size_t>(pages));
  std::iota(page_table.rbegin(), page_table.rend(), 0);
  std::vector<std::int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(begin));
  std::vector<std::int64_t> slots;
  for (const std::int32_t position : positions)
    slots.push_back(page_table[static_cast<std::size_t>(position / kPageTokens)] * kPageTokens +
                    position % kPageTokens);
  const std::vector<std::int32_t> query_starts{0, static_cast<std::int32_t>(count)};
  const std::vector<std::int32_t> context_lengths{context};
  std::vector<std::int32_t> rows(static_cast<std::size_t>(logit_rows));
  std::iota(rows.begin(), rows.end(), static_cast<std::int32_t>(count - logit_rows));

  Batch batch;
  batch.token_ids = view_of(tokens, DType::i32, {count});
  batch.positions = view_of(positions, DType::i32, {count});
  batch.slots = view_of(slots, DType::i64, {count});
  batch.query_starts = view_of(query_starts, DType::i32, {2});
  batch.context_lengths = view_of(context_lengths, DType::i32, {1});
  batch.page_tables = view_of(page_table, DType::i32, {1, pages});
  batch.logit_rows = view_of(rows, DType::i32, {logit_rows});
  batch.tokens = count;
  batch.sequences = 1;
  batch.decodes = count == 1 ? 1 : 0;
  batch.query_max = count;
  batch.context_max = context;
  KOHO_TRY_ASSIGN(const TensorView logits, model->forward(batch));
  KOHO_TRY(backend->synchronize());
  const float* values = logits.as<float>();
  return std::vector<float>(values, values + logit_rows * config.vocab_size);
}

Result<std::vector<float>> KohoModel::prefill(std::span<const std::int32_t> ids) {
  return parts_->step(ids, 0, static_cast<std::int64_t>(ids.size()));
}

Result<std::vector<std::int32_t>> KohoModel::greedy(std::span<const std::int32_t> ids,
                                                    std::int64_t count) {
  std::vector<std::int32_t> sequence(ids.begin(), ids.end());
  std::size_t begin = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    KOHO_TRY_ASSIGN(const std::vector<float> logits, parts_->step(sequence, begin, 1));
    begin = sequence.size();
    const auto best = std::max_element(logits.begin(), logits.end());
    sequence.push_back(static_cast<std::int32_t>(best - logits.begin()));
  }
  return std::vector<std::int32_t>(sequence.begin() + static_cast<std::ptrdiff_t>(ids.size()),
                                   sequence.end());
}

std::int64_t KohoModel::vocabulary() const {
  return parts_->config.vocab_size;
}

}  // namespace koho::testing
