// SPDX-License-Identifier: Apache-2.0
// How a worker starts: the model, the arrays, a first run of the largest steps and the captured
// decode graphs.
#include <algorithm>
#include <array>
#include <string>

#include "base/arithmetic.h"
#include "base/log.h"
#include "worker/worker.h"

namespace koho {
namespace {

/// The row counts for which decode steps are captured; a step is padded to the next one.
std::vector<std::int64_t> decode_graph_sizes(std::int64_t rows_max) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t rows = 1; rows < rows_max; rows += rows < 2     ? 1
                                                       : rows < 8   ? rows
                                                       : rows < 64  ? 8
                                                       : rows < 128 ? 16
                                                                    : 32)
    sizes.push_back(rows);
  sizes.push_back(rows_max);
  return sizes;
}

constexpr std::int64_t kDecodeGraphRowsMax = 256;

/// Logs what holds the device's memory once everything is allocated.
Status log_memory_use(const Backend& backend) {
  KOHO_TRY_ASSIGN(const MemoryUse use, backend.memory_use());
  constexpr std::int64_t kLoggedBytesMin = 1'000'000;
  std::string parts;
  for (const auto& [purpose, bytes] : use.purposes)
    if (bytes >= kLoggedBytesMin)
      parts += fmt::format(", {} {:.2f}", purpose, static_cast<double>(bytes) / 1e9);
  if (!parts.empty())
    log::info("device memory in GB: {:.2f} held, {:.2f} free{}",
              static_cast<double>(use.held_bytes) / 1e9, static_cast<double>(use.free_bytes) / 1e9,
              parts);
  return {};
}

}  // namespace

Status Worker::start(const ModelConfig& config,
                     const ModelSources& sources,
                     const WorkerSettings& settings) {
  KOHO_TRY_ASSIGN(Glm4Moe model,
                  Glm4Moe::load(config, sources, settings.load, *backend_, *communicator_));
  model_ = std::make_unique<Glm4Moe>(std::move(model));
  limits_ = settings.load.limits;
  limits_.vocabulary = config.vocab_size;
  page_table_width_ = ceil_div(limits_.context_max, kPageTokens);
  mask_rows_max_ = settings.mask_rows_max;
  tokenizer_tokens_ = std::min(settings.tokenizer_tokens, config.vocab_size);
  KOHO_TRY(allocate(settings));
  if (backend_->supports_graphs()) {
    KOHO_TRY(communicator_->meet());
    KOHO_TRY(warm_up());
    KOHO_TRY(capture_decode_graphs());
  }
  KOHO_TRY(log_memory_use(*backend_));
  return {};
}

/// Runs a step of padding alone: the shapes of a real step, without effect.
Status Worker::run_padding(const StepShape& shape, std::int64_t decodes) {
  const std::array<std::int32_t, 1> starts{0};
  StepInput nothing;
  nothing.query_starts = starts;
  KOHO_TRY(upload(nothing, shape, in_flight_[0]));
  Batch batch = batch_of(shape, decodes);
  batch.query_max = shape.tokens - decodes > 0 ? shape.tokens - decodes : 1;
  batch.row_starts = row_starts(shape.tokens, {});
  KOHO_TRY_ASSIGN(const SampledLogits logits, forward(shape, batch));
  if (shape.logit_rows > 0) KOHO_TRY(sample(shape, logits));
  KOHO_TRY(backend_->synchronize());
  return communicator_->check();
}

/// Runs the largest steps once, so that whatever a first step sets up is set up now.
/// (Backend::reserve has loaded kernels and chosen the libraries' algorithms for every size.)
Status Worker::warm_up() {
  // Under data-parallel attention the ranks share a step's tokens.
  const Shard& shard = model_->shard();
  const std::int64_t tokens =
      ceil_div(limits_.tokens_max, shard.dispatches_tokens() ? shard.ranks : 1);
  const std::int64_t rows = std::min(limits_.logit_rows_max, tokens);
  KOHO_TRY(run_padding({tokens, 1, 1}, 0));
  const std::int64_t decodes = std::min(limits_.sequences_max, tokens) - 1;
  return run_padding({tokens, decodes + 1, rows}, decodes);
}

Status Worker::capture_decode_graphs() {
  const std::int64_t rows_max = std::min(
      {limits_.sequences_max, limits_.logit_rows_max, limits_.tokens_max, kDecodeGraphRowsMax});
  for (const std::int64_t rows : decode_graph_sizes(rows_max)) {
    const StepShape shape{rows, rows, rows};
    KOHO_TRY(run_padding(shape, rows));
    KOHO_TRY(communicator_->meet());  // no rank captures while another runs, nor the reverse
    Batch batch = batch_of(shape, rows);
    batch.row_starts = row_starts(rows, {});
    DecodeGraph decode_graph;
    decode_graph.rows = rows;
    KOHO_TRY_ASSIGN(decode_graph.forward, backend_->capture([&]() -> Status {
      KOHO_TRY(forward(shape, batch));
      return {};
    }));
    KOHO_TRY_ASSIGN(decode_graph.sample, backend_->capture([&]() -> Status {
      return sample(shape, model_->logits(rows));
    }));
    decode_graphs_.push_back(std::move(decode_graph));
    KOHO_TRY(communicator_->meet());
  }
  return {};
}

}  // namespace koho
