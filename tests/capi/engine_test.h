// SPDX-License-Identifier: Apache-2.0
// What the files of engine_test share: checks that end the program, and requests of fixed prompts.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "koho/engine.h"

enum { kTokensMax = 64, kPrompts = 4, kPromptLength = 12 };

extern const char* model_dir;
extern int32_t num_gpus;  // 0: the CPU

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

SamplingParams greedy(int32_t max_tokens);
void prompt_of(int which, int64_t* ids);
EngineHandle* start(int32_t max_batch);
void pause_ms(long ms);
RequestState* begin(EngineHandle* engine, int which, const SamplingParams* params);
/// The tokens of one prompt, by decode_step.
int alone(EngineHandle* engine, int which, const SamplingParams* params, int64_t* tokens);
void check_all_pages_back(EngineHandle* engine);

// The tests, in the order in which they run.
void both_forms_give_the_same_tokens(void);
void a_batch_is_one_step(void);
void more_requests_than_the_batch_holds(void);
void requests_end(void);
void a_stop_token_ends_a_request(void);
void logits_are_what_each_token_was_sampled_from(void);
void wrong_models_and_options_are_errors(void);
void an_older_callers_options_are_taken(void);
void a_full_engine_says_so_after_null(void);
void wrong_prompts_and_parameters_are_errors(void);
void dead_and_foreign_handles_are_errors(void);
void two_threads_on_one_state_get_each_token_once(void);
void an_engine_is_freed_under_its_callers(void);
void numbers_of_the_engine_are_the_models(void);
