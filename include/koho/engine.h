// SPDX-License-Identifier: Apache-2.0
// The C interface of koho: a model directory in, token ids or text out. build/engine.so exports
// exactly the functions below.
//
// Three forms over one engine, free to mix: the same request gives the same tokens in each.
//   asynchronous  add_request, poll_requests, cancel_request: the engine batches whatever is
//                 there, and goes on until a slow reader is some 64 tokens behind.
//   synchronous   prefill, decode_step, run_batch_decode, free_request_state: a request computes
//                 only what is asked for, and waits in between. While it waits its cache pages
//                 (and its place in the batch) may go to others; it then computes them again.
//   endpoints     post_request, read_response, cancel_response: the bodies and answers of
//                 `koho serve`, so chats, tools and text; needs a tokenizer.json.
//
// Handles are opaque values, never addresses: a freed, foreign or invented one is an error, not a
// crash. Threads: any thread may call any function with any handle at any time. Calls on one
// engine run side by side; a request state serves one call at a time and poll_requests one caller
// at a time, a second one gets KOHO_UNAVAILABLE. Every call made in a child process of fork() on an
// engine of the parent fails.
//
// Errors: a function that returns a number returns a negative KohoStatus, one that returns a handle
// NULL; last_error() says why, last_error_code() which KohoStatus it is. No exception crosses this
// boundary. Arrays are only read, or written, during the call; nothing that is passed in is kept.
#ifndef KOHO_ENGINE_H
#define KOHO_ENGINE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KOHO_API __attribute__((visibility("default")))
#else
#define KOHO_API
#endif

/// An engine: a model in memory and the threads that compute. Made by init_engine, ended by
/// free_engine.
typedef struct EngineHandle EngineHandle;
/// A request of the synchronous form. Made by prefill, ended by free_request_state, or with its
/// engine.
typedef struct RequestState RequestState;

typedef enum KohoStatus {
  KOHO_OK = 0,
  KOHO_DONE = 1,  // of decode_step: this token was the last
  KOHO_INVALID_ARGUMENT = -1,
  KOHO_NOT_FOUND = -2,
  KOHO_CORRUPT_DATA = -3,
  KOHO_UNSUPPORTED = -4,
  KOHO_RESOURCE_EXHAUSTED = -5,  // memory, descriptors, threads, a full queue
  KOHO_UNAVAILABLE = -6,         // in use by another thread, or shutting down
  KOHO_CANCELLED = -7,
  KOHO_DEADLINE_EXCEEDED = -8,
  KOHO_IO_ERROR = -9,
  KOHO_DEVICE_ERROR = -10,
  KOHO_INTERNAL = -11
} KohoStatus;

/// How the next token is drawn and when the request ends. struct_size must be
/// sizeof(SamplingParams), of this header or of an earlier version's; with everything else zero
/// this is greedy decoding to the end of the context, and a NULL in its place means what the
/// model's generation_config.json advises.
typedef struct SamplingParams {
  uint32_t struct_size;
  int32_t max_tokens;         // 0: as many as max_seq has room for
  int32_t min_tokens;         // no stop token before so many
  int32_t ignore_eos;         // not 0: the model's own stop tokens do not end the request
  double temperature;         // 0: greedy; to 2; negative: the model's advice
  double top_p;               // (0, 1]; 0: off; negative: the model's advice
  double min_p;               // [0, 1]; 0: off; negative: the model's advice
  double repetition_penalty;  // (0, 2]; 0: off; negative: the model's advice
  double frequency_penalty;   // [-2, 2]
  double presence_penalty;    // [-2, 2]
  int32_t top_k;              // 0: off; negative: the model's advice
  int32_t use_seed;           // not 0: draw with `seed`; else each request with its own
  int64_t seed;
  const int64_t* stop_token_ids;  // further tokens that end the request, or NULL
  int32_t num_stop_token_ids;
  int32_t logprobs;        // not 0: TokenEvent.logprob is filled in
  int32_t priority;        // 0..7, 0 is served first
  int32_t deadline_ms;     // after which the request fails; 0: none
  uint64_t cache_salt[2];  // prompts share cached pages under equal salts only
  // Version 3:
  const int64_t* stop_sequences;  // tokens that end the request in this order, one sequence behind
                                  // the other, each after its length (2..16); or NULL
  int32_t num_stop_sequences;
  // Version 5:
  int32_t logits_rows;  // of `logits`, 1 or more
  float* logits;  // [logits_rows, KOHO_INFO_VOCAB_SIZE] of the caller, or NULL: the logits that
                  // each token was sampled from, before bias, penalties, temperature and masks
} SamplingParams;

