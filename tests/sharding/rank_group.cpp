// SPDX-License-Identifier: Apache-2.0
// A thread a rank, each with its share of the step.
#include "tests/sharding/rank_group.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "comm/thread_rendezvous.h"
#include "model/config.h"
#include "model/weights.h"
#include "tests/support/on_every_rank.h"
#include "tests/support/test_devices.h"
#include "worker/device.h"
#include "worker/worker.h"

namespace koho::testing {
namespace {

constexpr std::chrono::minutes kPatience{2};

/// Some prompts as one step's arrays, each with a batch slot and pages of its own.
struct StepArrays {
  std::vector<std::int32_t> token_ids, positions, query_starts{0}, context_lengths, batch_slots;
  std::vector<std::int32_t> logit_rows, page_table_updates;
  std::vector<std::int64_t> slots;

  StepArrays(const Worker& worker, std::span<const Prompt* const> prompts) {
    std::int32_t next_page = 0;
    for (const Prompt* prompt : prompts) {
      const auto batch_slot = static_cast<std::int32_t>(batch_slots.size());
      for (std::size_t i = 0; i < prompt->size(); ++i) {
        const auto position = static_cast<std::int32_t>(i);
        if (position % kPageTokens == 0) {
          page_table_updates.push_back(worker.page_table_index(batch_slot, position / kPageTokens));
          page_table_updates.push_back(next_page++);
        }
        token_ids.push_back((*prompt)[i]);
        positions.push_back(position);
        slots.push_back((next_page - 1) * kPageTokens + position % kPageTokens);
        logit_rows.push_back(static_cast<std::int32_t>(logit_rows.size()));
      }
      query_starts.push_back(static_cast<std::int32_t>(token_ids.size()));
      context_lengths.push_back(static_cast<std::int32_t>(prompt->size()));
      batch_slots.push_back(batch_slot);
    }
  }

  StepInput input() const {
    StepInput step;
    step.token_ids = token_ids;
    step.positions = positions;
    step.slots = slots;
    step.query_starts = query_starts;
    step.context_lengths = context_lengths;
    step.batch_slots = batch_slots;
    step.logit_rows = logit_rows;
    step.page_table_updates = page_table_updates;
    return step;
  }
};

/// The failure of the ranks, if any. What another rank's failure did to a rank is no cause.
template <typename T>
Status failure_of(const std::vector<Result<T>>& ranks) {
  for (const Result<T>& rank : ranks)
    if (!rank.ok() && rank.error().code != ErrorCode::unavailable) return rank.error();
  for (const Result<T>& rank : ranks)
    if (!rank.ok()) return rank.error();
  return {};
}

}  // namespace

/// Owners before borrowers.
struct RankGroup::Impl {
  Impl(ModelConfig model_config, Checkpoint files)
      : config(std::move(model_config)), checkpoint(std::move(files)) {}

  /// One step of one rank: its logits, or its error after which it leaves the others.
  Result<std::vector<float>> step(std::size_t rank,
                                  std::span<const Prompt* const> prompts,
                                  std::span<const std::int64_t> rank_tokens) {
    const StepArrays arrays(workers[rank], prompts);
    StepInput input = arrays.input();
    input.rank_tokens = rank_tokens;
    StepOutput output;
    if (Status status = workers[rank].step(input, output); !status.ok()) {
      workers[rank].abort_collectives();
      return std::move(status).error().with_context("rank " + std::to_string(rank));
    }
    std::vector<float> logits(static_cast<std::size_t>(output.logits.elements()));
    if (logits.empty()) return logits;
    KOHO_TRY(
        workers[rank].backend().download(std::as_writable_bytes(std::span(logits)), output.logits));
    return logits;
  }

  /// Loads one rank; all do at once.
  Result<Worker> load(const DeviceOptions& device,
                      WorkerSettings settings,
                      Rendezvous& others,
                      const Interposer& interpose) {
    settings.load.shard.rank = others.rank();
    KOHO_TRY_ASSIGN(std::unique_ptr<Backend> backend,
                    make_backend(device, others.rank(), others.ranks()));
    KOHO_TRY_ASSIGN(std::unique_ptr<Communicator> communicator,
                    make_communicator(device, *backend, others));
    if (interpose) communicator = interpose(std::move(communicator), others.rank());
    return Worker::create(config, weights.sources, settings, std::move(backend),
                          std::move(communicator));
  }

