// SPDX-License-Identifier: Apache-2.0
// `koho logits`: writes the logits of every token of one prompt to a NumPy file, for a model or for
// synthetic weights of any config.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "app/command.h"
#include "app/model_flags.h"
#include "app/rank_flags.h"
#include "app/token_id_file.h"
#include "base/arithmetic.h"
#include "comm/thread_rendezvous.h"
#include "engine/rank_results.h"
#include "model/check_cut.h"
#include "model/choose_experts.h"
#include "worker/device.h"
#include "worker/worker.h"

namespace koho::app {
namespace {

struct LogitsOptions {
  ModelFlags selected;
  RankFlags spread;
  std::string ids;
  std::string out;
  std::int64_t chunk = 512;
};

/// A .npy file of float32 [rows, columns], version 1.0 of the format (numpy.lib.format).
class NumpyWriter {
 public:
  static Result<NumpyWriter> create(const std::string& path,
                                    std::int64_t rows,
                                    std::int64_t columns) {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) return make_error(ErrorCode::io_error, "cannot write {}", path);
    NumpyWriter writer(file, path);
    std::string header = fmt::format(
        "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
    constexpr std::size_t kPreamble = 10;  // magic, version, length
    header.resize((header.size() + kPreamble + 1 + 63) / 64 * 64 - kPreamble - 1, ' ');
    header += '\n';
    std::string preamble = "\x93NUMPY";
    preamble += {'\x01', '\x00', static_cast<char>(header.size() & 0xFFU),
                 static_cast<char>(header.size() >> 8U)};
    const std::string start = preamble + header;
    KOHO_TRY(writer.write(std::as_bytes(std::span<const char>(start))));
    return writer;
  }

  Status write(std::span<const std::byte> bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size()) return {};
    return make_error(ErrorCode::io_error, "cannot write {}", path_);
  }

  Status close() {
    if (std::fclose(file_.release()) == 0) return {};
    return make_error(ErrorCode::io_error, "cannot write {}", path_);
  }

