// SPDX-License-Identifier: Apache-2.0
// The calls of both forms on one engine. A call holds the instance, so free_engine waits for it.
#include "capi/instance.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "capi/engine_table.h"

namespace koho::capi {
namespace {

constexpr std::int64_t kLookUs = 1'000'000;  // waiting is only ever ended by an event or an end

Error no_request() {
  return make_error(ErrorCode::invalid_argument,
                    "this is not a request state of this engine, or it was freed");
}

Error why_ended(std::int64_t id, const Summary& summary) {
  if (summary.ending == Ending::cancelled)
    return make_error(ErrorCode::cancelled, "request {} was cancelled", id);
  Error error = summary.error;
  return std::move(error).with_context("request " + std::to_string(id));
}

}  // namespace

/// Gives a slot or an id back when the request that it was taken for is refused or finds no memory.
template <typename Undo>
class Instance::Unless {
 public:
  explicit Unless(Undo undo) : undo_(std::move(undo)) {}
  Unless(const Unless&) = delete;
  Unless& operator=(const Unless&) = delete;
  ~Unless() {
    if (!done_) undo_();
  }
  void done() { done_ = true; }

 private:
  Undo undo_;
  bool done_ = false;
};

/// An entry that this call alone may use.
class Instance::Use {
 public:
  explicit Use(std::shared_ptr<Entry> entry) : entry_(std::move(entry)) {}
  Use(Use&&) = default;
  Use& operator=(Use&&) = delete;
  ~Use() {
    if (entry_) entry_->in_use.store(false);
  }
  Entry& operator*() const { return *entry_; }
  Entry* operator->() const { return entry_.get(); }

 private:
  std::shared_ptr<Entry> entry_;
};

Result<std::shared_ptr<Instance>> Instance::start(const std::filesystem::path& model,
                                                  const RuntimeOptions& options) {
  const std::int64_t requests = std::int64_t{options.sequences_max} + options.queue_max;
  if (requests > kRequestsMax)
    return make_error(ErrorCode::invalid_argument, "max_batch and max_queue may be {} together",
                      kRequestsMax);
  KOHO_TRY_ASSIGN(std::unique_ptr<Runtime> runtime, Runtime::start(model, options));
  const std::filesystem::path whole = std::filesystem::absolute(model).lexically_normal();
  const std::filesystem::path last = whole.has_filename() ? whole : whole.parent_path();
  return std::shared_ptr<Instance>(new Instance(std::move(runtime), last.filename().string()));
}

Instance::Instance(std::unique_ptr<Runtime> runtime, std::string name)
    : runtime_(std::move(runtime)),
      name_(std::move(name)),
      slots_(static_cast<std::size_t>(runtime_->engine().limits().requests_max)),
      ready_(slots_.size()) {
  free_slots_.reserve(slots_.size());
  for (std::size_t i = slots_.size(); i > 0; --i)
    free_slots_.push_back(static_cast<std::uint32_t>(i - 1));
}

Result<Instance::Call> Instance::enter(std::shared_ptr<Instance> instance) {
  const std::lock_guard lock(instance->mutex_);
  if (instance->closing_) return make_error(ErrorCode::unavailable, "the engine is being freed");
  ++instance->calls_;
  return Call(instance);
}

Instance::Call::~Call() {
  if (!instance_) return;
  {
    const std::lock_guard lock(instance_->mutex_);
    --instance_->calls_;
  }
  instance_->left_.notify_all();
}

void Instance::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  ready_.close();
  runtime_->engine().drain(0);
  {
    const std::lock_guard lock(endpoint_calls_mutex_);
    if (endpoint_calls_) endpoint_calls_->close();
  }
  {
    std::unique_lock lock(mutex_);
    left_.wait(lock, [this] { return calls_ == 0; });
  }
  endpoint_calls_.reset();
  runtime_.reset();
}

EndpointCalls& Instance::endpoint_calls() {
  const std::lock_guard lock(endpoint_calls_mutex_);
  if (!endpoint_calls_) endpoint_calls_ = std::make_unique<EndpointCalls>(*runtime_, name_);
  return *endpoint_calls_;
}

