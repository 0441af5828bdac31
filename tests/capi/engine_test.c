// SPDX-License-Identifier: Apache-2.0
// engine.so from C11: both forms give the same tokens, a batch is one step, and every misuse is an
// error. Usage: engine_test MODEL_DIR [GPUS]; prints each test, exits non-zero at the first
// failure.
#include "koho/engine.h"

#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kTokensMax = 64, kPrompts = 4, kPromptLength = 12 };

static const char* model_dir;
static int32_t num_gpus;  // 0: the CPU

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "%s:%d: %s: failed; last error: %s\n", __FILE__, __LINE__, #condition, \
              last_error());                                                                 \
      exit(1);                                                                               \
    }                                                                                        \
  } while (0)

/// `expression` gives `status`, and last_error says why.
#define CHECK_ERROR(status, expression)                                                    \
  do {                                                                                     \
    const int64_t got = (expression);                                                      \
    if (got != (status) || last_error()[0] == '\0') {                                      \
      fprintf(stderr, "%s:%d: %s: gave %lld, expected %d; last error: \"%s\"\n", __FILE__, \
              __LINE__, #expression, (long long)got, (int)(status), last_error());         \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)

/// `expression` gives NULL, last_error_code `status`, and last_error says `text`.
#define CHECK_NULL(status, text, expression)                      \
  do {                                                            \
    CHECK((expression) == NULL);                                  \
    CHECK(strstr(last_error(), text) != NULL || text[0] == '\0'); \
    CHECK(last_error_code() == (status));                         \
  } while (0)

static SamplingParams greedy(int32_t max_tokens) {
  SamplingParams params = {
      .struct_size = sizeof(params), .max_tokens = max_tokens, .ignore_eos = 1};
  return params;
}

static void prompt_of(int which, int64_t* ids) {
  for (int i = 0; i < kPromptLength; ++i) ids[i] = 300 + 37 * which + 11 * i;
}

static EngineHandle* start(int32_t max_batch) {
  // Tokens of different forms are compared, so a GPU must give the same bits in all of them.
  EngineOptions options = {.struct_size = sizeof(options),
                           .max_batch = max_batch,
                           .max_seq = 512,
                           .num_gpus = num_gpus,
                           .deterministic = num_gpus > 0};
  EngineHandle* engine = num_gpus > 0 ? init_engine_ex(model_dir, &options)
                                      : init_engine(model_dir, max_batch, 512, 0);
  CHECK(engine != NULL);
  return engine;
}

static void pause_ms(long ms) {
  const struct timespec time = {.tv_sec = 0, .tv_nsec = ms * 1000000};
  nanosleep(&time, NULL);
}

static RequestState* begin(EngineHandle* engine, int which, const SamplingParams* params) {
  int64_t ids[kPromptLength];
  prompt_of(which, ids);
  RequestState* state = prefill(engine, which, ids, kPromptLength, params);
  CHECK(state != NULL);
  return state;
}

/// The tokens of one prompt, by decode_step.
static int alone(EngineHandle* engine, int which, const SamplingParams* params, int64_t* tokens) {
  RequestState* state = begin(engine, which, params);
  int count = 0;
  int32_t status = KOHO_OK;
  while (status == KOHO_OK) {
    CHECK(count < kTokensMax);
    status = decode_step(engine, state, &tokens[count++]);
  }
  CHECK(status == KOHO_DONE);
  free_request_state(engine, state);
  return count;
}

static void check_all_pages_back(EngineHandle* engine) {
  const int64_t total = get_engine_info(engine, KOHO_INFO_PAGES_TOTAL);
  CHECK(total > 0);
  CHECK(get_engine_info(engine, KOHO_INFO_REQUESTS_LIVE) == 0);
  CHECK(get_engine_info(engine, KOHO_INFO_PAGES_FREE) +
            get_engine_info(engine, KOHO_INFO_PAGES_CACHED) ==
        total);
}

static void both_forms_give_the_same_tokens(void) {
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

static void a_batch_is_one_step(void) {
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

static void more_requests_than_the_batch_holds(void) {
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

static void requests_end(void) {
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

static void a_stop_token_ends_a_request(void) {
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

static void wrong_models_and_options_are_errors(void) {
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "NULL", init_engine(NULL, 1, 64, 0));
  CHECK_NULL(KOHO_NOT_FOUND, "", init_engine("/nowhere/at/all", 1, 64, 0));
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "max_batch", init_engine(model_dir, -1, 64, 0));
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "context", init_engine(model_dir, 1, -64, 0));
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "context", init_engine(model_dir, 1, 1 << 30, 0));
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "num_gpus", init_engine(model_dir, 1, 64, -1));
  CHECK_NULL(KOHO_UNSUPPORTED, "", init_engine(model_dir, 1, 64, 2));  // koho runs on one GPU
  EngineOptions options = {.struct_size = sizeof(options), .max_batch = 1, .max_seq = 64};
  const uint32_t sizes[] = {0, 1, 52, 55, 57, sizeof(options) + 4, 1U << 31};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
    options.struct_size = sizes[i];
    CHECK_NULL(KOHO_UNSUPPORTED, "struct_size", init_engine_ex(model_dir, &options));
  }
  options.struct_size = sizeof(options);
  options.num_ranks = 3;  // does not divide the heads
  CHECK_NULL(KOHO_UNSUPPORTED, "", init_engine_ex(model_dir, &options));
  options.num_ranks = 1;
  options.max_queue = 1 << 18;
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "max_queue", init_engine_ex(model_dir, &options));
  options.max_queue = 0;
  options.kv_pages = -1;
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "pages", init_engine_ex(model_dir, &options));
  EngineHandle* all_defaults = init_engine_ex(model_dir, NULL);
  CHECK(all_defaults != NULL);
  CHECK(get_engine_info(all_defaults, KOHO_INFO_MAX_BATCH) == 64);
  free_engine(all_defaults);
}