 private:
  struct Closer {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  NumpyWriter(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}
  std::unique_ptr<std::FILE, Closer> file_;
  std::string path_;
};

/// What the ranks of a job share: the logits of a chunk, to which each brings its rows.
struct ChunkLogits {
  std::vector<float> values;  // [chunk, V]
  std::int64_t vocabulary = 0;
};

/// Prefills `ids` in chunks and writes every token's logits to `file`, if there is one: of several
/// ranks one writes. A chunk of one token runs as a decode step.
Status write_logits(Worker& worker,
                    std::span<const std::int32_t> ids,
                    std::int64_t chunk_max,
                    Rendezvous& rendezvous,
                    ChunkLogits& chunk,
                    NumpyWriter* file) {
  std::vector<std::int32_t> places;  // pages in order
  for (std::int32_t page = 0; page < ceil_div<std::int64_t>(std::ssize(ids), kPageTokens); ++page)
    places.insert(places.end(), {worker.page_table_index(0, page), page});
  StepOutput output;
  for (std::size_t begin = 0; begin < ids.size(); begin += static_cast<std::size_t>(chunk_max)) {
    const std::size_t count = std::min(ids.size() - begin, static_cast<std::size_t>(chunk_max));
    const auto end = static_cast<std::int32_t>(begin + count);
    std::vector<std::int32_t> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<std::int32_t> positions(count);
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(begin));
    const std::vector<std::int64_t> slots(positions.begin(), positions.end());  // pages in order
    const std::array<std::int32_t, 2> query_starts{0, static_cast<std::int32_t>(count)};
    const std::array<std::int32_t, 1> context{end};
    const std::array<std::int32_t, 1> batch_slots{0};
    const StepInput input{.token_ids = ids.subspan(begin, count),
                          .positions = positions,
                          .slots = slots,
                          .query_starts = query_starts,
                          .context_lengths = context,
                          .batch_slots = batch_slots,
                          .decodes = chunk_max == 1 ? 1 : 0,
                          .logit_rows = rows,
                          .sample_batch_slots = {},
                          .sampling = {},
                          .biases = {},
                          .masks = {},
                          .page_table_updates = places,
                          .output_record_updates = {},
                          .page_copies = {}};
    KOHO_TRY(worker.step(input, output));
    const auto own = std::span(chunk.values)
                         .subspan(static_cast<std::size_t>(output.first_logits * chunk.vocabulary),
                                  static_cast<std::size_t>(output.logits.elements()));
    KOHO_TRY(worker.backend().download(std::as_writable_bytes(own), output.logits));
    KOHO_TRY(rendezvous.all_gather({}, {}));  // every rank's rows are there
    if (file != nullptr)
      KOHO_TRY(file->write(
          std::as_bytes(std::span<const float>(chunk.values))
              .first(count * static_cast<std::size_t>(chunk.vocabulary) * sizeof(float))));
    KOHO_TRY(rendezvous.all_gather({}, {}));  // and written
  }
  return {};
}

/// What all ranks have in common.
struct LogitsJob {
  const SelectedModel& model;
  const DeviceOptions& device;
  WorkerSettings settings;
  std::span<const std::int32_t> ids;
  std::int64_t chunk = 0;
  ChunkLogits& logits;
};

/// Loads one rank and runs the job on it; rank 0 writes.
Status run_rank(const LogitsJob& job, Rendezvous& rendezvous, const std::string& out) {
  WorkerSettings settings = job.settings;
  settings.load.shard.rank = rendezvous.rank();
  KOHO_TRY_ASSIGN(std::unique_ptr<Backend> backend,
                  make_backend(job.device, rendezvous.rank(), rendezvous.ranks()));
  KOHO_TRY_ASSIGN(std::unique_ptr<Communicator> communicator,
                  make_communicator(job.device, *backend, rendezvous));
  KOHO_TRY_ASSIGN(Worker worker, Worker::create(job.model.config, job.model.sources(), settings,
                                                std::move(backend), std::move(communicator)));
  std::optional<NumpyWriter> file;
  if (rendezvous.rank() == 0) {
    KOHO_TRY_ASSIGN(file,
                    NumpyWriter::create(out, std::ssize(job.ids), job.model.config.vocab_size));
  }
  Status status =
      write_logits(worker, job.ids, job.chunk, rendezvous, job.logits, file ? &*file : nullptr);
  if (!status.ok()) worker.abort_collectives();
  KOHO_TRY(std::move(status));
  return file ? file->close() : Status();
}

/// Every rank on a thread of its own.
Status run_ranks(const LogitsJob& job, const std::string& out) {
  constexpr std::chrono::hours kMeetTimeout{1};
  const std::int64_t ranks = job.settings.load.shard.ranks;
  const auto rendezvous = make_thread_rendezvous(ranks, kMeetTimeout);
  std::vector<Status> statuses(rendezvous.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < rendezvous.size(); ++rank)
    threads.emplace_back([&, rank] {
      statuses[rank] = run_rank(job, *rendezvous[rank], out);
      if (!statuses[rank].ok()) rendezvous[rank]->give_up();
    });
  for (std::thread& thread : threads) thread.join();
  return first_failure(statuses);
}

Status run(const LogitsOptions& options) {
  KOHO_TRY_ASSIGN(const std::vector<std::int32_t> ids, read_token_id_file(options.ids));
  if (ids.empty())
    return make_error(ErrorCode::invalid_argument,
                      "{} has no token ids: expected a JSON array of at least one", options.ids);
  KOHO_TRY_ASSIGN(const SelectedModel model, load_selected_model(options.selected));
  const auto tokens = static_cast<std::int64_t>(ids.size());
  if (tokens > model.config.max_position_embeddings)
    return make_error(ErrorCode::invalid_argument,
                      "{} tokens are more than the model's {} positions (max_position_embeddings)",
                      tokens, model.config.max_position_embeddings);
  const std::int64_t chunk = std::min(tokens, options.chunk);
  RuntimeOptions spread;
  spread.device = model.device;
  options.spread.apply(spread);
  const Shard shard{.ranks = spread.ranks,
                    .experts = spread.experts.value_or(
                        choose_experts(model.config, model.sources(), {.ranks = spread.ranks}, 1,
                                       spread.device.kind == DeviceKind::cuda)
                            .layout)};
  KOHO_TRY(check_cut(model.config, model.sources(), shard));
  KOHO_TRY(check_device_list(spread.device, spread.ranks));
  KOHO_TRY(check_devices(spread.device, spread.ranks));
  const WorkerSettings settings{.load = {.shard = shard,
                                         .limits = {.tokens_max = chunk,
                                                    .sequences_max = 1,
                                                    .context_max = tokens,
                                                    .logit_rows_max = chunk,
                                                    .vocabulary = 0},
                                         .kv_pages = ceil_div(tokens, kPageTokens),
                                         .kv_dtype = DType::bf16},
                                .counts_slots = 1,
                                .mask_rows_max = 0,
                                .tokenizer_tokens = model.config.vocab_size};
  ChunkLogits logits{
      .values = std::vector<float>(static_cast<std::size_t>(chunk * model.config.vocab_size)),
      .vocabulary = model.config.vocab_size};
  const LogitsJob job{.model = model,
                      .device = spread.device,
                      .settings = settings,
                      .ids = ids,
                      .chunk = chunk,
                      .logits = logits};
  return run_ranks(job, options.out);
}

}  // namespace

Runner add_logits(CommandLine& command) {
  auto options = std::make_shared<LogitsOptions>();
  add_model_flags(command, options->selected);
  add_cut_flags(command, options->spread);
  command.add_option("--ids", options->ids, "A file with a JSON array of token ids")->required();
  command.add_option("--out", options->out, "The .npy file to write: float32 [tokens, vocabulary]")
      ->required();
  command.add_option("--chunk", options->chunk, "Tokens computed in one step")
      ->check(at_least(1))
      ->capture_default_str();
  command.footer("Example:\n  koho logits --model models/tiny --ids ids.json --out logits.npy");
  return [options] { return run(*options); };
}

}  // namespace koho::app