Result<std::uint32_t> Instance::open(std::int64_t id, bool added, NewRequest request) {
  const std::lock_guard lock(mutex_);
  if (free_slots_.empty())
    return make_error(ErrorCode::resource_exhausted,
                      "{} requests exist, the most; free states that have ended", slots_.size());
  const std::uint32_t slot = free_slots_.back();
  auto entry = std::make_shared<Entry>();
  entry->id = id;
  entry->added = added;
  entry->logits = request.logits;
  std::function<void()> on_ready;
  if (added) {
    if (!added_.try_emplace(id, slot).second)
      return make_error(ErrorCode::invalid_argument, "request {} is live already", id);
    on_ready = [this, slot] { ready_.add(slot); };
  }
  Unless opened([&] {
    if (added) added_.erase(id);
  });
  KOHO_TRY_ASSIGN(entry->stream,
                  runtime_->engine().submit(std::move(request.request), std::move(on_ready)));
  // The engine has the request: from here on nothing may fail.
  opened.done();
  free_slots_.pop_back();
  slots_[slot] = {engines().next_generation(), std::move(entry)};
  return slot;
}

void Instance::release_slot(std::uint32_t slot) {
  const std::lock_guard lock(mutex_);
  if (slots_[slot].entry->added) added_.erase(slots_[slot].entry->id);
  slots_[slot].entry.reset();
  free_slots_.push_back(slot);
}

Result<std::uint32_t> Instance::find(std::uintptr_t request) const {
  const std::optional<Handle> named = to_handle(request, HandleKind::request);
  if (!named || named->index >= slots_.size() ||
      named->engine != to_handle(handle_, HandleKind::engine)->engine)
    return no_request();
  const Slot& slot = slots_[named->index];
  if (!slot.entry || slot.entry->added || slot.generation != named->generation) return no_request();
  return named->index;
}

Result<Instance::Use> Instance::use(std::uintptr_t request) {
  const std::lock_guard lock(mutex_);
  KOHO_TRY_ASSIGN(const std::uint32_t slot, find(request));
  const std::shared_ptr<Entry>& entry = slots_[slot].entry;
  if (entry->in_use.exchange(true))
    return make_error(ErrorCode::unavailable, "request {} is in use by another call", entry->id);
  return Use(entry);
}

/// Waits for the entry's next token.
Status Instance::await(Entry& entry) {
  while (true) {
    switch (entry.stream->wait(entry.event, kLookUs)) {
      case OutputStream::Read::event:
        entry.has_event = true;
        return {};
      case OutputStream::Read::nothing:
        break;
      case OutputStream::Read::done:
        entry.ended = true;
        return why_ended(entry.id, entry.stream->summary());
    }
  }
}

void Instance::Entry::write_logits() const {
  if (logits.data == nullptr) return;
  const auto row = delivered % logits.rows * std::ssize(event.logits);
  std::ranges::copy(event.logits, logits.data + row);
}

Step Instance::deliver(Entry& entry) {
  entry.write_logits();
  ++entry.delivered;
  entry.has_event = false;
  entry.ended = entry.event.finish != FinishReason::none;
  return {.token = entry.event.token, .last = entry.ended};
}

Result<std::uintptr_t> Instance::prefill(std::int64_t id, NewRequest request) {
  request.request.on_demand = true;
  KOHO_TRY_ASSIGN(const std::uint32_t slot, open(id, /*added=*/false, std::move(request)));
  Handle handle{.kind = HandleKind::request,
                .engine = to_handle(handle_, HandleKind::engine)->engine,
                .index = slot};
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    handle.generation = slots_[slot].generation;
    entry = slots_[slot].entry;
  }
  // No lock: nobody else knows the handle yet.
  Unless begun([&] { release_slot(slot); });
  KOHO_TRY(await(*entry));
  entry->write_logits();
  begun.done();
  return to_number(handle);
}

Result<Step> Instance::decode(std::uintptr_t request) {
  KOHO_TRY_ASSIGN(const Use entry, use(request));
  if (entry->ended)
    return make_error(ErrorCode::invalid_argument, "request {} has ended", entry->id);
  if (!entry->has_event) {
    runtime_->engine().advance({entry->stream});
    KOHO_TRY(await(*entry));
  }
  return deliver(*entry);
}

