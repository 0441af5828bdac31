// SPDX-License-Identifier: Apache-2.0
// What a world and its requests are drawn from.
#include <algorithm>

#include "world.h"

namespace koho::simulation {

EngineLimits World::draw_limits(Random& random, std::int32_t shrink) {
  EngineLimits limits;
  Limits& s = limits.scheduler;
  // Now and then a world of real size: pages of 64 tokens, contexts of 128 thousand.
  const bool large = shrink == 1 && random.chance(10);
  const bool bounded = random.chance(300);
  if (bounded) limits.inter_token_us_max = random.in(100, 40000);
  if (large) {
    s.tokens_per_page = 64;
    s.pages = random.in(2048, 4096);
    s.context_max = 131072;
    s.sequences_max = random.in(4, 16);
    s.step_tokens_max = 8192;
    s.mixed_prefill_tokens_max = random.in(64, 8192);
  } else if (shrink > 1) {
    s.tokens_per_page = random.in(2, 8);
    s.pages = std::max(1, 800 / shrink);
    s.context_max = std::min(s.pages, std::max(1, 100 / shrink)) * s.tokens_per_page;
    s.sequences_max = std::max(1, 100 / shrink);
    s.step_tokens_max = s.sequences_max + random.in(1, 4);
    s.mixed_prefill_tokens_max = 1;
  } else if (bounded) {
    // Prompts and budgets that the bound cuts.
    s.tokens_per_page = 1 << random.in(3, 4);
    s.pages = random.in(48, 64);
    s.context_max = random.in(100, std::min(400, s.tokens_per_page * s.pages));
    s.sequences_max = random.in(2, 8);
    s.step_tokens_max = s.sequences_max + random.in(32, 96);
    s.mixed_prefill_tokens_max = s.step_tokens_max - s.sequences_max;
  } else {
    s.tokens_per_page = 1 << random.in(0, 4);
    s.pages = random.in(4, 64);
    s.context_max = random.in(4, std::min(400, s.tokens_per_page * s.pages));
    // Prompts that wait for nothing but their share of the steps.
    if (random.chance(250))
      s.context_max = std::clamp(s.pages * s.tokens_per_page / 12, 4, s.context_max);
    s.sequences_max = random.in(1, 8);
    s.step_tokens_max = s.sequences_max + random.in(1, 64);
    s.mixed_prefill_tokens_max = random.in(1, s.step_tokens_max);
  }
  // Several ranks with pages of their own in every third world.
  if (random.chance(333)) {
    s.partitions = std::min(random.in(2, 8), s.pages);
    s.pages -= s.pages % s.partitions;
    s.context_max = std::min(s.context_max, s.pages_per_partition() * s.tokens_per_page);
  }
  limits.requests_max = random.in(1, 24);
  limits.choices_max = random.chance(500) ? 1 : random.in(1, 5);
  s.live_max = std::max(limits.choices_max, limits.requests_max + random.in(0, 24));
  if (random.chance(200)) s.prefill_tokens_max = random.in(1, s.step_tokens_max);
  s.aging_steps = random.in(1, 300);
  if (s.aging_steps % 8 == 0) s.attention_tokens = s.aging_steps;
  s.turn_percent = random.chance(200) ? 100 : random.in(1, 99);
  limits.stop_tokens_max = random.in(8, kStopTokensMax);
  s.prefix_cache = random.chance(900);
  s.redecodes_output = s.turn_percent % 3 == 2;
  limits.vocabulary = random.in(8, 200);
  limits.stream_events_per_choice = random.in(4, 24);
  limits.step_deadline_us = 5'000'000;
  limits.recoveries_max = random.in(1, 6);
  limits.faults_per_request_max = random.in(1, 4);
  limits.failures_in_a_row_max = random.chance(500) ? 200 : random.in(3, 20);
  if (random.chance(200)) limits.failures_in_window_max = random.in(1, 6);
  limits.failures_window_us = random.in(100'000, 600'000'000);
  return limits;
}

World::Habits World::draw_habits() {
  Habits habits;
  const auto bound = static_cast<std::int32_t>(limits_.inter_token_us_max);
  // Steps are launched and collected at rates of their own, so that the pipeline is full, half full
  // and empty; arrivals range from a trickle to more than can be served.
  habits.weights = {random_.in(20, 60), random_.in(20, 60), random_.in(5, 60), random_.in(1, 25),
                    random_.in(0, 8),   random_.in(0, 5),   random_.in(0, 4)};
  const bool large = limits_.scheduler.tokens_per_page == 64;
  if (large) habits.weights[static_cast<std::size_t>(Action::arrive)] = 1;
  habits.families = random_.in(1, 6);
  habits.prompt_max = std::max(1, limits_.scheduler.context_max - random_.in(0, 4));
  if (random_.chance(500)) habits.prompt_max = std::min(habits.prompt_max, random_.in(2, 40));
  habits.completion_max = random_.chance(500) ? random_.in(1, 12) : random_.in(10, 80);
  habits.choices_max = limits_.choices_max;
  habits.tenants = random_.in(1, 3);
  habits.text = random_.chance(300);
  // A quarter of the sites is on, each firing up to one time in ten.
  const auto site = [this](std::int32_t most) {
    return random_.chance(250) ? random_.in(1, most) : 0;
  };
  habits.submit_fails = site(20);
  habits.collect_fails = site(20);
  habits.masks_fail = site(20);
  habits.ranks_end = site(50);
  habits.wrong_count = site(20);
  habits.stale = site(100);
  habits.early = site(20);
  habits.bad_token = site(20);
  habits.nan = site(100);
  habits.hangs = site(20);
  habits.slow = site(100);
  habits.deadlines = site(100);
  habits.clock_jumps = site(100);
  habits.floods = site(100);
  habits.poison = random_.chance(150) ? random_.in(1, 200) : 0;
  if (habits.poison > 0)
    habits.submit_fails = habits.collect_fails = habits.masks_fail = habits.ranks_end =
        habits.wrong_count = habits.early = habits.bad_token = habits.hangs = habits.slow = 0;
  // There, requests also leave in the middle of the search for the culprit.
  if (habits.poison > 0) habits.weights[static_cast<std::size_t>(Action::cancel)] += 8;
  habits.steady = habits.poison == 0 && limits_.inter_token_us_max > 0 && random_.chance(500);
  if (habits.steady) {
    habits.submit_fails = habits.collect_fails = habits.masks_fail = habits.ranks_end =
        habits.wrong_count = habits.stale = habits.early = habits.bad_token = habits.nan =
            habits.hangs = habits.slow = habits.clock_jumps = 0;
    habits.weights[static_cast<std::size_t>(Action::clock)] = 0;
    habits.prompt_max = limits_.scheduler.context_max;
    habits.prefill_us = std::max(1, bound / random_.in(17, 80));
    habits.decode_us = random_.in(0, bound / 2);
  }
  return habits;
}

std::vector<Token> World::draw_prompt() {
  std::vector<Token> prompt;
  const std::int32_t most = habits_.prompt_max;
  const std::int32_t length = random_.in(1, random_.chance(500) ? most : std::min(most, 24));
  if (!conversations_.empty() && random_.chance(300)) {
    // The next turn of a conversation.
    prompt = conversations_[static_cast<std::size_t>(
        random_.in(0, static_cast<std::int32_t>(conversations_.size()) - 1))];
    if (static_cast<std::int32_t>(prompt.size()) > most)
      prompt.resize(static_cast<std::size_t>(most));
    if (random_.chance(20)) conversations_.clear();
  } else {
    const auto family = static_cast<std::uint64_t>(random_.in(1, habits_.families));
    const std::int32_t common = random_.in(0, length);
    for (std::int32_t i = 0; i < common; ++i)
      prompt.push_back(static_cast<Token>(mix(family, static_cast<std::uint64_t>(i)) %
                                          static_cast<std::uint64_t>(limits_.vocabulary)));
  }
  while (static_cast<std::int32_t>(prompt.size()) < length)
    prompt.push_back(random_.in(0, limits_.vocabulary - 1));
  return prompt;
}

void World::draw_grammar(Request& request) {
  ++report_.constrained;
  request.grammar =
      std::make_shared<FakeGrammar>(random_.next(), random_.in(1, 40), limits_.vocabulary);
  if (request.reasoning_end >= 0 &&
      std::ranges::find(request.stop_tokens, request.reasoning_end) != request.stop_tokens.end())
    request.stop_tokens.clear();
}

Request World::draw_request() {
  Request request;
  request.prompt = draw_prompt();
  const auto prompt = static_cast<std::int32_t>(request.prompt.size());
  const Limits& s = limits_.scheduler;
  const std::int32_t room =
      std::min(s.context_max, s.pages_per_partition() * s.tokens_per_page) - prompt;
  request.max_tokens = random_.chance(30)   ? 0
                       : random_.chance(50) ? room  // the largest that is possible
                                            : std::min(room, random_.in(1, habits_.completion_max));
  request.choices = random_.chance(700) ? 1 : random_.in(1, habits_.choices_max);
  request.priority = random_.chance(500) ? 0 : random_.in(0, kPriorities - 1);
  request.salt.low = static_cast<std::uint64_t>(random_.in(1, habits_.tenants));
  request.client = static_cast<std::uint64_t>(random_.in(1, habits_.tenants));
  request.seed = random_.next();
  if (random_.chance(300)) request.sampling.seed = random_.in(-100, 100);
  if (random_.chance(200)) request.sampling.repetition_penalty = 1.25;
  const std::int32_t stops = random_.in(0, 3);
  for (std::int32_t i = 0; i < stops; ++i)
    request.stop_tokens.push_back(random_.in(0, limits_.vocabulary - 1));
  const std::int32_t sequences = random_.chance(700) ? random_.in(25, 55) : 0;
  for (std::int32_t i = 0; i < sequences; ++i) {
    std::vector<Token>& stop = request.stop_sequences.emplace_back();
    for (std::int32_t length = random_.in(2, 3); length > 0; --length)
      stop.push_back(random_.in(0, limits_.vocabulary - 1));
  }
  if (random_.chance(200)) request.min_tokens = random_.in(0, request.max_tokens);
  if (habits_.text) {
    const std::int32_t strings = random_.in(0, 2);
    for (std::int32_t i = 0; i < strings; ++i) {
      std::string stop;
      for (std::int32_t length = random_.in(1, 4); length > 0; --length)
        stop += static_cast<char>('a' + random_.in(0, 2));
      request.stop_strings.push_back(stop);
    }
    request.include_stop = random_.chance(200);
  }
  request.logits = random_.chance(100);
  if (random_.chance(habits_.deadlines)) request.deadline_us = random_.in(1, 2'000'000);
  if (random_.chance(300)) {
    request.reasoning_begin = random_.in(0, limits_.vocabulary - 1);
    request.reasoning_end = random_.in(0, limits_.vocabulary - 1);
    request.starts_in_reasoning = random_.chance(500);
  }
  if (random_.chance(250)) draw_grammar(request);
  const bool end_stops =
      std::ranges::find(request.stop_tokens, request.reasoning_end) != request.stop_tokens.end();
  if (request.starts_in_reasoning && !end_stops && random_.chance(400))
    request.reasoning_tokens_max = random_.in(0, 20);
  return request;
}

void World::arrive() {
  const bool full = static_cast<std::int32_t>(clients_.size()) >= limits_.requests_max;
  if (full && !random_.chance(habits_.floods)) return;
  Request request = draw_request();
  const bool poison = random_.chance(habits_.poison);
  if (poison) request.sampling.seed = static_cast<std::int64_t>(kPoison);
  const Status valid = validate(request, limits_);
  if (!valid.ok()) throw Violation(26, valid.error().message);
  auto client = std::make_unique<Client>(request, limits_.vocabulary, habits_.text,
                                         limits_.scheduler.redecodes_output);
  const auto capacity = static_cast<std::size_t>(limits_.stream_events_per_choice) *
                        static_cast<std::size_t>(request.choices);
  client->stream = std::make_shared<OutputStream>(capacity, 0, std::function<void()>(),
                                                  [this](OutputStream& stream) {
                                                    for (const auto& reader : clients_)
                                                      if (reader->stream.get() == &stream)
                                                        with_room_.push_back(reader->stream);
                                                  });
  client->submitted_us = clock_.now_us();
  client->may_fail = poison || request.deadline_us > 0 || loop_.broken() ||
                     loop_.live_requests() == limits_.requests_max ||
                     loop_.scheduler().live() + request.choices > limits_.scheduler.live_max;
  ++tally_.accepted;
  tally_.prompt_tokens += request.prompt.size();
  tally_.choices += static_cast<std::uint64_t>(request.choices);
  ++report_.requests;
  note(request.prompt.size());
  loop_.submit(std::move(request), client->stream);
  clients_.push_back(std::move(client));
}

}  // namespace koho::simulation
