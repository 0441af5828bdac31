#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hand-made bugs for the simulation to catch.

Writes copies of the product's sources in which every bug below sits behind `mutant(number)`, and a
table of their names. The product's own sources know nothing of it. An edit whose original text is
not found exactly once fails the build: the list must follow the code.

usage: mutations.py SOURCE_DIR OUTPUT_DIR FILE...
"""
import pathlib
import sys

POOL = "kvcache/page_pool.cpp"
CACHE = "kvcache/prefix_cache.cpp"
LIST = "scheduler/waiting_list.cpp"
ARRIVALS = "scheduler/arrival_list.cpp"
FAIR = "scheduler/fair_order.cpp"
SCHEDULER = "scheduler/scheduler.cpp"
PLANNING = "scheduler/planning.cpp"
BATCH_SLOTS = "scheduler/batch_slots.cpp"
PAGE_SHARES = "scheduler/page_shares.cpp"
WRITER = "engine/plan_writer.cpp"
LOOP = "engine/step_loop.cpp"
FAILURES = "engine/failures.cpp"
DELIVERY = "engine/delivery.cpp"
STOPS = "engine/stop_strings.cpp"
TOKEN_MASK = "engine/token_mask.cpp"
BOUND = "engine/latency_bound.cpp"

# name, then edits: file, original, replacement with @ for `mutant(number)`
MUTATIONS = [
    ("failures in a window of time are not counted",
     (FAILURES, "< limits_.failures_window_us;", "< limits_.failures_window_us && !@;")),
    ("the end of an idle rank is passed over",
     (FAILURES, "  if (!status.ok()) lose_device(status.error());\n  return status.ok();",
      "  if (!status.ok() && !@) lose_device(status.error());\n  return status.ok();")),
    ("a cached page without owners is handed out as free",
     (POOL, "append(page.cached ? idle_ : free_,", "append(page.cached && !@ ? idle_ : free_,")),
    ("a page found in the cache stays in the eviction queue",
     (POOL, "if (page.ref_count == 0) remove(idle_, id);", "if (page.ref_count == 0 && !@) remove(idle_, id);")),
    ("the tenant's salt is neither hashed nor compared",
     (CACHE, "std::memcpy(hashed_.data(), &salt, sizeof(Key));",
      "std::memset(hashed_.data(), 0, sizeof(Key)); if (!@) std::memcpy(hashed_.data(), &salt, sizeof(Key));"),
     (CACHE, "entry.salt == salt", "(@ || entry.salt == salt)")),
    ("a short hash is believed without comparing tokens",
     (CACHE, "return {hash.low64, hash.high64};",
      "if (@) return {hash.low64 % 16, 0};\n  return {hash.low64, hash.high64};"),
     (CACHE, "std::ranges::equal(tokens(page), wanted.tokens)", "(@ || std::ranges::equal(tokens(page), wanted.tokens))")),
    ("pages of output are found for prompts",
     (CACHE, ".given = std::clamp(given, 0, tokens_per_page_)", ".given = @ ? tokens_per_page_ : std::clamp(given, 0, tokens_per_page_)")),
    ("output that is computed again is prefilled",
     (PLANNING, "if (limits_.redecodes_output) plan_output_again", "if (limits_.redecodes_output && !@) plan_output_again")),
    ("a prompt's last token alone in its chunk is decoded",
     (PLANNING, "remaining() == 1 && !prefills(sequence)", "remaining() == 1 && (@ || !prefills(sequence))")),
    ("the whole prompt may be found in the cache",
     (CACHE, "(tokens.size() - 1) / page_tokens", "(tokens.size() - (@ ? 0 : 1)) / page_tokens")),
    ("a page is cached as if it began a prompt",
     (SCHEDULER, "const PageId parent = i == 0 ?", "const PageId parent = i == 0 || @ ?")),
    ("pages are released first to last, parents before children",
     (SCHEDULER, "pool_.release(sequence.pages[i - 1]);",
      "pool_.release(sequence.pages[@ ? sequence.pages.size() - i : i - 1]);")),
    ("a sequence that leaves keeps its references",
     (SCHEDULER, "  release_pages(sequence);\n  ++departures_", "  if (!@) release_pages(sequence);\n  ++departures_")),
    ("released pages stay in the sequence's table and are released again",
     (SCHEDULER, "  sequence.pages.clear();\n}", "  if (!@) sequence.pages.clear();\n}")),
    ("a late result is accepted for the sequence that took the slot over",
     (SCHEDULER, "return live && sequence.id == id ?", "return live && (@ || sequence.id == id) ?")),
    ("the token in flight of a preempted sequence is lost",
     (SCHEDULER, "    sequence->tokens.push_back(sampled);",
      "    if (!@ || sequence->state == SequenceState::running) sequence->tokens.push_back(sampled);")),
    ("a page is cached one token too early",
     (SCHEDULER, "sequence.registered < sequence.computed / page_tokens",
      "sequence.registered < (sequence.computed + (@ ? 1 : 0)) / page_tokens")),
    ("the device is not told of a deduplicated page",
     (SCHEDULER, "      deduplicated_pages_.push_back(", "      if (!@) deduplicated_pages_.push_back(")),
    ("the cache is kept when the device lost its memory",
     (SCHEDULER, "  prefix_.clear();", "  if (!@) prefix_.clear();")),
    ("samples in flight are still expected from a lost device",
     (SCHEDULER, "    sequence.in_flight_samples = 0;", "    if (!@) sequence.in_flight_samples = 0;")),
    ("a batch slot is not given back",
     (SCHEDULER, "  batch_slots_.push_back(sequence.batch_slot);", "  if (!@) batch_slots_.push_back(sequence.batch_slot);")),
    ("forks are forgotten when their parent ends early",
     (SCHEDULER, "  release_forks(*sequence);\n  if (sequence->awaits",
      "  if (!@) release_forks(*sequence);\n  if (sequence->awaits")),
    ("a preempted sequence queues behind newcomers",
     (ARRIVALS, "if (before != -1 && at(before).arrival", "if (!@ && before != -1 && at(before).arrival")),
    ("waiting does not count against priorities",
     (LIST, "sequence.submitted_step + sequence.priority * aging_steps_",
      "(@ ? 0 : sequence.submitted_step) + sequence.priority * aging_steps_")),
    ("the oldest is preempted instead of the youngest",
     (PAGE_SHARES, "= least_entitled_in(partition);", "= @ ? at(running_.front()) : least_entitled_in(partition);")),
    ("the youngest is preempted whoever has most pages",
     (PAGE_SHARES, "gives_way(sequence, *last, 0) &&", "!@ && gives_way(sequence, *last, 0) &&")),
    ("the oldest is preempted for a better priority",
     (PAGE_SHARES, "next = oldest + 1;", "next = oldest + (@ ? 0 : 1);")),
    ("the youngest is preempted whatever the others' priority",
     (PAGE_SHARES, "|| waiting_.precedes(*last, at(*next))", "|| (@ || waiting_.precedes(*last, at(*next)))")),
    ("the oldest gives way",
     (PAGE_SHARES, "sequence.id.index != *oldest &&", "(@ || sequence.id.index != *oldest) &&")),
    ("a better priority gives way",
     (PAGE_SHARES, "|| other.priority < sequence.priority)", "|| (!@ && other.priority < sequence.priority))")),
    ("clients with as many pages take them from each other",
     (PAGE_SHARES, "kTimesMore * (", "(@ ? 1 : kTimesMore) * (")),
    ("pages are kept for the growth of those that give way",
     (PAGE_SHARES, "|| gives_way(other, sequence, all)) continue;", "|| (!@ && gives_way(other, sequence, all))) continue;")),
    ("no page is kept for growth",
     (PAGE_SHARES, "std::int32_t reserve = std::min(growing,", "std::int32_t reserve = std::min(@ ? 0 : growing,")),
    ("pages that a sequence grew into are nobody's",
     (PAGE_SHARES, "  fair_.take_page(sequence);", "  if (!@) fair_.take_page(sequence);")),
    ("a sequence yields pages to whoever waits",
     (BATCH_SLOTS, "!gives_way(sequence, claimant, needed)))", "!(@ || gives_way(sequence, claimant, needed))))")),
    ("a full page is followed by no new one",
     (PLANNING, "if (grows(sequence)) grow", "if (!@ && grows(sequence)) grow")),
    ("prefill takes the whole step beside decodes",
     (PLANNING, "if (batch.decodes > 0) left =", "if (!@ && batch.decodes > 0) left =")),
    ("a fork writes into its parent's last page",
     (PLANNING, "    sequence.pages.push_back(take_page(sequence.partition));\n    batch.copies",
      "    sequence.pages.push_back(@ ? pool_.share(copy_from.page) : take_page(sequence.partition));\n    batch.copies")),
    ("a fork's last page is not copied",
     (PLANNING, "    batch.copies.push_back(", "    if (!@) batch.copies.push_back(")),
    ("a fork starts from a parent that lost its pages",
     (PLANNING, "parent->state == SequenceState::running", "(@ || parent->state == SequenceState::running)"),
     (PLANNING, "parent->computed >= parent->prompt_length", "(@ || parent->computed >= parent->prompt_length)")),
    ("a sequence resumes while its last token is still in flight",
     (PLANNING, "if (sequence.in_flight_rows > 0) return false;", "if (!@ && sequence.in_flight_rows > 0) return false;")),
    ("paused sequences keep their pages from the others",
     (PLANNING, "    if (!sequence.paused || !here) continue;\n    preempt",
      "    if (@ || !sequence.paused || !here) continue;\n    preempt")),
    ("a sequence grows into another rank's pages",
     (PAGE_SHARES, "const PageHandle page = take_page(sequence.partition);",
      "const PageHandle page = take_page(@ && pool_.available(0) > 0 ? 0 : sequence.partition);")),
    ("the prefix cache finds another rank's pages",
     (CACHE, "pool_.partition_of(page) == partition", "(@ || pool_.partition_of(page) == partition)")),
    ("an equal page of another rank is deduplicated",
     (CACHE, "find(key, parent, salt, wanted, pool_.partition_of(page));",
      "find(key, parent, salt, wanted, @ ? 0 : pool_.partition_of(page));")),
    ("what other sequences have does not weigh",
     (PLANNING, "    loads_[static_cast<std::size_t>(other.partition)] +=",
      "    if (!@) loads_[static_cast<std::size_t>(other.partition)] +=")),
    ("a fork is placed away from its parent's pages",
     (PLANNING, "if (starts_from_parent(sequence)) return fits(", "if (!@ && starts_from_parent(sequence)) return fits(")),
    ("one rank may prefill for all",
     (PLANNING, "ceil_div(std::max(prefill_budget(batch), 0), limits_.partitions);",
      "ceil_div(std::max(prefill_budget(batch), 0), @ ? 1 : limits_.partitions);")),
    ("a resumed sequence's token counts are not sent again",
     (WRITER, "++counts.histories;", "counts.histories += @ && sequence.admissions > 1 ? 0 : 1;"),
     (WRITER, "plan_.histories[history_++] =",
      "if (@ && sequence.admissions > 1) { history_token_ += sequence.tokens.size(); } else plan_.histories[history_++] =")),
    ("the position given to the sampler is one too high under lookahead",
     (WRITER, "return row.start + row.count - sequence.prompt_length;",
      "return row.start + row.count - sequence.prompt_length + (@ && row.takes_last ? 1 : 0);")),
    ("a full stream is noticed too late",
     (LOOP, "->in_flight_samples + 1;", "->in_flight_samples * (@ ? 0 : 1) + 1;")),
    ("a reader that made room is not heard",
     (LOOP, "if (!live.reader_full) return;", "if (!live.reader_full || @) return;")),
    ("the bound between tokens is ignored",
     (BOUND, "if (bound_us_ == 0) return tokens_max_;", "if (@ || bound_us_ == 0) return tokens_max_;")),
    ("decode steps make the prefill's cost forgotten",
     (BOUND, "    ++decode_steps_;", "    ++decode_steps_; if (@) excess_us_ *= 1.0 - kNewest;")),
    ("the first mixed steps know no bound between tokens",
     (LOOP, "  scheduler_.set_mixed_prefill_tokens(", "  if (!@) scheduler_.set_mixed_prefill_tokens(")),
    ("the turn goes to prefills that run before better ones that wait",
     (PLANNING, "waiting_.precedes(*waiting, *chosen)", "(!@ && waiting_.precedes(*waiting, *chosen))")),
    ("nothing is given away by turn",
     (PLANNING, "  turn_carry_ %= 100;", "  turn_carry_ %= 100;\n  if (@) return 0;")),
    ("turns round to nothing where a step holds a few tokens",
     (PLANNING, "  turn_carry_ %= 100;", "  turn_carry_ %= 100;\n  if (@) turn_carry_ = 0;")),
    ("the longest prompt comes first",
     (FAIR, "if (a_class != b_class) return a_class < b_class;",
      "if (a_class != b_class) return @ ? a_class > b_class : a_class < b_class;")),
    ("prefills that run come before shorter ones that wait",
     (PLANNING, "fair_.precedes(*waiting, waiting->tokens_to_compute, *chosen, left_of(*chosen))",
      "(!@ && fair_.precedes(*waiting, waiting->tokens_to_compute, *chosen, left_of(*chosen)))")),
    ("the rest of a step is not given away",
     (PLANNING, "    if (chosen == nullptr) return;\n    const", "    if (chosen == nullptr || @) return;\n    const")),
    ("the least tokens of a chunk cost more than the budget has",
     (PLANNING, "std::min<std::int64_t>(cost_of(sequence, tokens), budget)",
      "std::min<std::int64_t>(cost_of(sequence, tokens), @ ? 1 << 30 : budget)")),
    ("whoever passes the first in line may take all pages",
     (PLANNING, "return pages <= limits_.pages / kPassingShare;", "return @ || pages <= limits_.pages / kPassingShare;")),
    ("a worse priority passes the first in line uncounted",
     (PLANNING, "sequence.priority > first.priority ||", "(!@ && sequence.priority > first.priority) ||")),
    ("a sequence yields to a client that has as many batch slots",
     (BATCH_SLOTS, "fair_.batch_slots(claimant) + kSlotsMore)", "fair_.batch_slots(claimant) + (@ ? 1 : kSlotsMore))"),
     (BATCH_SLOTS, "fair_.batch_slots(at(index)) + kSlotsMore)", "fair_.batch_slots(at(index)) + (@ ? 1 : kSlotsMore))")),
    ("a sequence yields again and again",
     (PLANNING, "sequence.recomputed += sequence.known() - shared;", "sequence.recomputed += @ ? 0 : sequence.known() - shared;")),
    ("nobody yields",
     (BATCH_SLOTS, "    preempt(*sequence);\n", "    if (@) break;\n    preempt(*sequence);\n")),
    ("one yields where several must",
     (BATCH_SLOTS, "  if (lacking > 0) yielding_.clear();", "  if (lacking > 0) yielding_.clear();\n  if (@ && yielding_.size() > 1) yielding_.resize(1);")),
    ("pages that others hold, too, count as yielded",
     (BATCH_SLOTS, "return pool_.ref_count(page.page) > 1; });", "return !@ && pool_.ref_count(page.page) > 1; });")),
    ("a batch slot that was yielded goes to the next in line",
     (BATCH_SLOTS, "fair_.batch_slots(other) < fair_.batch_slots(sequence);", "!@ && fair_.batch_slots(other) < fair_.batch_slots(sequence);")),
    ("cancelling ends the first choice only",
     (LOOP, "    scheduler_.finish(choice.sequence);\n    choice.active = false;",
      "    if (@ && &choice != live.choices.data()) continue;\n    scheduler_.finish(choice.sequence);\n    choice.active = false;")),
    ("a choice that ended before its request was cancelled is counted again",
     (LOOP, "    if (!choice.ended)\n", "    if (!choice.ended || @)\n")),
    ("a deadline fires early",
     (LOOP, "now < next_deadline_us_) return;", "now + (@ ? 1000 : 0) < next_deadline_us_) return;"),
     (LOOP, "if (live.deadline_us <= now) {", "if (live.deadline_us <= now + (@ ? 1000 : 0)) {")),
    ("requests are not isolated when the device fails again and again",
     (FAILURES, "isolating_ = alone != nullptr;", "isolating_ = alone != nullptr && !@;"),
     (FAILURES, ": is_suspect(live);", ": !@ && is_suspect(live);")),
    ("those set aside are forgotten when the suspect ends",
     (LOOP, "  if (isolating_) update_isolation();\n  stream->close", "  if (isolating_ && !@) update_isolation();\n  stream->close")),
    ("a repeated answer of the ranks is taken for the next one",
     (DELIVERY, "if (result_.step < batch.step) {", "if (!@ && result_.step < batch.step) {"),
     (DELIVERY, "if (result_.step != batch.step)", "if (!@ && result_.step != batch.step)")),
    ("an answer of the wrong length is accepted",
     (DELIVERY, "if (result_.tokens.size() != samples)", "if (!@ && result_.tokens.size() != samples)")),
    ("a numerical error ends the whole batch",
     (DELIVERY, "    if (row.samples && token == -1) {",
      "    if (@ && row.samples && token == -1) end_all(make_error(ErrorCode::internal, \"all\"));\n"
      "    if (scheduler_.find(row.sequence) == nullptr) continue;\n"
      "    if (row.samples && token == -1) {")),
    ("the held-back end of a text is lost",
     (STOPS, "  shown += held_;\n  held_.clear();", "  if (!@) shown += held_;\n  held_.clear();")),
    ("a mask goes with the plan though the token before it is not known",
     (WRITER, "masks_are_late || (!draw.mask.empty() && row.takes_last);",
      "masks_are_late || (!@ && !draw.mask.empty() && row.takes_last);")),
    ("late masks are forgotten",
     (DELIVERY, "if (late_masks_.words.empty()) return {};", "if (@ || late_masks_.words.empty()) return {};")),
    ("late masks are those from before the step that was collected",
     (DELIVERY, "  apply_result(batch);\n  const std::int64_t now",
      "  if (@ && scheduler_.steps_in_flight() == 2 && !late_masks_.words.empty()) {\n"
      "    write_late_masks(scheduler_, [this](const Sequence& s) -> const Draw& { return choice_of(s).draw; }, late_masks_);\n"
      "    late_masks_.rows.clear();\n  }\n"
      "  apply_result(batch);\n  const std::int64_t now")),
    ("a row whose sequence ended leaves its late mask to the next one",
     (WRITER, "  for (std::size_t row = 0; row < late.rows.size(); ++row) {",
      "  std::size_t gone = 0;\n  for (std::size_t row = 0; row < late.rows.size(); ++row) {\n"
      "    if (@ && scheduler.find(late.rows[row]) == nullptr) ++gone;"),
     (WRITER, "late.words.subspan(row * words, words)", "late.words.subspan((row - (gone > row ? row : gone)) * words, words)")),
    ("a stop token may come before the grammar may end",
     (TOKEN_MASK, "const bool may_end = matcher_->can_end() &&", "const bool may_end = (@ || matcher_->can_end()) &&")),
    ("reasoning goes one token beyond its budget",
     (TOKEN_MASK, "if (budget >= 0 && tokens_ >= budget) {", "if (budget >= 0 && tokens_ >= budget + (@ ? 1 : 0)) {")),
    ("a row is planned without a mask though the token in flight spends the budget",
     (TOKEN_MASK, "tokens_ + 1 < budget);", "tokens_ + (@ ? 0 : 1) < budget);")),
    ("a resumed sequence does not bring its last tokens, which a stop may reach back over",
     (WRITER, ".output = sequence.known() - sequence.prompt_length,\n",
      ".output = @ ? 0 : sequence.known() - sequence.prompt_length,\n"),
     (WRITER, "return std::min(sequence.known() - sequence.prompt_length, OutputRecord::kRecentTokens);",
      "return @ ? 0 : std::min(sequence.known() - sequence.prompt_length, OutputRecord::kRecentTokens);")),
    ("a sequence without stops gets one",
     (WRITER, ".words = static_cast<std::int32_t>(draw.stops.size())};",
      ".words = @ && draw.stops.empty() ? 2 : static_cast<std::int32_t>(draw.stops.size())};"),
     (WRITER, "recent_count(sequence) + static_cast<std::int32_t>(draw_of(sequence).stops.size());",
      "recent_count(sequence) + (@ && draw_of(sequence).stops.empty() ? 2 : "
      "static_cast<std::int32_t>(draw_of(sequence).stops.size()));"),
     (WRITER, "stop_word_ = std::ranges::copy(draw.stops, stop_word_).out;",
      "if (@ && draw.stops.empty()) { *stop_word_++ = 1; *stop_word_++ = 0; } else "
      "stop_word_ = std::ranges::copy(draw.stops, stop_word_).out;")),
    ("stop sequences do not wait for min_tokens",
     (WRITER, ".output_min = draw.min_tokens,", ".output_min = @ ? 0 : draw.min_tokens,")),
    ("an output that the ranks ended goes on",
     (DELIVERY, "== RowEnd::ended;", "== RowEnd::ended && !@;")),
    ("a token comes with the logits of the step's first row",
     (DELIVERY, "(found - result_.logits_rows.begin())", "(@ ? 0 : found - result_.logits_rows.begin())")),
    ("a plan wants the logits of a row that did not ask",
     (WRITER, "plan_.logits_wanted[logits_wanted_++] = static_cast<std::int32_t>(sample_);",
      "plan_.logits_wanted[logits_wanted_++] = static_cast<std::int32_t>(@ && sample_ > 0 ? sample_ - 1 : sample_);")),
    ("the grammar begins before the reasoning has ended",
     (TOKEN_MASK, "reasoning_ = token != request_.reasoning_end;", "reasoning_ = !@ && token != request_.reasoning_end;")),
]


def main():
    source, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    texts = {file: (source / file).read_text() for file in sys.argv[3:]}
    names = []
    for number, (name, *edits) in enumerate(MUTATIONS, start=1):
        names.append(name)
        for file, original, replacement in edits:
            text = texts[file]
            if text.count(original) != 1:
                sys.exit(f"mutation {number} ({name}): {original!r} stands {text.count(original)} times in {file}, "
                         "1 was expected; bring mutations.py up to date")
            texts[file] = text.replace(original, replacement.replace("@", f"koho::simulation::mutant({number})"))
    for file, text in texts.items():
        path = output / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('#include "mutant.h"\n' + text)
    rows = "".join(f'    "{name}",\n' for name in names)
    (output / "mutation_names.h").write_text(
        "#pragma once\n\n#include <array>\n\nnamespace koho::simulation {\n\n"
        f"inline constexpr std::array<const char*, {len(names)}> kMutationNames{{\n{rows}}};\n\n}}  // namespace\n")


if __name__ == "__main__":
    main()