/// What init_engine_ex can choose beside init_engine's. struct_size must be sizeof(EngineOptions),
/// of this header or of an earlier version's; zeros mean the default.
typedef struct EngineOptions {
  uint32_t struct_size;
  int32_t max_batch;           // requests in one step; 64
  int32_t max_seq;             // tokens of prompt and answer together; what the model has
  int32_t num_gpus;            // 0: the CPU; else GPUs 0 to num_gpus-1
  int32_t num_ranks;           // that share the model; as many as GPUs, on the CPU 1
  int32_t num_threads;         // of the CPU, all ranks together; one a core
  int32_t slice_experts;       // not 0: every rank holds a slice of every expert, not whole ones
  int32_t dp_attention;        // not 0: requests are divided over the ranks, not heads
  int32_t kv_pages;            // of 64 tokens; what max_batch needs, within a quarter of memory
  int32_t kv_fp8;              // not 0: the cache in FP8 instead of BF16
  int32_t no_prefix_cache;     // not 0: equal prompt beginnings are computed again
  int32_t prefill_chunk;       // prompt tokens in one step; by device
  int32_t max_queue;           // requests accepted beside those that run; 1024
  int32_t inter_token_ms_max;  // prefill beside running requests is cut, to 16 tokens a step at
                               // least, so that their tokens come at least so often; no bound
  // Version 2:
  int32_t deterministic;  // 1: of GPUs, a request has the same bits whatever runs beside it and
                          // however its prompt is cut into steps, as the CPU always gives; -1: it
                          // need not; 0: where that costs little, on Hopper
  // Version 4:
  int32_t executor;        // a KohoExecutor
  const int32_t* devices;  // with num_gpus: the GPU of each rank, or one for all; or NULL
  int32_t num_devices;
  int32_t step_deadline_ms;  // a step that takes longer is a hang; by device
  const char* worker;        // the program of worker processes; NULL: `koho` beside engine.so
} EngineOptions;

/// Where the ranks run.
typedef enum KohoExecutor {
  KOHO_EXECUTOR_AUTO = 0,     // processes on GPUs, threads on the CPU
  KOHO_EXECUTOR_PROCESS = 1,  // processes of their own, started anew when one fails
  KOHO_EXECUTOR_THREAD = 2    // threads of this process
} KohoExecutor;

/// Opens a model directory (config.json, safetensors files), places its weights and starts the
/// engine's threads. Returns the engine, which the caller owns, or NULL.
///
/// max_batch, max_seq: 0 = default (EngineOptions). num_gpus: 0 = the CPU, else the first GPUs, a
/// rank on each. GPUs are driven by worker processes, which end with the engine, and at once if
/// this process ends; this process opens none.
/// Errors: not_found, io_error, corrupt_data, unsupported (the files; a device this build lacks),
/// invalid_argument (a number), resource_exhausted (memory, threads; 64 engines a process). Nothing
/// is left behind on failure.
KOHO_API EngineHandle* init_engine(const char* model_dir,
                                   int32_t max_batch,
                                   int32_t max_seq,
                                   int32_t num_gpus);

/// init_engine with every option. NULL options: all defaults.
KOHO_API EngineHandle* init_engine_ex(const char* model_dir, const EngineOptions* options);

/// Submits a prompt of n tokens and waits until it is computed and the first token is sampled.
/// Returns the request's state, which the caller frees with free_request_state, or NULL.
///
/// request_id is the caller's name for it, used in messages and by cancel_request; it need not be
/// unique here. params may be NULL. Row 0 of params->logits is the first token's when this returns;
/// the call that delivers the i-th token writes row i % logits_rows. No other call writes there.
/// Errors: invalid_argument (handle, tokens, n, params), resource_exhausted (max_batch + max_queue
/// requests exist), cancelled, deadline_exceeded, device_error, unavailable.
KOHO_API RequestState* prefill(EngineHandle* engine,
                               int64_t request_id,
                               const int64_t* token_ids,
                               int32_t n,
                               const SamplingParams* params);