/// A caller that was compiled with version 1's header, whose EngineOptions ended after 56 bytes.
static void an_older_callers_options_are_taken(void) {
  const EngineOptions options = {
      .struct_size = 56, .max_batch = 3, .max_seq = 100, .inter_token_ms_max = 50};
  EngineOptions* older = malloc(56);
  CHECK(older != NULL);
  memcpy(older, &options, 56);
  EngineHandle* engine = init_engine_ex(model_dir, older);
  free(older);
  CHECK(engine != NULL);
  CHECK(get_engine_info(engine, KOHO_INFO_MAX_BATCH) == 3);
  CHECK(get_engine_info(engine, KOHO_INFO_MAX_SEQ) == 100);
  free_engine(engine);
}

static void a_full_engine_says_so_after_null(void) {
  EngineOptions options = {
      .struct_size = sizeof(options), .max_batch = 1, .max_seq = 64, .max_queue = 1};
  EngineHandle* engine = init_engine_ex(model_dir, &options);
  CHECK(engine != NULL);
  const int64_t id = 300;
  RequestState* first = prefill(engine, 0, &id, 1, NULL);
  CHECK(first != NULL && prefill(engine, 1, &id, 1, NULL) != NULL);
  CHECK_NULL(KOHO_RESOURCE_EXHAUSTED, "", prefill(engine, 2, &id, 1, NULL));
  free_request_state(engine, first);
  CHECK(prefill(engine, 2, &id, 1, NULL) != NULL);
  free_engine(engine);
}

static void wrong_prompts_and_parameters_are_errors(void) {
  EngineHandle* engine = start(2);
  int64_t ids[600];
  for (int i = 0; i < 600; ++i) ids[i] = 300 + i % 50;
  SamplingParams params = greedy(4);
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "NULL", prefill(engine, 0, NULL, 4, &params));
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "length", prefill(engine, 0, ids, 0, &params));
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "length", prefill(engine, 0, ids, -3, &params));
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "prompt", prefill(engine, 0, ids, 512, &params));
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "prompt", prefill(engine, 0, ids, 600, NULL));
  const int64_t bad_tokens[] = {-1,
                                1LL << 31,
                                1LL << 40,
                                INT64_MIN,
                                INT64_MAX,
                                1 << 30,
                                get_engine_info(engine, KOHO_INFO_VOCAB_SIZE)};
  for (size_t i = 0; i < sizeof(bad_tokens) / sizeof(bad_tokens[0]); ++i) {
    ids[3] = bad_tokens[i];
    CHECK_NULL(KOHO_INVALID_ARGUMENT, "token", prefill(engine, 0, ids, 8, &params));
    CHECK_ERROR(KOHO_INVALID_ARGUMENT, add_request(engine, 0, ids, 8, &params));
  }
  ids[3] = 300;
  const uint32_t sizes[] = {0, 4, sizeof(params) - 8, sizeof(params) + 8, UINT32_MAX};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
    params.struct_size = sizes[i];
    CHECK_NULL(KOHO_UNSUPPORTED, "struct_size", prefill(engine, 0, ids, 8, &params));
    CHECK_ERROR(KOHO_UNSUPPORTED, add_request(engine, 0, ids, 8, &params));
  }
