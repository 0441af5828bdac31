// SPDX-License-Identifier: Apache-2.0
// Misuse is an error: models, options, prompts, parameters and handles that are wrong.
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "engine_test.h"

void wrong_models_and_options_are_errors(void) {
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "NULL", init_engine(NULL, 1, 64, 0));
  CHECK_NULL(KOHO_NOT_FOUND, "", init_engine("/nowhere/at/all", 1, 64, 0));
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "max_batch", init_engine(model_dir, -1, 64, 0));
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "context", init_engine(model_dir, 1, -64, 0));
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "context", init_engine(model_dir, 1, 1 << 30, 0));
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "num_gpus", init_engine(model_dir, 1, 64, -1));
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
void an_older_callers_options_are_taken(void) {
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

void a_full_engine_says_so_after_null(void) {
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

void wrong_prompts_and_parameters_are_errors(void) {
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
  const uint32_t sizes[] = {0, 4, sizeof(params) - 4, sizeof(params) + 8, UINT32_MAX};
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
  float logits = 0.0F;
  params = greedy(4);
  params.logits = &logits;
  CHECK_NULL(KOHO_INVALID_ARGUMENT, "logits_rows", prefill(engine, 0, ids, 8, &params));
  params.logits_rows = -1;
  CHECK_ERROR(KOHO_INVALID_ARGUMENT, add_request(engine, 0, ids, 8, &params));
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

void dead_and_foreign_handles_are_errors(void) {
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