Status Instance::decode_batch(std::span<RequestState* const> requests,
                              std::span<std::int64_t> tokens,
                              std::span<std::uint8_t> done) {
  std::vector<RequestState*> sorted(requests.begin(), requests.end());
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end())
    return make_error(ErrorCode::invalid_argument, "a request state stands in the list twice");
  std::vector<Use> entries;
  std::vector<std::shared_ptr<OutputStream>> streams;
  entries.reserve(requests.size());
  streams.reserve(requests.size());
  for (RequestState* request : requests) {
    KOHO_TRY_ASSIGN(Use entry, use(reinterpret_cast<std::uintptr_t>(request)));
    entries.push_back(std::move(entry));
  }
  for (const Use& entry : entries)
    if (!entry->ended && !entry->has_event) streams.push_back(entry->stream);
  if (!streams.empty()) runtime_->engine().advance(std::move(streams));
  Status first;
  for (const Use& entry : entries) {
    if (entry->ended || entry->has_event) continue;
    if (Status status = await(*entry); !status.ok() && first.ok()) first = std::move(status);
  }
  // Takes the tokens last, when nothing can fail any more: on an error they stay for the next call.
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Step step =
        entries[i]->has_event ? deliver(*entries[i]) : Step{.token = -1, .last = true};
    tokens[i] = step.token;
    done[i] = step.last ? 1 : 0;
  }
  return first;
}

Status Instance::free_request(std::uintptr_t request) {
  std::shared_ptr<OutputStream> stream;
  {
    const std::lock_guard lock(mutex_);
    KOHO_TRY_ASSIGN(const std::uint32_t slot, find(request));
    stream = slots_[slot].entry->stream;
    slots_[slot].entry.reset();
    free_slots_.push_back(slot);
  }
  runtime_->engine().cancel(stream);
  runtime_->engine().settle();
  return {};
}

Status Instance::add(std::int64_t id, NewRequest request) {
  KOHO_TRY(open(id, /*added=*/true, std::move(request)));
  return {};
}

Instance::Rest Instance::read(Entry& entry,
                              std::span<TokenEvent> events,
                              std::size_t& count) const {
  if (std::exchange(entry.poll, polls_) != polls_) entry.first_of_poll = entry.delivered;
  const auto tell = [&](const TokenEvent& event) {
    events[count++] = event;
    if (event.token < 0) return;
    entry.write_logits();
    ++entry.delivered;
  };
  while (count < events.size()) {
    if (entry.logits.data != nullptr && entry.delivered - entry.first_of_poll == entry.logits.rows)
      return Rest::next_poll;
    TokenEvent told{.request_id = entry.id,
                    .token = -1,
                    .finish = KOHO_FINISH_NONE,
                    .status = KOHO_OK,
                    .cached_tokens = 0,
                    .logprob = 0.0F};
    const OutputStream::Read read = entry.stream->poll(entry.event);
    if (read == OutputStream::Read::nothing) return Rest::nothing;
    if (read == OutputStream::Read::event) {
      told.token = entry.event.token;
      told.logprob = entry.event.logprob;
      if (entry.event.finish == FinishReason::none) {
        tell(told);
      } else {
        told.finish =
            entry.event.finish == FinishReason::stop ? KOHO_FINISH_STOP : KOHO_FINISH_LENGTH;
        entry.last = told;
      }
      continue;
    }
    const Summary& summary = entry.stream->summary();
    if (summary.ending == Ending::completed) told = entry.last;
    if (summary.ending == Ending::cancelled) told.finish = KOHO_FINISH_CANCELLED;
    if (summary.ending == Ending::failed) {
      told.finish = KOHO_FINISH_ERROR;
      told.status = error_code_info(summary.error.code).c_status;
    }
    told.cached_tokens = static_cast<std::int32_t>(summary.usage.cached_tokens);
    tell(told);
    entry.ended = true;
    return Rest::nothing;
  }
  return Rest::more;
}

std::shared_ptr<Instance::Entry> Instance::added_at(std::uint32_t slot) const {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Entry>& entry = slots_[slot].entry;
  return entry && entry->added ? entry : nullptr;
}

bool Instance::any_added() const {
  const std::lock_guard lock(mutex_);
  return !added_.empty();
}

Result<std::int32_t> Instance::poll(std::span<TokenEvent> events, std::int32_t timeout_ms) {
  if (polled_.exchange(true))
    return make_error(ErrorCode::unavailable, "another thread polls this engine");
  struct Leave {
    std::atomic<bool>& polled;
    ~Leave() { polled.store(false); }
  } const leave{polled_};
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::milliseconds(timeout_ms);
  ++polls_;
  std::vector<std::uint32_t> postponed;
  std::size_t count = 0;
  while (count < events.size()) {
    std::int64_t wait_us = 0;
    if (count == 0 && any_added()) {
      const auto left = std::chrono::duration_cast<std::chrono::microseconds>(until - Clock::now());
      wait_us = timeout_ms < 0 ? -1 : std::max<std::int64_t>(left.count(), 0);
    }
    const std::optional<std::uint32_t> slot = ready_.take(wait_us);
    if (!slot) break;
    const std::shared_ptr<Entry> entry = added_at(*slot);
    if (!entry) continue;
    const Rest rest = read(*entry, events, count);
    if (rest == Rest::more) ready_.add(*slot);
    if (rest == Rest::next_poll) postponed.push_back(*slot);
    if (entry->ended) release_slot(*slot);
  }
  for (const std::uint32_t slot : postponed) ready_.add(slot);
  const std::lock_guard lock(mutex_);
  if (count == 0 && closing_)
    return make_error(ErrorCode::unavailable, "the engine is being freed");
  return static_cast<std::int32_t>(count);
}

