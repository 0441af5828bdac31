// SPDX-License-Identifier: Apache-2.0
// One worker on one backend, fed plans of one sequence.
#include "tests/golden/koho_model.h"

#include <array>
#include <numeric>
#include <string>
#include <utility>

#include "base/arithmetic.h"
#include "checkpoint/checkpoint.h"
#include "comm/one_rank.h"
#include "model/config.h"
#include "model/weights.h"
#include "worker/worker.h"

namespace koho::testing {

/// Owners before borrowers.
struct KohoModel::Impl {
  Impl(ModelConfig model_config, Checkpoint files)
      : config(std::move(model_config)), checkpoint(std::move(files)) {}

  /// Runs tokens ids[begin..] of one sequence whose earlier tokens are in the cache; the logits of
  /// the last `logit_rows` of them, and what is sampled greedily from each if `samples`.
  Status step(std::span<const std::int32_t> ids,
              std::size_t begin,
              std::int64_t logit_rows,
              bool samples);

  ModelConfig config;
  Checkpoint checkpoint;
  ResolvedWeights weights;
  std::unique_ptr<Worker> worker;
  std::vector<std::int32_t> page_table;
  StepOutput output;
};

KohoModel::KohoModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KohoModel::KohoModel(KohoModel&&) noexcept = default;
KohoModel::~KohoModel() = default;

Result<KohoModel> KohoModel::load(const std::filesystem::path& directory,
                                  std::int64_t context_max,
                                  Result<std::unique_ptr<Backend>> backend) {
  if (!backend.ok()) return std::move(backend).error();
  std::vector<std::string> warnings;
  KOHO_TRY_ASSIGN(ModelConfig config, read_model_config(directory, warnings));
  KOHO_TRY_ASSIGN(Checkpoint checkpoint, Checkpoint::open(directory));
  auto impl = std::make_unique<Impl>(std::move(config), std::move(checkpoint));
  KOHO_TRY_ASSIGN(impl->weights, resolve_weights(impl->config, impl->checkpoint));
  const std::int64_t pages = ceil_div(context_max, kPageTokens);
  WorkerSettings settings;
  settings.load.limits = {.tokens_max = context_max,
                          .sequences_max = 1,
                          .context_max = context_max,
                          .logit_rows_max = context_max,
                          .vocabulary = 0};
  settings.load.kv_pages = pages;
  settings.tokenizer_tokens = impl->config.vocab_size;
  KOHO_TRY_ASSIGN(Worker worker,
                  Worker::create(impl->config, impl->weights.sources, settings,
                                 std::move(backend).value(), std::make_unique<OneRank>()));
  impl->worker = std::make_unique<Worker>(std::move(worker));
  // Pages from the last to the first, so that a page's number is not its place.
  impl->page_table.resize(static_cast<std::size_t>(pages));
  std::iota(impl->page_table.rbegin(), impl->page_table.rend(), 0);
  return KohoModel(std::move(impl));
}

Status KohoModel::Impl::step(std::span<const std::int32_t> ids,
                             std::size_t begin,
                             std::int64_t logit_rows,
                             bool samples) {
  const std::span<const std::int32_t> tokens = ids.subspan(begin);
  const auto count = static_cast<std::int32_t>(tokens.size());
  std::vector<std::int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(begin));
  std::vector<std::int64_t> slots;
  for (const std::int32_t position : positions)
    slots.push_back(page_table[static_cast<std::size_t>(position / kPageTokens)] * kPageTokens +
                    position % kPageTokens);
  std::vector<std::int32_t> page_table_updates;
  for (std::size_t i = 0; i < page_table.size(); ++i) {
    page_table_updates.push_back(worker->page_table_index(0, static_cast<std::int64_t>(i)));
    page_table_updates.push_back(page_table[i]);
  }
  const std::array<std::int32_t, 2> query_starts{0, count};
  const std::array<std::int32_t, 1> context_lengths{static_cast<std::int32_t>(ids.size())};
  const std::array<std::int32_t, 1> batch_slots{0};
  std::vector<std::int32_t> rows(static_cast<std::size_t>(logit_rows));
  std::iota(rows.begin(), rows.end(), count - static_cast<std::int32_t>(logit_rows));
  const std::vector<SamplingRow> greedy(samples ? rows.size() : 0);
  const std::vector<std::int32_t> sample_batch_slots(greedy.size());
  return worker->step({.token_ids = tokens,
                       .positions = positions,
                       .slots = slots,
                       .query_starts = query_starts,
                       .context_lengths = context_lengths,
                       .batch_slots = batch_slots,
                       .decodes = count == 1 ? 1 : 0,
                       .logit_rows = rows,
                       .sample_batch_slots = sample_batch_slots,
                       .sampling = greedy,
                       .biases = {},
                       .masks = {},
                       .page_table_updates = page_table_updates,
                       .output_record_updates = {},
                       .page_copies = {}},
                      output);
}

Result<std::vector<float>> KohoModel::prefill(std::span<const std::int32_t> ids) {
  KOHO_TRY(impl_->step(ids, 0, static_cast<std::int64_t>(ids.size()), false));
  std::vector<float> logits(static_cast<std::size_t>(impl_->output.logits.elements()));
  KOHO_TRY(impl_->worker->backend().download(std::as_writable_bytes(std::span<float>(logits)),
                                             impl_->output.logits));
  return logits;
}

Result<std::vector<std::int32_t>> KohoModel::greedy(std::span<const std::int32_t> ids,
                                                    std::int64_t count) {
  std::vector<std::int32_t> sequence(ids.begin(), ids.end());
  std::size_t begin = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    KOHO_TRY(impl_->step(sequence, begin, 1, true));
    begin = sequence.size();
    sequence.push_back(impl_->output.ids[0]);
  }
  return std::vector<std::int32_t>(sequence.begin() + static_cast<std::ptrdiff_t>(ids.size()),
                                   sequence.end());
}

std::int64_t KohoModel::vocabulary() const {
  return impl_->config.vocab_size;
}

}  // namespace koho::testing