#define REFUSED(field, value)                                                   \
  do {                                                                          \
    SamplingParams wrong = greedy(4);                                           \
    wrong.field = value;                                                        \
    CHECK_ERROR(KOHO_INVALID_ARGUMENT, add_request(engine, 0, ids, 8, &wrong)); \
    CHECK_NULL(KOHO_INVALID_ARGUMENT, "", prefill(engine, 0, ids, 8, &wrong));  \
  } while (0)
  REFUSED(temperature, (double)NAN);
  REFUSED(temperature, 3.0);
  REFUSED(temperature, (double)INFINITY);
  REFUSED(top_p, 1.5);
  REFUSED(top_p, (double)NAN);
  REFUSED(min_p, 2.0);
  REFUSED(repetition_penalty, 9.0);
  REFUSED(frequency_penalty, -3.0);
  REFUSED(presence_penalty, (double)NAN);
  REFUSED(top_k, INT32_MAX);
  REFUSED(max_tokens, -1);
  REFUSED(max_tokens, 600);
  REFUSED(min_tokens, 5);
  REFUSED(min_tokens, -1);
  REFUSED(priority, 8);
  REFUSED(priority, -1);
  REFUSED(deadline_ms, -1);
  REFUSED(num_stop_token_ids, -1);
  REFUSED(num_stop_token_ids, 2);  // with a NULL list
  REFUSED(num_stop_sequences, -1);
  REFUSED(num_stop_sequences, 1);  // with a NULL list
  const int64_t lengths[] = {-1, 0, 1, 17, INT64_MAX};
  for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); ++i) {
    params = greedy(4);
    params.stop_sequences = &lengths[i];
    params.num_stop_sequences = 1;
    CHECK_NULL(KOHO_INVALID_ARGUMENT, "stop sequence", prefill(engine, 0, ids, 8, &params));
  }
  TokenEvent event;
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, poll_requests(engine, NULL, 1, 0));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, poll_requests(engine, &event, 0, 0));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, poll_requests(engine, &event, -1, 0));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, get_engine_info(engine, -1));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, get_engine_info(engine, 1000));
  check_all_pages_back(engine);
  free_engine(engine);
}

static void check_dead_engine(EngineHandle* engine) {
  int64_t id = 300;
  int64_t token;
  uint8_t done;
  TokenEvent event;
  RequestState* state = NULL;
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "engine", prefill(engine, 0, &id, 1, NULL));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, decode_step(engine, NULL, &token));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, run_batch_decode(engine, &state, 1, &token, &done));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, add_request(engine, 0, &id, 1, NULL));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, poll_requests(engine, &event, 1, 0));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, cancel_request(engine, 0));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, get_engine_info(engine, KOHO_INFO_NUM_LAYERS));
  free_request_state(engine, NULL);
  free_engine(engine);
}