Status Instance::cancel(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  bool found = false;
  for (const Slot& slot : slots_) {
    if (!slot.entry || slot.entry->id != id || slot.entry->stream->closed()) continue;
    runtime_->engine().cancel(slot.entry->stream);
    found = true;
  }
  if (found) return {};
  return make_error(ErrorCode::not_found, "no live request has the id {}", id);
}

Result<std::int64_t> Instance::info(std::int32_t which) {
  const ModelConfig& config = runtime_->model().config;
  const RuntimeOptions& options = runtime_->options();
  const RuntimeSizes& sizes = runtime_->sizes();
  if (which >= KOHO_INFO_PAGES_TOTAL && which <= KOHO_INFO_PREEMPTIONS) runtime_->engine().settle();
  const Statistics now = runtime_->engine().statistics();
  const auto counter = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  switch (which) {
    case KOHO_INFO_ABI_VERSION:
      return std::int64_t{KOHO_ABI_VERSION};
    case KOHO_INFO_NUM_LAYERS:
      return config.num_hidden_layers;
    case KOHO_INFO_HIDDEN_SIZE:
      return config.hidden_size;
    case KOHO_INFO_VOCAB_SIZE:
      return config.vocab_size;
    case KOHO_INFO_NUM_EXPERTS:
      return config.n_routed_experts;
    case KOHO_INFO_EXPERTS_PER_TOKEN:
      return config.num_experts_per_tok;
    case KOHO_INFO_NUM_RANKS:
      return options.ranks;
    case KOHO_INFO_MAX_BATCH:
      return std::int64_t{options.sequences_max};
    case KOHO_INFO_MAX_SEQ:
      return std::int64_t{sizes.context_max};
    case KOHO_INFO_KV_BYTES_PER_TOKEN:
      // Under data-parallel attention one rank holds a token, else each a part of it.
      return sizes.kv_bytes_per_token *
             (options.attention == AttentionLayout::data_parallel ? 1 : options.ranks);
    case KOHO_INFO_KV_BYTES:
      return sizes.kv_bytes * options.ranks;
    case KOHO_INFO_PAGE_TOKENS:
      return std::int64_t{kPageTokens};
    case KOHO_INFO_PAGES_TOTAL:
      return std::int64_t{now.pages_total};
    case KOHO_INFO_PAGES_FREE:
      return std::int64_t{now.pages_free};
    case KOHO_INFO_PAGES_CACHED:
      return std::int64_t{now.pages_cached};
    case KOHO_INFO_RUNNING:
      return std::int64_t{now.running};
    case KOHO_INFO_WAITING:
      return std::int64_t{now.waiting};
    case KOHO_INFO_REQUESTS_LIVE:
      return std::int64_t{now.requests_live};
    case KOHO_INFO_STEPS:
      return counter(now.steps);
    case KOHO_INFO_DECODE_STEPS:
      return counter(now.decode_steps);
    case KOHO_INFO_DECODE_ROWS:
      return counter(now.decode_rows);
    case KOHO_INFO_LARGEST_BATCH:
      return std::int64_t{now.decode_rows_max};
    case KOHO_INFO_PROMPT_TOKENS:
      return counter(now.prompt_tokens);
    case KOHO_INFO_CACHED_TOKENS:
      return counter(now.cached_tokens);
    case KOHO_INFO_SAMPLED_TOKENS:
      return counter(now.sampled_tokens);
    case KOHO_INFO_PREEMPTIONS:
      return counter(now.preempted);
    case KOHO_INFO_LOAD_US:
      return static_cast<std::int64_t>(runtime_->load_s() * 1e6);
    default:
      return make_error(ErrorCode::invalid_argument, "no info has the number {}", which);
  }
}

}  // namespace koho::capi