/// Delivers the next token of a request: the first comes from prefill, every further one is
/// computed by this call.
///
/// Returns KOHO_OK; KOHO_DONE: *out_token is the last one (a stop token, max_tokens or the end of
/// the context); or an error. After KOHO_DONE or an error of the request itself, and on a state
/// that ended: invalid_argument. *out_token is -1 on error.
KOHO_API int32_t decode_step(EngineHandle* engine, RequestState* state, int64_t* out_token);

/// decode_step for n requests together: one step of the engine computes the tokens of all of them
/// (as many as max_batch and the cache hold; more take several steps). Requests whose token of
/// prefill was not delivered yet get that one.
///
/// out_tokens[i], out_done[i]: the token of states[i], and 1 if it was the last. A state that has
/// ended before gets -1 and 1: finished requests may stay in the list.
/// Returns KOHO_OK, or the first error of a request, whose token is -1 and done 1, while the
/// others' are valid. Errors of the call, with nothing computed and the arrays untouched:
/// invalid_argument (a pointer, n < 0, a handle, a state given twice), unavailable (a state is in
/// use).
KOHO_API int32_t run_batch_decode(
    EngineHandle* engine, RequestState** states, int32_t n, int64_t* out_tokens, uint8_t* out_done);

/// Ends a request: it leaves the batch and its cache pages are given back when this returns. A call
/// that waits for it elsewhere gets KOHO_CANCELLED. A handle that is not valid (NULL, freed)
/// changes nothing but last_error().
KOHO_API void free_request_state(EngineHandle* engine, RequestState* state);

/// How a request of the asynchronous form ended.
typedef enum KohoFinish {
  KOHO_FINISH_NONE = 0,
  KOHO_FINISH_STOP = 1,    // a stop token, which is `token`
  KOHO_FINISH_LENGTH = 2,  // max_tokens, or the end of the context
  KOHO_FINISH_CANCELLED = 3,
  KOHO_FINISH_ERROR = 4
} KohoFinish;

/// One token of a request, or its end.
typedef struct TokenEvent {
  int64_t request_id;
  int64_t token;          // -1: none (cancelled, failed)
  int32_t finish;         // a KohoFinish; with any but NONE this is the request's last event
  int32_t status;         // KOHO_OK, or with KOHO_FINISH_ERROR the KohoStatus
  int32_t cached_tokens;  // of the prompt, found computed; with the last event
  float logprob;          // of the token, if params.logprobs asked for it
} TokenEvent;

/// Submits a prompt and returns at once. Its tokens come out of poll_requests under request_id,
/// which must differ from those of all requests added and not ended.
/// Returns KOHO_OK. Errors: invalid_argument, resource_exhausted (the queue is full), unavailable.
KOHO_API int32_t add_request(EngineHandle* engine,
                             int64_t request_id,
                             const int64_t* token_ids,
                             int32_t n,
                             const SamplingParams* params);

/// Takes up to `capacity` events of all added requests, each request's in order, and waits for the
/// first one up to timeout_ms (0: not at all; negative: as long as a request is live). (Named so
/// because `poll` is POSIX's.) Of a request with params->logits at most logits_rows events, whose
/// rows it writes as decode_step does.
/// Returns the number of events; 0: none came in time, or no request is live. Errors:
/// invalid_argument, unavailable (another thread polls this engine, or it is being freed).
KOHO_API int32_t poll_requests(EngineHandle* engine,
                               TokenEvent* events,
                               int32_t capacity,
                               int32_t timeout_ms);

/// Cancels every live request of this id, of either form: it ends as cancelled within one step
/// and gives its pages back; an added one still gets its last event.
/// Returns KOHO_OK. Errors: not_found (none is live).
KOHO_API int32_t cancel_request(EngineHandle* engine, int64_t request_id);

/// Begins a request to a POST endpoint of the HTTP API, such as "/v1/chat/completions", with its
/// JSON body of body_bytes bytes (docs/server.md). Its answer comes out of read_response under
/// request_id, which must differ from those of all requests posted and not ended. Keys, rate limits
/// and headers are the server's and play no part here.
/// Returns KOHO_OK; what is wrong with the body is the answer. Errors: not_found (the path),
/// invalid_argument, unavailable.
KOHO_API int32_t post_request(EngineHandle* engine,
                              int64_t request_id,
                              const char* path,
                              const char* body,
                              int64_t body_bytes);

