// SPDX-License-Identifier: Apache-2.0
// engine.so from C11: both forms give the same tokens, a batch is one step, and every misuse is an
// error. Usage: engine_test MODEL_DIR [GPUS]; prints each test, exits non-zero at the first
// failure.
#include "engine_test.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

const char* model_dir;
int32_t num_gpus;

SamplingParams greedy(int32_t max_tokens) {
  SamplingParams params = {
      .struct_size = sizeof(params), .max_tokens = max_tokens, .ignore_eos = 1};
  return params;
}

void prompt_of(int which, int64_t* ids) {
  for (int i = 0; i < kPromptLength; ++i) ids[i] = 300 + 37 * which + 11 * i;
}

EngineHandle* start(int32_t max_batch) {
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

void pause_ms(long ms) {
  const struct timespec time = {.tv_sec = 0, .tv_nsec = ms * 1000000};
  nanosleep(&time, NULL);
}

RequestState* begin(EngineHandle* engine, int which, const SamplingParams* params) {
  int64_t ids[kPromptLength];
  prompt_of(which, ids);
  RequestState* state = prefill(engine, which, ids, kPromptLength, params);
  CHECK(state != NULL);
  return state;
}

/// The tokens of one prompt, by decode_step.
int alone(EngineHandle* engine, int which, const SamplingParams* params, int64_t* tokens) {
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

void check_all_pages_back(EngineHandle* engine) {
  const int64_t total = get_engine_info(engine, KOHO_INFO_PAGES_TOTAL);
  CHECK(total > 0);
  CHECK(get_engine_info(engine, KOHO_INFO_REQUESTS_LIVE) == 0);
  CHECK(get_engine_info(engine, KOHO_INFO_PAGES_FREE) +
            get_engine_info(engine, KOHO_INFO_PAGES_CACHED) ==
        total);
}

void numbers_of_the_engine_are_the_models(void) {
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
      TEST(logits_are_what_each_token_was_sampled_from),
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