static void dead_and_foreign_handles_are_errors(void) {
  EngineHandle* engine = start(2);
  EngineHandle* other = start(2);
  const SamplingParams params = greedy(9);
  RequestState* state = begin(engine, 0, &params);
  RequestState* foreign = begin(other, 0, &params);
  int64_t tokens[2];
  uint8_t done[2];
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, decode_step(engine, foreign, tokens));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, decode_step(other, state, tokens));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, decode_step(engine, NULL, tokens));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, decode_step(engine, (RequestState*)engine, tokens));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, decode_step((EngineHandle*)state, state, tokens));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, decode_step(engine, (RequestState*)tokens, tokens));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, decode_step(engine, state, NULL));
  RequestState* mixed[2] = {state, foreign};
  RequestState* twice[2] = {state, state};
  RequestState* missing[2] = {state, NULL};
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, run_batch_decode(engine, mixed, 2, tokens, done));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, run_batch_decode(engine, twice, 2, tokens, done));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, run_batch_decode(engine, missing, 2, tokens, done));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, run_batch_decode(engine, NULL, 2, tokens, done));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, run_batch_decode(engine, mixed, -1, tokens, done));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, run_batch_decode(engine, mixed, 2, NULL, done));
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, run_batch_decode(engine, mixed, 2, tokens, NULL));
  CHECK(run_batch_decode(engine, NULL, 0, NULL, NULL) == KOHO_OK);
  free_request_state(engine, foreign);  // an error: it goes on
  CHECK(decode_step(other, foreign, tokens) == KOHO_OK);
  CHECK(decode_step(engine, state, tokens) == KOHO_OK);  // nothing was lost by the refusals

  free_request_state(engine, state);
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, decode_step(engine, state, tokens));
  free_request_state(engine, state);
  RequestState* next = begin(engine, 1, &params);  // at the same place
  CHECK(next != state);
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, decode_step(engine, state, tokens));
  CHECK(decode_step(engine, next, tokens) == KOHO_OK);

  free_engine(engine);
  check_dead_engine(engine);
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, decode_step(engine, next, tokens));
  EngineHandle* again = start(1);  // at the same place
  CHECK(again != engine);
  check_dead_engine(engine);
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, decode_step(again, next, tokens));
  free_engine(again);
  free_engine(other);
  check_dead_engine(NULL);
  check_dead_engine((EngineHandle*)&tokens);
  check_dead_engine((EngineHandle*)(uintptr_t)0xE500000000000000ULL);
  check_dead_engine((EngineHandle*)(uintptr_t)UINT64_MAX);
}

typedef struct Shared {
  EngineHandle* engine;
  RequestState* state;
  pthread_mutex_t mutex;
  int tokens;
  int refused;
  int ended;
} Shared;

static void* decode_with_others(void* argument) {
  Shared* shared = argument;
  while (1) {
    int64_t token;
    const int32_t status = decode_step(shared->engine, shared->state, &token);
    CHECK(pthread_mutex_lock(&shared->mutex) == 0);
    if (status >= 0) {
      CHECK(token >= 0);
      ++shared->tokens;
    } else {
      CHECK(status == KOHO_UNAVAILABLE || status == KOHO_INVALID_ARGUMENT);
      CHECK(last_error()[0] != '\0');
      if (status == KOHO_UNAVAILABLE) ++shared->refused;
    }
    if (status == KOHO_DONE) shared->ended = 1;
    const int ended = shared->ended;
    CHECK(pthread_mutex_unlock(&shared->mutex) == 0);
    if (ended) return NULL;
  }
}

static void two_threads_on_one_state_get_each_token_once(void) {
  Shared shared = {.engine = start(2)};
  CHECK(pthread_mutex_init(&shared.mutex, NULL) == 0);
  const SamplingParams params = greedy(100);
  shared.state = begin(shared.engine, 0, &params);
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i)
    CHECK(pthread_create(&threads[i], NULL, decode_with_others, &shared) == 0);
  for (int i = 0; i < 2; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(shared.tokens == 100);
  CHECK(shared.refused > 0);
  CHECK(pthread_mutex_destroy(&shared.mutex) == 0);
  free_engine(shared.engine);
}

static void* decode_until_an_error(void* argument) {
  Shared* shared = argument;
  int64_t token;
  int32_t status = KOHO_OK;
  while (status >= 0) status = decode_step(shared->engine, shared->state, &token);
  return last_error()[0] != '\0' ? argument : NULL;
}

static void* submit_until_an_error(void* argument) {
  Shared* shared = argument;
  int64_t ids[kPromptLength];
  prompt_of(1, ids);
  const SamplingParams params = greedy(3);
  while (1) {
    RequestState* state = prefill(shared->engine, 1, ids, kPromptLength, &params);
    if (state == NULL) return last_error()[0] != '\0' ? argument : NULL;
    free_request_state(shared->engine, state);
  }
}