/// Takes up to `capacity` next bytes of a request's answer, one JSON object, or server-sent events
/// if the body asks for a stream. Waits for the first byte up to timeout_ms (0: not at all;
/// negative: as long as it takes).
///
/// *out_status is 0 until these are the answer's last bytes; then it is the answer's HTTP status
/// and the request is forgotten.
/// Returns the number of bytes; 0 with *out_status 0: none came in time. Errors: not_found (no such
/// request), invalid_argument, cancelled, unavailable (another thread reads it).
KOHO_API int64_t read_response(EngineHandle* engine,
                               int64_t request_id,
                               char* buffer,
                               int64_t capacity,
                               int32_t timeout_ms,
                               int32_t* out_status);

/// Cancels a request of post_request and forgets it. Returns KOHO_OK. Errors: not_found.
KOHO_API int32_t cancel_response(EngineHandle* engine, int64_t request_id);

/// What get_engine_info tells. Counters are since the start.
typedef enum KohoInfo {
  KOHO_INFO_ABI_VERSION = 0,  // of this header: KOHO_ABI_VERSION
  KOHO_INFO_NUM_LAYERS = 1,
  KOHO_INFO_HIDDEN_SIZE = 2,
  KOHO_INFO_VOCAB_SIZE = 3,
  KOHO_INFO_NUM_EXPERTS = 4,
  KOHO_INFO_EXPERTS_PER_TOKEN = 5,
  KOHO_INFO_NUM_RANKS = 6,
  KOHO_INFO_MAX_BATCH = 7,
  KOHO_INFO_MAX_SEQ = 8,             // what was asked for, or what the pages of one request hold
  KOHO_INFO_KV_BYTES_PER_TOKEN = 9,  // all ranks together
  KOHO_INFO_KV_BYTES = 10,           // allocated, all ranks together
  KOHO_INFO_PAGE_TOKENS = 11,
  KOHO_INFO_PAGES_TOTAL = 12,
  KOHO_INFO_PAGES_FREE = 13,
  KOHO_INFO_PAGES_CACHED = 14,  // idle, kept for prompts that begin alike; taken when needed
  KOHO_INFO_RUNNING = 15,       // requests in the batch
  KOHO_INFO_WAITING = 16,       // requests that have no place yet
  KOHO_INFO_REQUESTS_LIVE = 17,
  KOHO_INFO_STEPS = 18,
  KOHO_INFO_DECODE_STEPS = 19,  // steps with a decoded row …
  KOHO_INFO_DECODE_ROWS = 20,   // … and these rows: their quotient is the average batch
  KOHO_INFO_LARGEST_BATCH = 21,
  KOHO_INFO_PROMPT_TOKENS = 22,
  KOHO_INFO_CACHED_TOKENS = 23,  // of these, found computed
  KOHO_INFO_SAMPLED_TOKENS = 24,
  KOHO_INFO_PREEMPTIONS = 25,
  KOHO_INFO_LOAD_US = 26  // how long init_engine took
} KohoInfo;

#define KOHO_ABI_VERSION 5

/// One number about the engine. All that was delivered or ended before this call is counted; it
/// waits for the step under way, if there is one. Errors: invalid_argument (handle, info).
KOHO_API int64_t get_engine_info(EngineHandle* engine, int32_t info);

/// Ends all requests, ends its threads and gives back all memory before it returns. Calls that
/// wait on this engine elsewhere get KOHO_UNAVAILABLE; its request states are no longer valid. A
/// handle that is not valid (NULL, freed) changes nothing but last_error().
KOHO_API void free_engine(EngineHandle* engine);

/// What went wrong in this thread's last call that failed: a text of at most 1023 bytes, empty if
/// none has. It belongs to koho and lasts until this thread's next failing call.
KOHO_API const char* last_error(void);

/// The KohoStatus of this thread's last call that failed, KOHO_OK if none has: for init_engine and
/// prefill, which return NULL, what the others return as a number.
KOHO_API int32_t last_error_code(void);

#ifdef __cplusplus
}
#endif

#endif  // KOHO_ENGINE_H
