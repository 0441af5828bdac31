// SPDX-License-Identifier: Apache-2.0
// A batch goes from validating to in_progress to finalizing to completed. Its answers are appended
// to two files beside its record; a line with an outcome there is not sent again. batch_ends.cpp
// makes files of them.
#include "server/batch_service.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/json_writer.h"
#include "base/log.h"

namespace koho::server {
namespace {

constexpr std::size_t kActiveMax = 8;  // open batches, but for one of each owner
constexpr std::size_t kOutputLineBytesMax = std::size_t{256} << 20U;
constexpr std::chrono::milliseconds kLook{50};
constexpr std::int64_t kTidyUs = 60'000'000;
constexpr std::int64_t kMomentUs = 10'000;  // after which what takes long lets the rest go on
constexpr std::int32_t kPriority = kPriorities - 1;
constexpr const char* kDiskRefuses =
    "the server could not read or write the batch's files, and tries again";  // no paths

}  // namespace

BatchService::BatchService(Core& core, std::unique_ptr<FileStore> files)
    : core_(core), files_(std::move(files)), records_(files_->directory() / "batches") {}

Result<std::unique_ptr<BatchService>> BatchService::open(Core& core,
                                                         const std::filesystem::path& directory,
                                                         std::int64_t bytes_max) {
  KOHO_TRY_ASSIGN(std::unique_ptr<FileStore> files, FileStore::open(directory, bytes_max));
  std::unique_ptr<BatchService> service(new BatchService(core, std::move(files)));
  KOHO_TRY(service->records_.read());
  if (service->records_.all_read()) service->files_->remove_leftovers(service->records_.named());
  for (const BatchRecord& one : service->records_.unfinished())
    service->count_bytes(one.id, one.owner, service->part_bytes(one.id));
  service->thread_ = std::thread([raw = service.get()] { raw->run(); });
  return service;
}

BatchService::~BatchService() {
  stop();
}

void BatchService::stop() {
  stopping_.store(true);
  wakes_->call();
  if (thread_.joinable()) thread_.join();
}

std::filesystem::path BatchService::part_path(std::string_view id, const char* kind) const {
  return files_->directory() / "batches" / fmt::format("{}.{}", id, kind);
}

// ---- what clients ask for

Result<BatchRecord> BatchService::create(const BatchOrder& order) {
  const std::lock_guard lock(readers_);
  if (!files_->find(order.owner, order.input_file_id))
    return make_field_error(ErrorCode::not_found, "input_file_id", "{}: there is no file \"{}\"",
                            order.input_file_id);
  const std::int64_t now_s = Core::unix_seconds();
  BatchRecord record{.id = "batch_" + core_.make_dated_id(now_s),
                     .owner = order.owner,
                     .endpoint = order.endpoint,
                     .input_file_id = order.input_file_id,
                     .completion_window = order.completion_window,
                     .output_expires_s = order.output_expires_s,
                     .metadata = order.metadata,
                     .created_at = now_s};
  record.expires_at = record.created_at + order.window_s;
  record.enter(BatchStatus::validating, record.created_at);
  KOHO_TRY(records_.add(record));
  wakes_->call();
  return record;
}

Result<BatchRecord> BatchService::cancel(std::string_view owner, std::string_view id) {
  Result<BatchRecord> record = records_.cancel(owner, id);
  wakes_->call();
  return record;
}

Status BatchService::remove_file(std::string_view owner, std::string_view id) {
  const std::lock_guard lock(readers_);
  if (const std::string reader = records_.reader_of(owner, id); !reader.empty())
    return make_error(ErrorCode::invalid_argument, "{} reads this file: cancel it first", reader);
  return files_->remove(owner, id);
}

// ---- the service's thread

void BatchService::run() {
  count_parts();
  std::vector<std::size_t> ready;
  while (!stopping_.load()) {
    has_more_ = false;
    const bool busy = work();
    {
      std::unique_lock lock(wakes_->mutex);
      const auto woken = [this] { return wakes_->called || !wakes_->slots.empty(); };
      // Without a batch nothing has to be looked after but what expires.
      wakes_->arrived.wait_for(lock, kLook * (has_more_ ? 0 : busy ? 1 : 20), woken);
      wakes_->called = false;
      ready.clear();
      ready.swap(wakes_->slots);
    }
    for (const std::size_t index : ready) poll_slot(index);
  }
  withdraw(0);
  // There may be room by now for what they still hold.
  for (const auto& batch : active_) {
    flush(*batch);
    records_.save_counts(batch->id);
  }
  active_.clear();
  records_.save_unsaved();
}

/// Whether there is something unfinished.
bool BatchService::work() {
  if (core_.clock().now_us() - tidied_us_ >= kTidyUs) {
    tidied_us_ = core_.clock().now_us();
    const std::lock_guard lock(readers_);
    files_->remove_expired(Core::unix_seconds(), [this](const StoredFile& file) {
      return !records_.reader_of(file.owner, file.id).empty();
    });
    records_.forget_old();
  }
  if (core_.clock().now_us() - saved_us_ >= retry_us()) {
    saved_us_ = core_.clock().now_us();
    records_.save_unsaved();
  }
  const ServedModel* serving = core_.serving();
  if (serving == nullptr || core_.phase() != Phase::ready || serving->engine.statistics().broken) {
    if (core_.phase() == Phase::draining) withdraw(0);
    return serving != nullptr;
  }
  if (slots_.empty())
    slots_.resize(
        static_cast<std::size_t>(std::max(serving->model.limits.scheduler.sequences_max, 1)));
  open_batches();
  withdraw(std::max<std::int64_t>(places(), 0));
  const ActiveBatch::Pauses pauses = next_pause();
  for (std::size_t i = 0; i < active_.size();) {
    if (settle(*active_[i], pauses)) {
      active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  feed();
  return !active_.empty() || !waits_.empty();
}

/// How many requests of batches may run beside those that clients wait for now.
std::int64_t BatchService::places() const {
  const std::int64_t others = core_.counters().requests_live.load() - running_.load();
  return std::ssize(slots_) - others;
}

/// The same with some places kept free for the next of these.
std::int64_t BatchService::room() const {
  const std::int64_t sequences = std::ssize(slots_);
  return places() - (sequences > 1 ? std::max<std::int64_t>(sequences / 8, 1) : 0);
}

void BatchService::open_batches() {
  const std::vector<BatchRecord> unfinished = records_.unfinished();
  has_more_ = !validate(unfinished);
  std::map<std::string_view, std::size_t> active;  // by owner
  for (const BatchRecord& one : unfinished) active.try_emplace(one.owner, 0);
  const std::size_t share = std::max<std::size_t>(kActiveMax / std::max(active.size(), 1UL), 1);
  const auto is_active = [this](const BatchRecord& one) {
    return std::ranges::any_of(active_, [&](const auto& open) { return open->id == one.id; });
  };
  for (const BatchRecord& one : unfinished)
    if (is_active(one)) ++active[one.owner];
  for (const BatchRecord& one : unfinished) {
    if (is_active(one) || waits(one.id)) continue;
    const BatchRecord now = records_.get(one.id);
    const bool ends =
        now.status == BatchStatus::cancelling || Core::unix_seconds() >= now.expires_at;
    const bool full =
        active[one.owner] >= share || (active_.size() >= kActiveMax && active[one.owner] > 0);
    const bool waits = now.status == BatchStatus::validating || (full && !ends);
    if (waits || is_over(now.status)) continue;
    ++active[one.owner];
    if (!now.output_file_id.empty() || !now.error_file_id.empty()) {
      finish_files(now);  // the server ended while it made them
      continue;
    }
    Result<std::unique_ptr<ActiveBatch>> opened = open_batch(now, ends);
    if (opened.ok()) {
      active_.push_back(std::move(*opened));
    } else if (const ErrorCode code = opened.error().code;
               code == ErrorCode::not_found || code == ErrorCode::corrupt_data) {
      fail(one.id, opened.error());
    } else {
      wait(one.id, opened.error());
    }
  }
}

ActiveBatch::Pauses BatchService::next_pause() const {
  return [this, end_us = core_.clock().now_us() + kMomentUs] {
    return core_.clock().now_us() >= end_us || stopping_.load();
  };
}

/// Checks inputs of new batches for a moment, owners in turn. False: more is to be checked.
bool BatchService::validate(const std::vector<BatchRecord>& unfinished) {
  const ActiveBatch::Pauses pauses = next_pause();
  do {
    if (!checker_) {
      const BatchRecord* next = nullptr;
      for (const BatchRecord& one : unfinished)
        if (one.status == BatchStatus::validating &&
            records_.status_of(one.id) == BatchStatus::validating && !waits(one.id) &&
            (next == nullptr || checks_taken_[one.owner] < checks_taken_[next->owner]))
          next = &one;
      if (next == nullptr) return true;
      checks_taken_[next->owner] = ++checks_;
      checked_ = next->id;
      checker_.emplace(files_->content_path(next->input_file_id), next->endpoint);
    }
    // It may be over meanwhile, and forgotten.
    if (records_.status_of(checked_) == BatchStatus::validating) {
      const Result<bool> done = checker_->run(pauses);
      if (done.ok() && !*done) return false;
      if (done.ok() || Core::unix_seconds() >= records_.get(checked_).expires_at) {
        go_on(checked_);
        records_.end_check(checked_, checker_->finish());
      } else {
        wait(checked_, done.error());
      }
    }
    checker_.reset();
  } while (!pauses());
  return false;
}

/// One that ends does so without its input, too.
Result<std::unique_ptr<ActiveBatch>> BatchService::open_batch(const BatchRecord& batch, bool ends) {
  const BatchOutput::Options options{.line_bytes_max = kOutputLineBytesMax};
  KOHO_TRY_ASSIGN(BatchOutput output,
                  BatchOutput::open(part_path(batch.id, "output").string(), options));
  KOHO_TRY_ASSIGN(BatchOutput errors,
                  BatchOutput::open(part_path(batch.id, "errors").string(), options));
  Result<LineReader> input = LineReader::open_file(
      files_->content_path(batch.input_file_id).string(), api::kBatchLineBytesMax);
  if (!input.ok() && !ends) return std::move(input).error();
  auto active = std::make_unique<ActiveBatch>(batch.id, std::move(input), std::move(output),
                                              std::move(errors));
  active->completed = static_cast<std::int64_t>(active->output.lines_found());
  active->failed = static_cast<std::int64_t>(active->errors.lines_found());
  records_.count(active->id, active->completed, active->failed);
  count_bytes(active->id, batch.owner, active->bytes());
  return active;
}

void BatchService::feed() {
  const ActiveBatch::Pauses pauses = next_pause();
  std::size_t idle = 0;  // batches in a row that have nothing to send
  for (std::size_t index = 0; index < slots_.size(); ++index) {
    if (slots_[index].job) continue;
    bool sent = false;
    while (!sent && idle < active_.size()) {
      if (running_.load() >= room()) return;
      ActiveBatch& batch = *active_[turn_++ % active_.size()];
      sent = feed_one(batch, index, pauses);
      idle = sent ? 0 : idle + 1;
    }
    if (!sent) return;
  }
}

bool BatchService::feed_one(ActiveBatch& batch,
                            std::size_t index,
                            const ActiveBatch::Pauses& pauses) {
  if (batch.gives_up || batch.has_unwritten() || waits(batch.id)) return false;
  if (batch.key != nullptr) {
    // The rest is for what the key's clients wait for.
    const std::int64_t at_once = batch.key->settings().requests_at_once;
    if (at_once > 0 && batch.in_flight >= std::max<std::int64_t>(at_once / 2, 1)) return false;
  }
  if (batch.unsent.empty()) prefetch_line(batch, pauses);
  if (batch.unsent.empty() || batch.unsent.front().at_us > core_.clock().now_us()) return false;
  // Not before there is a line: one that has all its answers ends in any case.
  const Status room =
      files_->check_answers(owner_of(batch.key.get()), share_of(core_, batch.key.get()));
  if (!room.ok()) {
    wait(batch.id, room.error());
    return false;
  }
  go_on(batch.id);
  api::BatchLine line = std::move(batch.unsent.front().line);
  batch.unsent.pop_front();
  Slot& slot = slots_[index];
  slot.batch = &batch;
  slot.order = order_++;
  ++batch.in_flight;
  ++running_;
  slot.job.emplace(core_, *core_.serving(), std::move(line),
                   LineJob::Options{.wake = [wakes = wakes_, index] { wakes->add(index); },
                                    .key = batch.key,
                                    .priority = kPriority});
  wakes_->add(index);
  return true;
}

/// Reads a line that is to be sent, if there is one.
void BatchService::prefetch_line(ActiveBatch& batch, const ActiveBatch::Pauses& pauses) {
  api::BatchLine line;
  const Result<ActiveBatch::Next> next = batch.next_line(line, pauses);
  if (!next.ok()) return wait(batch.id, next.error());
  if (*next == ActiveBatch::Next::paused) has_more_ = true;
  if (*next == ActiveBatch::Next::line) batch.unsent.push_back({.line = std::move(line)});
}

void BatchService::poll_slot(std::size_t index) {
  Slot& slot = slots_[index];
  if (!slot.job || !slot.job->poll()) return;
  ActiveBatch& batch = *slot.batch;
  const bool device = slot.job->status() >= 500 && core_.serving()->engine.statistics().broken;
  if (slot.job->retry_after_s() > 0 || device) {
    const std::int64_t at_us =
        core_.clock().now_us() + std::int64_t{1'000'000} * slot.job->retry_after_s();
    batch.unsent.push_back({.line = slot.job->take_line(), .at_us = at_us});
  } else {
    keep_answer(slot);
  }
  release(slot);
}

void BatchService::keep_answer(Slot& slot) {
  ActiveBatch& batch = *slot.batch;
  const bool others_wait = batch.has_unwritten() && waits(batch.id);
  batch.keep(slot.job->output(), slot.job->status() == 200);
  if (!others_wait) flush(batch);
}

/// Writes what the batch has kept. False: it waits.
bool BatchService::flush(ActiveBatch& batch) {
  const bool some = batch.has_unwritten();
  const Status written = batch.flush();
  records_.count(batch.id, batch.completed, batch.failed);
  count_bytes(batch.id, records_.get(batch.id).owner, batch.bytes());
  if (!written.ok()) wait(batch.id, written.error());
  if (written.ok() && some) go_on(batch.id);
  return written.ok();
}

/// Answers under way are bytes of their owner's files.
void BatchService::count_bytes(const std::string& id,
                               const std::string& owner,
                               std::int64_t bytes) {
  files_->hold_answers(owner, bytes - std::exchange(held_[id], bytes));
  if (bytes == 0) held_.erase(id);
}

bool BatchService::waits(const std::string& id) const {
  const auto found = waits_.find(id);
  return found != waits_.end() && found->second > core_.clock().now_us();
}

/// The disk may be full, or its owner's share of it: the batch goes on when there is room.
void BatchService::wait(const std::string& id, const Error& error) {
  const std::int64_t until_us = core_.clock().now_us() + retry_us();
  if (waits_.insert_or_assign(id, until_us).second)
    log::warning("batch {} waits: {}", id, error.message);
  const bool of_share = error.code == ErrorCode::resource_exhausted;
  records_.set_wait_reason(id, of_share ? error.message : std::string(kDiskRefuses));
  ++waits_found_;
}

void BatchService::go_on(const std::string& id) {
  if (waits_.erase(id) > 0) records_.set_wait_reason(id, {});
}

void BatchService::release(Slot& slot) {
  slot.job.reset();
  --slot.batch->in_flight;
  --running_;
  slot.batch = nullptr;
}

/// Takes requests back until `keep` run, the youngest first: they run again later.
void BatchService::withdraw(std::int64_t keep) {
  while (running_.load() > keep) {
    Slot* youngest = nullptr;
    for (Slot& slot : slots_)
      if (slot.job && (youngest == nullptr || slot.order > youngest->order)) youngest = &slot;
    if (youngest == nullptr) return;
    youngest->job->forgive();
    youngest->batch->unsent.push_front({.line = youngest->job->take_line()});
    release(*youngest);
  }
}

/// Its owner ended it, or gave it this time: what its requests took counts, as if clients had left.
void BatchService::withdraw_batch(ActiveBatch& batch) {
  for (Slot& slot : slots_) {
    if (!slot.job || slot.batch != &batch) continue;
    batch.unsent.push_back({.line = slot.job->take_line()});
    release(slot);
  }
}

}  // namespace koho::server
