// SPDX-License-Identifier: Apache-2.0
// One function a rule, numbered as in docs/simulation.md.
#include "invariants.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include <fmt/core.h>

namespace koho::simulation {
namespace {

std::int32_t size_of(const auto& container) {
  return static_cast<std::int32_t>(container.size());
}

}  // namespace

Violation::Violation(int rule, const std::string& text)
    : std::runtime_error(fmt::format("rule {}: {}", rule, text)) {}

Invariants::Invariants(const StepLoop& loop, const FakeExecutor& executor)
    : loop_(loop),
      scheduler_(loop.scheduler()),
      executor_(executor),
      limits_(loop.limits().scheduler),
      prefill_rules_(scheduler_, loop.limits().inter_token_us_max > 0),
      client_rules_(scheduler_),
      truths_(static_cast<std::size_t>(limits_.live_max)),
      uses_(static_cast<std::size_t>(limits_.pages)),
      salts_(static_cast<std::size_t>(limits_.pages)),
      loads_(static_cast<std::size_t>(limits_.partitions)),
      batch_slots_(static_cast<std::size_t>(limits_.sequences_max)),
      to_come_(static_cast<std::size_t>(loop.limits().requests_max)) {}

void Invariants::check_counts() const {
  const PagePool& pool = scheduler_.pool();
  require(pool.free() >= 0 && pool.idle() >= 0 && pool.owned() >= 0, 1,
          "pages free {} idle {} owned {}", pool.free(), pool.idle(), pool.owned());
  const std::int32_t running = size_of(scheduler_.running());
  require(running <= limits_.sequences_max, 11, "{} sequences run", running);
  require(scheduler_.live() <= limits_.live_max, 11, "{} sequences live", scheduler_.live());
  require(running + scheduler_.waiting() + scheduler_.held() == scheduler_.live(), 7,
          "{} run, {} wait, {} are held, {} live", running, scheduler_.waiting(), scheduler_.held(),
          scheduler_.live());
  require(loop_.live_requests() <= loop_.limits().requests_max, 17, "{} requests live",
          loop_.live_requests());
  require(scheduler_.steps_in_flight() <= kStepsInFlightMax, 11, "{} steps in flight",
          scheduler_.steps_in_flight());
  require(!loop_.device_up() || scheduler_.steps_in_flight() == executor_.steps_in_flight(), 24,
          "{} steps in flight, the device has {}", scheduler_.steps_in_flight(),
          executor_.steps_in_flight());
  require(executor_.complaint().empty(), 22, "{}", executor_.complaint());
}

void Invariants::note_before_launch() {
  waited_.assign(scheduler_.sequences().size(), kNoSequence);
  ran_.assign(scheduler_.sequences().size(), kNoSequence);
  for (std::size_t i = 0; i < waited_.size(); ++i) {
    const Sequence& sequence = scheduler_.sequences()[i];
    if (sequence.state == SequenceState::waiting) waited_[i] = sequence.id;
    if (sequence.state == SequenceState::running && !sequence.paused) ran_[i] = sequence.id;
  }
  client_rules_.note_before_launch();
}

void Invariants::check_launch(const StepBatch& batch) {
  check_rows(batch);
  check_shares(batch);
  client_rules_.check(batch);
  check_batch_slots_taken(batch);
  prefill_rules_.check(batch, waited_, ran_);
  check_admissions(batch);
  check_balance(batch);
}

void Invariants::check_shares(const StepBatch& batch) {
  const std::int32_t decodes = batch.decodes - batch.redecoded;
  const std::int32_t whole =
      decodes == 0 ? limits_.step_tokens_max
                   : std::min(limits_.step_tokens_max - decodes, limits_.mixed_prefill_tokens_max);
  const std::int32_t share = (whole + limits_.partitions - 1) / limits_.partitions;
  std::ranges::fill(loads_, 0);
  for (std::size_t i = static_cast<std::size_t>(batch.decodes); i < batch.rows.size(); ++i) {
    const StepRow& row = batch.rows[i];
    std::int32_t& prefill =
        loads_[static_cast<std::size_t>(scheduler_.find(row.sequence)->partition)];
    prefill += row.count;
    require(prefill <= share, 21, "{} prefill tokens in a partition whose share is {}", prefill,
            share);
  }
}

void Invariants::check_balance(const StepBatch& batch) {
  // Sequences that left in this step may have weighed when others were placed; output that is
  // decoded again comes before prompts that were placed earlier.
  if (limits_.partitions == 1 || !batch.preempted.empty() || batch.redecoded > 0) return;
  std::ranges::fill(loads_, 0);
  const auto load_of = [this](const Sequence& sequence) -> std::int32_t& {
    return loads_[static_cast<std::size_t>(sequence.partition)];
  };
  for (const StepRow& row : batch.rows) {
    if (!row.admitted) continue;
    const Sequence& sequence = *scheduler_.find(row.sequence);
    load_of(sequence) -= size_of(sequence.pages);
  }
  for (const std::int32_t index : scheduler_.running()) {
    const Sequence& sequence = scheduler_.sequences()[static_cast<std::size_t>(index)];
    load_of(sequence) += size_of(sequence.pages);
  }
  for (const StepRow& row : batch.rows) {
    if (!row.admitted) continue;
    const Sequence& sequence = *scheduler_.find(row.sequence);
    const std::int32_t found = row.start / limits_.tokens_per_page;
    const std::int32_t own = load_of(sequence) - found;
    for (std::int32_t p = 0; p < limits_.partitions && sequence.fork_of == kNoSequence; ++p) {
      // Its pages, and one for each that might run there.
      if (scheduler_.pool().available(p) < size_of(sequence.pages) + size_of(scheduler_.running()))
        continue;
      require(own <= loads_[static_cast<std::size_t>(p)], 29,
              "admitted where {} pages are in use and {} were found, {} are in use elsewhere",
              own + found, found, loads_[static_cast<std::size_t>(p)]);
    }
    load_of(sequence) += size_of(sequence.pages);
  }
}

bool Invariants::is_decoded(const Sequence& sequence, std::int32_t token) const {
  return limits_.redecodes_output && token >= sequence.prompt_length;
}

/// Output tokens are decodes whenever they are computed, prompts never.
void Invariants::check_kind(const StepBatch& batch, std::size_t index) const {
  if (!limits_.redecodes_output) return;
  const StepRow& row = batch.rows[index];
  const Sequence& sequence = *scheduler_.find(row.sequence);
  const bool decode = std::cmp_less(index, batch.decodes);
  require(decode == is_decoded(sequence, row.start) &&
              decode == is_decoded(sequence, row.start + row.count - 1),
          37, "tokens {}+{} of a prompt of {} are {}", row.start, row.count, sequence.prompt_length,
          decode ? "decoded" : "prefilled");
}

void Invariants::check_rows(const StepBatch& batch) {
  std::ranges::fill(batch_slots_, std::int8_t{0});
  std::int32_t tokens = 0;
  std::int32_t samples = 0;
  for (std::size_t index = 0; index < batch.rows.size(); ++index) {
    const StepRow& row = batch.rows[index];
    const Sequence* sequence = scheduler_.find(row.sequence);
    require(sequence != nullptr && sequence->state == SequenceState::running, 10,
            "a row of a sequence that does not run");
    check_kind(batch, index);
    // Output that is computed again is in a step token by token.
    const bool more =
        index + 1 < batch.rows.size() && batch.rows[index + 1].sequence == row.sequence;
    require(
        !more || (is_decoded(*sequence, row.start) && batch.rows[index + 1].start == row.start + 1),
        10, "batch slot {} is in a step twice", row.batch_slot);
    require(more || ++batch_slots_[static_cast<std::size_t>(row.batch_slot)] == 1, 10,
            "batch slot {} is in a step twice", row.batch_slot);
    require(row.batch_slot == sequence->batch_slot, 10, "batch slot {} instead of {}",
            row.batch_slot, sequence->batch_slot);
    require((more || row.start + row.count == sequence->planned) && row.count > 0, 6,
            "a row of tokens {}+{} with {} planned", row.start, row.count, sequence->planned);
    const std::int32_t length = sequence->length() - (row.samples ? 1 : 0);
    require(row.samples == (row.start + row.count == length && length < sequence->length_max), 6,
            "a row up to {} of {} tokens samples: {}", row.start + row.count, length, row.samples);
    for (std::int32_t i = row.start / limits_.tokens_per_page;
         i <= (row.start + row.count - 1) / limits_.tokens_per_page; ++i) {
      require(i < size_of(sequence->pages), 5, "tokens beyond the page table");
      const PageHandle page = sequence->pages[static_cast<std::size_t>(i)];
      require(scheduler_.pool().current(page), 4, "a write to page {} by a stale handle",
              page.page);
      require(scheduler_.pool().ref_count(page.page) == 1, 4, "a write to page {} of {} owners",
              page.page, scheduler_.pool().ref_count(page.page));
      salts_[static_cast<std::size_t>(page.page)] = sequence->salt;
    }
    tokens += row.count;
    samples += row.samples ? 1 : 0;
  }
  require(tokens == batch.tokens && samples == batch.samples, 11, "a step's totals are wrong");
  require(tokens <= limits_.step_tokens_max, 11, "{} tokens in a step", tokens);
  require(size_of(batch.rows) <= limits_.sequences_max, 11, "{} rows", batch.rows.size());
  const std::int32_t prefill = batch.prefill_cost;
  const std::int32_t decodes = batch.decodes - batch.redecoded;
  require(prefill >= tokens - decodes, 11, "{} tokens of prefill cost {}", tokens - decodes,
          prefill);
  require(decodes == 0 || prefill <= limits_.mixed_prefill_tokens_max, 21,
          "prefill of {} beside {} decodes", prefill, decodes);
  require(limits_.prefill_tokens_max == 0 || prefill <= limits_.prefill_tokens_max, 21,
          "prefill above its budget");
}

std::int32_t Invariants::pages_with_reserves(const Sequence& sequence) const {
  return limits_.pages_of(sequence.known()) + limits_.pages / 32 +
         std::min(limits_.pages / 8, size_of(scheduler_.running()));
}

/// The last batch slot goes to no client that has more than one that waits and fits.
void Invariants::check_batch_slots_taken(const StepBatch& batch) const {
  if (limits_.turn_percent == 100 || size_of(scheduler_.running()) < limits_.sequences_max) return;
  if (limits_.partitions > 1) return;
  // Rows are in the order of admission, but those that decode again come before all others.
  std::vector<const Sequence*> last;
  const auto decodes_end = batch.rows.begin() + batch.decodes;
  for (const auto& rows :
       {std::span(batch.rows.begin(), decodes_end), std::span(decodes_end, batch.rows.end())}) {
    const auto row = std::ranges::find_if(rows.rbegin(), rows.rend(), &StepRow::admitted);
    if (row != rows.rend()) last.push_back(scheduler_.find(row->sequence));
  }
  if (last.empty()) return;
  std::map<std::uint64_t, std::int32_t> batch_slots;
  for (const std::int32_t index : scheduler_.running())
    ++batch_slots[scheduler_.sequences()[static_cast<std::size_t>(index)].client];
  for (const SequenceId id : waited_) {
    const Sequence* other = scheduler_.find(id);
    if (other == nullptr || other->state != SequenceState::waiting) continue;
    if (scheduler_.pool().available(0) < pages_with_reserves(*other)) continue;
    // The first of its client, which need not be this one, may lack pages.
    const bool is_only = std::ranges::none_of(waited_, [&](SequenceId more) {
      const Sequence* sequence = scheduler_.find(more);
      return sequence != nullptr && sequence != other && sequence->client == other->client;
    });
    const bool goes_before_all = std::ranges::all_of(last, [&](const Sequence* admitted) {
      return other->priority <= admitted->priority &&
             batch_slots[other->client] + 1 < batch_slots[admitted->client];
    });
    require(!is_only || !goes_before_all, 36,
            "arrival {} took the last batch slot before arrival {}, whose client has {} of {}",
            last.back()->arrival, other->arrival, batch_slots[other->client],
            batch_slots[last.back()->client]);
  }
}

void Invariants::check_admissions(const StepBatch& batch) {
  for (const StepRow& row : batch.rows) {
    if (!row.admitted) continue;
    const Sequence& sequence = *scheduler_.find(row.sequence);
    check_admitted(sequence, row);
  }
}

void Invariants::check_admitted(const Sequence& sequence, const StepRow& row) {
  // What a resumed sequence is computed from again is what was computed before.
  Truth& truth = truth_of(sequence);
  std::uint64_t content = kRootContent;
  for (std::int32_t i = 0; i < sequence.known(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    content = slot_content(content, sequence.tokens[at], is_decoded(sequence, i));
    require(truth.contents[at] == content, 14, "token {} changed while the sequence waited", i);
  }
  require(row.start < sequence.known(), 16, "the whole prompt was found in the cache");
  for (std::int32_t i = 0; i < row.start / limits_.tokens_per_page; ++i) {
    const PageId page = sequence.pages[static_cast<std::size_t>(i)].page;
    require(salts_[static_cast<std::size_t>(page)] == sequence.salt, 16,
            "page {} of another tenant", page);
  }
  truth.overdue_step = -1;
  client_rules_.note_admitted(sequence, row.start);
}

void Invariants::sweep() {
  std::ranges::fill(uses_, PageUse{});
  std::ranges::fill(batch_slots_, std::int8_t{0});
  std::ranges::fill(to_come_, std::size_t{0});
  std::int32_t live = 0;
  for (const Sequence& sequence : scheduler_.sequences()) {
    if (sequence.state == SequenceState::unused) continue;
    ++live;
    check_sequence(sequence);
  }
  require(live == scheduler_.live(), 7, "{} sequences live, counted {}", scheduler_.live(), live);
  std::uint64_t last_arrival = 0;
  for (const std::int32_t index : scheduler_.running()) {
    const Sequence& sequence = scheduler_.sequences()[static_cast<std::size_t>(index)];
    require(sequence.state == SequenceState::running, 7, "a sequence runs that does not");
    require(sequence.arrival > last_arrival, 7, "running sequences are not in order");
    last_arrival = sequence.arrival;
    check_running(sequence);
  }
  check_pages();
}

void Invariants::check_sequence(const Sequence& sequence) {
  require(sequence.known() >= sequence.prompt_length && sequence.length() <= sequence.length_max, 6,
          "{} tokens known and {} in flight of {}", sequence.known(), sequence.in_flight_samples,
          sequence.length_max);
  std::int32_t rows_max = scheduler_.steps_in_flight();
  if (limits_.redecodes_output && sequence.in_flight_rows > rows_max) {
    rows_max = 0;
    for (std::int32_t i = 0; i < scheduler_.steps_in_flight(); ++i)
      rows_max += static_cast<std::int32_t>(
          std::ranges::count(scheduler_.in_flight(i).rows, sequence.id, &StepRow::sequence));
  }
  require(
      sequence.in_flight_samples <= sequence.in_flight_rows && sequence.in_flight_rows <= rows_max,
      24, "{} rows in flight in {} steps", sequence.in_flight_rows, scheduler_.steps_in_flight());
  const OutputStream& stream = loop_.stream_of(sequence);
  std::size_t& to_come = to_come_[static_cast<std::size_t>(stream.request_index)];
  to_come += static_cast<std::size_t>(sequence.in_flight_samples);
  require(stream.size() + to_come <= stream.capacity(), 17,
          "{} events wait and {} are in flight, the stream holds {}", stream.size(), to_come,
          stream.capacity());
  if (sequence.state == SequenceState::running) return;
  require(sequence.pages.empty() && sequence.batch_slot == -1 && sequence.planned == 0, 7,
          "a sequence that does not run holds pages or a batch slot");
  const bool held = sequence.paused || sequence.awaits_parent;
  require((sequence.state == SequenceState::held) == held, 7, "held without a reason, or not");
  if (sequence.state == SequenceState::waiting) check_waiting_time(sequence);
}

void Invariants::check_waiting_time(const Sequence& sequence) {
  // Once nobody can overtake it any more, it waits for those before it only. Their work, several
  // times over for preemptions, bounds the wait.
  const std::int64_t now = scheduler_.steps_planned();
  const std::int64_t settled =
      sequence.submitted_step + std::int64_t{kPriorities} * limits_.aging_steps;
  if (now <= settled) return;
  Truth& truth = truth_of(sequence);
  if (truth.overdue_step < 0) {
    std::int64_t work = 0;
    for (const Sequence& other : scheduler_.sequences()) work += other.length_max;
    // Of each step's prefill it has its percentage, a token in so many steps at least.
    const std::int64_t steps = 4 * work * 100 / limits_.turn_percent;
    truth.overdue_step = now + 100 + limits_.aging_steps + steps;
  }
  require(now <= truth.overdue_step, 13, "arrival {} starves: {} steps since submission",
          sequence.arrival, now - sequence.submitted_step);
}

void Invariants::check_running(const Sequence& sequence) {
  require(++batch_slots_[static_cast<std::size_t>(sequence.batch_slot)] == 1, 7,
          "batch slot {} is taken twice", sequence.batch_slot);
  require(sequence.computed <= sequence.planned && sequence.planned <= sequence.length(), 6,
          "{} computed, {} planned, {} tokens", sequence.computed, sequence.planned,
          sequence.length());
  const std::int32_t pages = limits_.pages_of(std::max(sequence.planned, sequence.prompt_length));
  require(size_of(sequence.pages) >= pages &&
              size_of(sequence.pages) <= std::max(pages, limits_.pages_of(sequence.known())),
          5, "{} pages for {} tokens planned", sequence.pages.size(), sequence.planned);
  const Truth& truth = truth_of(sequence);
  for (std::int32_t i = 0; i < size_of(sequence.pages); ++i) {
    const PageHandle handle = sequence.pages[static_cast<std::size_t>(i)];
    PageUse& use = uses_[static_cast<std::size_t>(handle.page)];
    require(scheduler_.pool().current(handle), 4, "page {} by a stale handle", handle.page);
    require(handle.page / limits_.pages_per_partition() == sequence.partition, 28,
            "page {} of a sequence of partition {}", handle.page, sequence.partition);
    require(use.owners == 0 || use.index == i, 3, "page {} is entry {} and {}", handle.page, i,
            use.index);
    const std::int32_t end = (i + 1) * limits_.tokens_per_page;
    if (++use.owners > 1)
      require(end <= sequence.planned, 3, "page {} is shared and not full", handle.page);
    use.index = i;
    require(scheduler_.pool().cached(handle.page) == (i < sequence.registered), 3,
            "page {} is cached and not registered, or the other way round", handle.page);
    // Steps run as they are launched, so the contents are those of the planned tokens; what the
    // host does not know yet it cannot check.
    const std::int32_t last = std::min({end, sequence.planned, sequence.known()});
    if (last <= i * limits_.tokens_per_page || !loop_.device_up()) continue;
    require(executor_.content(handle.page, (last - 1) % limits_.tokens_per_page) ==
                truth.contents[static_cast<std::size_t>(last) - 1],
            16, "page {} does not hold what tokens ..{} make", handle.page, last);
  }
}

void Invariants::check_pages() const {
  const PagePool& pool = scheduler_.pool();
  const PrefixCache& cache = scheduler_.prefix_cache();
  std::int32_t owned = 0;
  std::int32_t cached = 0;
  std::int32_t idle = 0;
  for (PageId page = 0; page < pool.total(); ++page) {
    const PageUse& use = uses_[static_cast<std::size_t>(page)];
    require(pool.ref_count(page) == use.owners, 2, "page {} has {} owners, {} tables hold it", page,
            pool.ref_count(page), use.owners);
    owned += use.owners > 0 ? 1 : 0;
    if (!pool.cached(page)) continue;
    ++cached;
    idle += use.owners == 0 ? 1 : 0;
    const PageId parent = cache.parent(page);
    require(parent == kNoPage || pool.cached(parent), 23, "page {} is cached without its parent",
            page);
    require(parent == kNoPage || use.owners == 0 || pool.ref_count(parent) > 0, 23,
            "page {} is owned, its parent is not", page);
  }
  require(owned == pool.owned() && idle == pool.idle(), 1,
          "{} owned and {} idle, counted {} and {}", pool.owned(), pool.idle(), owned, idle);
  require(cached == cache.size(), 23, "{} pages cached, counted {}", cache.size(), cached);
}

void Invariants::check_drained() const {
  const PagePool& pool = scheduler_.pool();
  require(scheduler_.live() == 0 && loop_.live_requests() == 0, 18, "{} sequences, {} requests",
          scheduler_.live(), loop_.live_requests());
  require(pool.owned() == 0 && pool.free() + pool.idle() == pool.total(), 18, "{} pages owned",
          pool.owned());
  require(pool.idle() == scheduler_.prefix_cache().size(), 18, "{} idle, {} cached", pool.idle(),
          scheduler_.prefix_cache().size());
}

void Invariants::note_reset() {
  for (Truth& truth : truths_) truth.overdue_step = -1;
  client_rules_.note_reset();
}

Invariants::Truth& Invariants::truth_of(const Sequence& sequence) {
  Truth& truth = truths_[static_cast<std::size_t>(sequence.id.index)];
  if (!(truth.id == sequence.id)) {
    truth.id = sequence.id;
    truth.contents.clear();
    truth.overdue_step = -1;
  }
  while (truth.contents.size() < sequence.tokens.size()) {
    const std::size_t i = truth.contents.size();
    const std::uint64_t before = i == 0 ? kRootContent : truth.contents[i - 1];
    truth.contents.push_back(slot_content(before, sequence.tokens[i],
                                          is_decoded(sequence, static_cast<std::int32_t>(i))));
  }
  return truth;
}

}  // namespace koho::simulation
