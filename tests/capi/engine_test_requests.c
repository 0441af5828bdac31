// SPDX-License-Identifier: Apache-2.0
// Requests that go well: both forms, batches, ends, stop tokens and logits.
#include <stddef.h>

#include "engine_test.h"

void both_forms_give_the_same_tokens(void) {
  EngineHandle* engine = start(kPrompts);
  SamplingParams params = greedy(20);
  for (int sampled = 0; sampled < 2; ++sampled) {
    if (sampled == 1) {
      params.temperature = 1.0;
      params.top_p = 0.9;
      params.use_seed = 1;
      params.seed = 7;
    }
    int64_t expected[kPrompts][kTokensMax];
    for (int i = 0; i < kPrompts; ++i) CHECK(alone(engine, i, &params, expected[i]) == 20);

    // Added all at once, read in any order.
    int count[kPrompts] = {0};
    for (int i = 0; i < kPrompts; ++i) {
      int64_t ids[kPromptLength];
      prompt_of(i, ids);
      CHECK(add_request(engine, i, ids, kPromptLength, &params) == KOHO_OK);
    }
    int ended = 0;
    while (ended < kPrompts) {
      TokenEvent events[3];
      const int32_t got = poll_requests(engine, events, 3, -1);
      CHECK(got > 0);
      for (int e = 0; e < got; ++e) {
        const int i = (int)events[e].request_id;
        CHECK(events[e].token == expected[i][count[i]]);
        ++count[i];
        CHECK((events[e].finish == KOHO_FINISH_LENGTH) == (count[i] == 20));
        if (events[e].finish != KOHO_FINISH_NONE) ++ended;
      }
    }
    CHECK(poll_requests(engine, &(TokenEvent){0}, 1, -1) == 0);

    // Together, step by step.
    RequestState* states[kPrompts];
    for (int i = 0; i < kPrompts; ++i) states[i] = begin(engine, i, &params);
    for (int step = 0; step < 20; ++step) {
      int64_t tokens[kPrompts];
      uint8_t done[kPrompts];
      CHECK(run_batch_decode(engine, states, kPrompts, tokens, done) == KOHO_OK);
      for (int i = 0; i < kPrompts; ++i) {
        CHECK(tokens[i] == expected[i][step]);
        CHECK(done[i] == (step == 19));
      }
    }
    for (int i = 0; i < kPrompts; ++i) free_request_state(engine, states[i]);
  }
  check_all_pages_back(engine);
  free_engine(engine);
}

void a_batch_is_one_step(void) {
  EngineHandle* engine = start(kPrompts);
  const SamplingParams params = greedy(40);
  RequestState* states[kPrompts];
  int64_t tokens[kPrompts];
  uint8_t done[kPrompts];
  for (int i = 0; i < kPrompts; ++i) states[i] = begin(engine, i, &params);
  // prefill's tokens cost no step, and nothing is computed unasked.
  const int64_t steps = get_engine_info(engine, KOHO_INFO_STEPS);
  CHECK(run_batch_decode(engine, states, kPrompts, tokens, done) == KOHO_OK);
  pause_ms(20);
  CHECK(get_engine_info(engine, KOHO_INFO_STEPS) == steps);
  CHECK(get_engine_info(engine, KOHO_INFO_DECODE_STEPS) == 0);
  for (int step = 1; step <= 20; ++step) {
    CHECK(run_batch_decode(engine, states, kPrompts, tokens, done) == KOHO_OK);
  }
  CHECK(get_engine_info(engine, KOHO_INFO_DECODE_STEPS) == 20);
  CHECK(get_engine_info(engine, KOHO_INFO_DECODE_ROWS) == 20 * kPrompts);
  CHECK(get_engine_info(engine, KOHO_INFO_LARGEST_BATCH) == kPrompts);
  free_engine(engine);  // with its states
}

void more_requests_than_the_batch_holds(void) {
  EngineHandle* engine = start(2);
  const SamplingParams params = greedy(12);
  int64_t expected[kPrompts][kTokensMax];
  for (int i = 0; i < kPrompts; ++i) alone(engine, i, &params, expected[i]);
  RequestState* states[kPrompts];
  for (int i = 0; i < kPrompts; ++i) states[i] = begin(engine, i, &params);
  for (int step = 0; step < 12; ++step) {
    int64_t tokens[kPrompts];
    uint8_t done[kPrompts];
    CHECK(run_batch_decode(engine, states, kPrompts, tokens, done) == KOHO_OK);
    for (int i = 0; i < kPrompts; ++i) CHECK(tokens[i] == expected[i][step]);
  }
  CHECK(get_engine_info(engine, KOHO_INFO_PREEMPTIONS) > 0);
  for (int i = 0; i < kPrompts; ++i) free_request_state(engine, states[i]);
  check_all_pages_back(engine);
  free_engine(engine);
}