  ModelConfig config;
  Checkpoint checkpoint;
  ResolvedWeights weights;
  std::vector<std::unique_ptr<Rendezvous>> meeting;
  std::vector<Worker> workers;
  bool data_parallel = false;
};

RankGroup::RankGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RankGroup::RankGroup(RankGroup&&) noexcept = default;
RankGroup::~RankGroup() = default;

Result<RankGroup> RankGroup::load(const std::filesystem::path& directory,
                                  const Shard& shard,
                                  std::int64_t tokens_max,
                                  const Interposer& interpose) {
  std::vector<std::string> warnings;
  KOHO_TRY_ASSIGN(ModelConfig config, read_model_config(directory, warnings));
  KOHO_TRY_ASSIGN(Checkpoint checkpoint, Checkpoint::open(directory));
  auto impl = std::make_unique<Impl>(std::move(config), std::move(checkpoint));
  KOHO_TRY_ASSIGN(impl->weights, resolve_weights(impl->config, impl->checkpoint));
  impl->data_parallel = shard.dispatches_tokens();
  DeviceOptions device{.threads = shard.ranks};
  if (names_gpus()) device = gpu_devices(shard.ranks, "");
  KOHO_TRY(check_devices(device, shard.ranks));
  WorkerSettings settings;
  settings.load.shard = shard;
  settings.load.limits = {.tokens_max = tokens_max,
                          .sequences_max = tokens_max,
                          .context_max = tokens_max,
                          .logit_rows_max = tokens_max,
                          .vocabulary = 0};
  settings.load.kv_pages = tokens_max;
  settings.tokenizer_tokens = impl->config.vocab_size;
  impl->meeting = make_thread_rendezvous(shard.ranks, kPatience);
  std::vector<Result<Worker>> loaded;
  for (std::size_t rank = 0; rank < impl->meeting.size(); ++rank)
    loaded.push_back(make_error(ErrorCode::internal, "the rank did not load"));
  on_every_rank(impl->meeting.size(), [&](std::size_t rank) {
    loaded[rank] = impl->load(device, settings, *impl->meeting[rank], interpose);
    if (!loaded[rank].ok()) impl->meeting[rank]->give_up();
  });
  KOHO_TRY(failure_of(loaded));
  for (Result<Worker>& worker : loaded) impl->workers.push_back(std::move(*worker));
  return RankGroup(std::move(impl));
}

Result<std::vector<std::vector<float>>> RankGroup::prefill(std::span<const Prompt> prompts,
                                                           std::span<const std::int64_t> owners) {
  const std::size_t ranks = impl_->workers.size();
  std::vector<std::vector<const Prompt*>> work(ranks);
  for (std::size_t i = 0; i < prompts.size(); ++i)
    for (std::size_t rank = 0; rank < ranks; ++rank)
      if (!impl_->data_parallel || owners[i] == static_cast<std::int64_t>(rank))
        work[rank].push_back(&prompts[i]);

  std::vector<std::int64_t> rank_tokens;
  for (const std::vector<const Prompt*>& share : work) {
    rank_tokens.push_back(0);
    for (const Prompt* prompt : share)
      rank_tokens.back() += static_cast<std::int64_t>(prompt->size());
  }
  std::vector<Result<std::vector<float>>> logits(
      ranks, make_error(ErrorCode::internal, "the rank did not run"));
  on_every_rank(
      ranks, [&](std::size_t rank) { logits[rank] = impl_->step(rank, work[rank], rank_tokens); });
  KOHO_TRY(failure_of(logits));
  // Ranks that share the prompts have whole rows each, in order.
  std::vector<float> together;
  if (!impl_->data_parallel)
    for (const Result<std::vector<float>>& rank : logits)
      together.insert(together.end(), rank->begin(), rank->end());

  std::vector<std::vector<float>> by_prompt;
  std::vector<std::size_t> next(ranks);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::size_t rank = impl_->data_parallel ? static_cast<std::size_t>(owners[i]) : 0;
    const std::vector<float>& from = impl_->data_parallel ? *logits[rank] : together;
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(next[rank]);
    next[rank] += prompts[i].size() * static_cast<std::size_t>(vocabulary());
    by_prompt.emplace_back(begin, from.begin() + static_cast<std::ptrdiff_t>(next[rank]));
  }
  return by_prompt;
}

std::int64_t RankGroup::vocabulary() const {
  return impl_->config.vocab_size;
}

}  // namespace koho::testing