static void* poll_until_an_error(void* argument) {
  Shared* shared = argument;
  int64_t ids[kPromptLength];
  prompt_of(2, ids);
  const SamplingParams params = greedy(5);
  for (int64_t id = 0;; ++id) {
    if (add_request(shared->engine, id, ids, kPromptLength, &params) < 0) break;
    TokenEvent events[8];
    if (poll_requests(shared->engine, events, 8, 1000) < 0) break;
  }
  return last_error()[0] != '\0' ? argument : NULL;
}

static void an_engine_is_freed_under_its_callers(void) {
  for (int round = 0; round < 5; ++round) {
    Shared shared = {.engine = start(3)};
    SamplingParams params = greedy(500);
    shared.state = begin(shared.engine, 0, &params);
    void* (*const bodies[3])(void*) = {decode_until_an_error, submit_until_an_error,
                                       poll_until_an_error};
    pthread_t threads[3];
    for (int i = 0; i < 3; ++i) CHECK(pthread_create(&threads[i], NULL, bodies[i], &shared) == 0);
    pause_ms(3 + 7 * round);
    free_engine(shared.engine);
    for (int i = 0; i < 3; ++i) {
      void* result = NULL;
      CHECK(pthread_join(threads[i], &result) == 0);
      CHECK(result == &shared);
    }
  }
}

static void numbers_of_the_engine_are_the_models(void) {
  EngineOptions options = {
      .struct_size = sizeof(options), .max_batch = 3, .max_seq = 100, .kv_pages = 40};
  EngineHandle* engine = init_engine_ex(model_dir, &options);
  CHECK(engine != NULL);
  CHECK(get_engine_info(engine, KOHO_INFO_ABI_VERSION) == KOHO_ABI_VERSION);
  CHECK(get_engine_info(engine, KOHO_INFO_MAX_BATCH) == 3);
  CHECK(get_engine_info(engine, KOHO_INFO_MAX_SEQ) == 100);
  CHECK(get_engine_info(engine, KOHO_INFO_PAGES_TOTAL) == 40);
  CHECK(get_engine_info(engine, KOHO_INFO_NUM_RANKS) == 1);
  CHECK(get_engine_info(engine, KOHO_INFO_LOAD_US) > 0);
  for (int32_t info = KOHO_INFO_NUM_LAYERS; info <= KOHO_INFO_EXPERTS_PER_TOKEN; ++info)
    CHECK(get_engine_info(engine, info) > 0);
  CHECK(get_engine_info(engine, KOHO_INFO_KV_BYTES) ==
        40 * get_engine_info(engine, KOHO_INFO_PAGE_TOKENS) *
            get_engine_info(engine, KOHO_INFO_KV_BYTES_PER_TOKEN));
  for (int32_t info = KOHO_INFO_RUNNING; info <= KOHO_INFO_PREEMPTIONS; ++info)
    CHECK(get_engine_info(engine, info) == 0);
  free_engine(engine);
}

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    fprintf(stderr, "usage: engine_test MODEL_DIR [GPUS]\n");
    return 2;
  }
  model_dir = argv[1];
  num_gpus = argc == 3 ? atoi(argv[2]) : 0;
  CHECK(last_error()[0] == '\0' && last_error_code() == KOHO_OK);
  static const struct {
    const char* name;
    void (*run)(void);
  } tests[] = {
#define TEST(name) {#name, name}
      TEST(both_forms_give_the_same_tokens),
      TEST(a_batch_is_one_step),
      TEST(more_requests_than_the_batch_holds),
      TEST(requests_end),
      TEST(a_stop_token_ends_a_request),
      TEST(wrong_models_and_options_are_errors),
      TEST(an_older_callers_options_are_taken),
      TEST(a_full_engine_says_so_after_null),
      TEST(wrong_prompts_and_parameters_are_errors),
      TEST(dead_and_foreign_handles_are_errors),
      TEST(two_threads_on_one_state_get_each_token_once),
      TEST(an_engine_is_freed_under_its_callers),
      TEST(numbers_of_the_engine_are_the_models),
  };
  for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); ++i) {
    tests[i].run();
    printf("ok %s\n", tests[i].name);
    fflush(stdout);
  }
  return 0;
}