void requests_end(void) {
  EngineHandle* engine = start(4);
  SamplingParams params = greedy(3);
  int64_t token = 0;
  RequestState* state = begin(engine, 0, &params);
  CHECK(decode_step(engine, state, &token) == KOHO_OK);
  CHECK(decode_step(engine, state, &token) == KOHO_OK);
  CHECK(decode_step(engine, state, &token) == KOHO_DONE);
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, decode_step(engine, state, &token));
  CHECK(token == -1);
  // An ended state may stay in a batch.
  RequestState* other = begin(engine, 1, &params);
  RequestState* both[2] = {state, other};
  int64_t tokens[2];
  uint8_t done[2];
  CHECK(run_batch_decode(engine, both, 2, tokens, done) == KOHO_OK);
  CHECK(tokens[0] == -1 && done[0] == 1 && tokens[1] >= 0 && done[1] == 0);
  free_request_state(engine, state);

  free_request_state(engine, other);

  // Cancelled from elsewhere.
  params.max_tokens = 40;
  state = begin(engine, 77, &params);
  CHECK(cancel_request(engine, 77) == KOHO_OK);
  CHECK(decode_step(engine, state, &token) == KOHO_OK);  // prefill's
  CHECK_ERROR(KOHO_CANCELLED, decode_step(engine, state, &token));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, decode_step(engine, state, &token));
  CHECK_ERROR(KOHO_NOT_FOUND, cancel_request(engine, 77));
  free_request_state(engine, state);

  int64_t ids[kPromptLength];
  prompt_of(0, ids);
  params.max_tokens = 400;
  CHECK(add_request(engine, -5, ids, kPromptLength, &params) == KOHO_OK);
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, add_request(engine, -5, ids, kPromptLength, &params));
  CHECK(cancel_request(engine, -5) == KOHO_OK);
  TokenEvent event = {0};
  while (event.finish == KOHO_FINISH_NONE) CHECK(poll_requests(engine, &event, 1, -1) == 1);
  CHECK(event.finish == KOHO_FINISH_CANCELLED && event.token == -1 && event.request_id == -5);

  // Its deadline passes while nobody asks for more.
  params.deadline_ms = 1;
  params.max_tokens = 490;
  CHECK(add_request(engine, 6, ids, kPromptLength, &params) == KOHO_OK);
  event.finish = KOHO_FINISH_NONE;
  while (event.finish == KOHO_FINISH_NONE) CHECK(poll_requests(engine, &event, 1, -1) == 1);
  CHECK(event.finish == KOHO_FINISH_ERROR && event.status == KOHO_DEADLINE_EXCEEDED);
  check_all_pages_back(engine);
  free_engine(engine);
}

void a_stop_token_ends_a_request(void) {
  EngineHandle* engine = start(1);
  SamplingParams params = greedy(10);
  int64_t tokens[kTokensMax];
  CHECK(alone(engine, 3, &params, tokens) == 10);
  int first = 0;  // where the token that stands at 5 comes first
  while (tokens[first] != tokens[5]) ++first;
  params.stop_token_ids = &tokens[5];
  params.num_stop_token_ids = 1;
  int64_t stopped[kTokensMax];
  CHECK(alone(engine, 3, &params, stopped) == first + 1);
  int64_t ids[kPromptLength];
  prompt_of(3, ids);
  params.logprobs = 1;
  CHECK(add_request(engine, 1, ids, kPromptLength, &params) == KOHO_OK);
  TokenEvent event = {0};
  while (event.finish == KOHO_FINISH_NONE) {
    CHECK(poll_requests(engine, &event, 1, -1) == 1);
    CHECK(event.logprob < 0.0F && event.logprob > -20.0F);
  }
  CHECK(event.finish == KOHO_FINISH_STOP && event.token == tokens[5]);

  // Two tokens end a request by their order; further back to front, they do not. Drawn tokens:
  // greedy ones repeat.
  params = greedy(10);
  params.temperature = 1.0;
  params.use_seed = 1;
  params.seed = 6;
  CHECK(alone(engine, 3, &params, tokens) == 10);
  const int64_t sequences[] = {3, tokens[9], tokens[8], tokens[7], 2, tokens[4], tokens[5]};
  int pair = 0;  // where tokens 4 and 5 come first
  while (tokens[pair] != tokens[4] || tokens[pair + 1] != tokens[5]) ++pair;
  params.stop_sequences = sequences;
  params.num_stop_sequences = 2;
  CHECK(alone(engine, 3, &params, stopped) == pair + 2);
  params.num_stop_sequences = 1;
  CHECK(alone(engine, 3, &params, stopped) == 10);
  // A caller of version 2 does not know of them.
  params.num_stop_sequences = 2;
  params.struct_size = offsetof(SamplingParams, stop_sequences);
  CHECK(alone(engine, 3, &params, stopped) == 10);
  free_engine(engine);
}

