// SPDX-License-Identifier: Apache-2.0
// Several threads on one engine, one state, and an engine that is freed under its callers.
#include <pthread.h>
#include <string.h>

#include "engine_test.h"

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

void two_threads_on_one_state_get_each_token_once(void) {
  Shared shared = {.engine = start(2)};
  CHECK(pthread_mutex_init(&shared.mutex, NULL) == 0);
  const SamplingParams params = greedy(100);
  // Again where one thread got no core before the other had all tokens.
  for (int round = 0; round < 50 && shared.refused == 0; ++round) {
    shared.tokens = 0;
    shared.ended = 0;
    shared.state = begin(shared.engine, 0, &params);
    pthread_t threads[2];
    for (int i = 0; i < 2; ++i)
      CHECK(pthread_create(&threads[i], NULL, decode_with_others, &shared) == 0);
    for (int i = 0; i < 2; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(shared.tokens == 100);
    free_request_state(shared.engine, shared.state);
  }
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

void an_engine_is_freed_under_its_callers(void) {
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