static int64_t argmax(const float* logits, int64_t count) {
  int64_t best = 0;
  for (int64_t i = 1; i < count; ++i)
    if (logits[i] > logits[best]) best = i;
  return best;
}

void logits_are_what_each_token_was_sampled_from(void) {
  enum { kSteps = 12, kRows = 3 };
  EngineHandle* engine = start(kPrompts);
  const int64_t vocabulary = get_engine_info(engine, KOHO_INFO_VOCAB_SIZE);
  const size_t row_bytes = (size_t)vocabulary * sizeof(float);
  float* row = calloc((size_t)vocabulary, sizeof(float));
  float* all = calloc((size_t)(kSteps * vocabulary), sizeof(float));
  float* ring = calloc((size_t)(kRows * vocabulary), sizeof(float));
  CHECK(row != NULL && all != NULL && ring != NULL);

  // Step by step, in one batch with a request that asks for none. prefill's are there at once.
  SamplingParams params = greedy(kSteps);
  const SamplingParams plain = params;
  params.logits = row;
  params.logits_rows = 1;
  RequestState* both[2] = {begin(engine, 0, &params), begin(engine, 1, &plain)};
  const int64_t first = argmax(row, vocabulary);
  int64_t expected[kSteps];
  for (int step = 0; step < kSteps; ++step) {
    int64_t tokens[2];
    uint8_t done[2];
    CHECK(run_batch_decode(engine, both, 2, tokens, done) == KOHO_OK);
    CHECK(tokens[0] == argmax(row, vocabulary) && (step > 0 || tokens[0] == first));
    memcpy(all + step * vocabulary, row, row_bytes);
    expected[step] = tokens[0];
  }
  for (int i = 0; i < 2; ++i) free_request_state(engine, both[i]);

  // The same bits from a poll, which brings as many tokens as there are rows.
  int64_t ids[kPromptLength];
  prompt_of(0, ids);
  params.logits = ring;
  params.logits_rows = kRows;
  CHECK(add_request(engine, 0, ids, kPromptLength, &params) == KOHO_OK);
  TokenEvent events[kSteps] = {{0}};
  int count = 0;
  while (count < kSteps) {
    const int32_t got = poll_requests(engine, events, kSteps, -1);
    CHECK(got > 0 && got <= kRows);
    for (int i = 0; i < got; ++i, ++count) {
      const float* logits = ring + count % kRows * vocabulary;
      CHECK(events[i].token == expected[count]);
      CHECK(memcmp(logits, all + count * vocabulary, row_bytes) == 0);
    }
  }
  CHECK(poll_requests(engine, events, 1, -1) == 0);

  // What sampling makes of them does not show: penalties, a temperature, a stop token that must
  // not come yet.
  params = greedy(2);
  params.logits = row;
  params.logits_rows = 1;
  params.temperature = 2.0;
  params.repetition_penalty = 1.9;
  params.presence_penalty = 2.0;
  params.min_tokens = 2;
  params.stop_token_ids = &first;
  params.num_stop_token_ids = 1;
  RequestState* state = begin(engine, 0, &params);
  CHECK(memcmp(row, all, row_bytes) == 0);
  free_request_state(engine, state);

  // A caller of version 3 does not know of them.
  memset(row, 0, row_bytes);
  params.struct_size = offsetof(SamplingParams, logits);
  state = begin(engine, 0, &params);
  CHECK(row[0] == 0.0F && argmax(row, vocabulary) == 0);
  free_request_state(engine, state);
  check_all_pages_back(engine);
  free(row);
  free(all);
  free(ring);
  free_engine(engine);
}
