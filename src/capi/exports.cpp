// SPDX-License-Identifier: Apache-2.0
// The functions of koho/engine.h. Each checks pointers, looks handles up, and keeps its error for
// last_error. Only here are exceptions caught: where the system refuses memory or a thread, the
// caller gets a status.
#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <system_error>
#include <utility>

#include "capi/engine_table.h"
#include "capi/instance.h"
#include "capi/parameters.h"
#include "koho/engine.h"

namespace koho::capi {
namespace {

// A fixed buffer and no std::string: keeping an error must not allocate.
thread_local std::array<char, 1024> last_message{};
thread_local std::int32_t last_status = KOHO_OK;

std::int32_t keep(std::int32_t status, std::string_view message) {
  const std::size_t length = std::min(message.size(), last_message.size() - 1);
  std::memcpy(last_message.data(), message.data(), length);
  last_message[length] = '\0';
  last_status = status;
  return status;
}

bool is_exhaustion(const std::error_code& code) {
  return code == std::errc::resource_unavailable_try_again ||
         code == std::errc::not_enough_memory || code == std::errc::too_many_files_open ||
         code == std::errc::too_many_files_open_in_system;
}

/// KOHO_OK if `body` succeeds, else its error, kept for last_error and last_error_code.
template <typename Body>
std::int32_t guarded(Body&& body) noexcept {
  try {
    const Status status = body();
    if (status.ok()) return KOHO_OK;
    return keep(error_code_info(status.error().code).c_status, status.error().message);
  } catch (const std::bad_alloc&) {
    return keep(KOHO_RESOURCE_EXHAUSTED, "out of memory");
  } catch (const std::system_error& error) {
    return keep(is_exhaustion(error.code()) ? KOHO_RESOURCE_EXHAUSTED : KOHO_INTERNAL,
                error.what());
  } catch (const std::exception& error) {
    return keep(KOHO_INTERNAL, error.what());
  } catch (...) {
    return keep(KOHO_INTERNAL, "an unknown exception");
  }
}

std::uintptr_t number(const void* handle) {
  return reinterpret_cast<std::uintptr_t>(handle);
}

Result<Instance::Call> enter(const EngineHandle* engine) {
  KOHO_TRY_ASSIGN(std::shared_ptr<Instance> instance, engines().find(number(engine)));
  return Instance::enter(std::move(instance));
}

/// `count` elements of a caller's array. Errors: invalid_argument.
template <typename T>
Result<std::span<T>> array(const char* name, T* data, std::int32_t count, std::int32_t least) {
  if (count < least)
    return make_error(ErrorCode::invalid_argument, "the length of {} must be {} or more, found {}",
                      name, least, count);
  if (data == nullptr && count > 0)
    return make_error(ErrorCode::invalid_argument, "{} is NULL", name);
  return std::span<T>(data, static_cast<std::size_t>(count));
}

Result<NewRequest> request_of(const Instance::Call& call,
                              const std::int64_t* token_ids,
                              std::int32_t n,
                              const SamplingParams* params) {
  KOHO_TRY_ASSIGN(const std::span<const std::int64_t> prompt, array("token_ids", token_ids, n, 1));
  return make_request(call->runtime(), prompt, params);
}

}  // namespace
}  // namespace koho::capi

using koho::ErrorCode;
using koho::make_error;
using koho::Status;
using koho::capi::guarded;
namespace capi = koho::capi;

extern "C" {

EngineHandle* init_engine(const char* model_dir,
                          int32_t max_batch,
                          int32_t max_seq,
                          int32_t num_gpus) {
  EngineOptions options{};
  options.struct_size = sizeof(options);
  options.max_batch = max_batch;
  options.max_seq = max_seq;
  options.num_gpus = num_gpus;
  return init_engine_ex(model_dir, &options);
}

EngineHandle* init_engine_ex(const char* model_dir, const EngineOptions* options) {
  std::uintptr_t handle = 0;
  guarded([&]() -> Status {
    if (model_dir == nullptr) return make_error(ErrorCode::invalid_argument, "model_dir is NULL");
    KOHO_TRY_ASSIGN(const koho::RuntimeOptions runtime, capi::runtime_options(options));
    KOHO_TRY_ASSIGN(const std::shared_ptr<capi::Instance> instance,
                    capi::Instance::start(model_dir, runtime));
    KOHO_TRY_ASSIGN(handle, capi::engines().insert(instance));
    instance->set_handle(handle);
    return {};
  });
  return reinterpret_cast<EngineHandle*>(handle);
}

RequestState* prefill(EngineHandle* engine,
                      int64_t request_id,
                      const int64_t* token_ids,
                      int32_t n,
                      const SamplingParams* params) {
  std::uintptr_t handle = 0;
  guarded([&]() -> Status {
    KOHO_TRY_ASSIGN(const capi::Instance::Call call, capi::enter(engine));
    KOHO_TRY_ASSIGN(capi::NewRequest request, capi::request_of(call, token_ids, n, params));
    KOHO_TRY_ASSIGN(handle, call->prefill(request_id, std::move(request)));
    return {};
  });
  return reinterpret_cast<RequestState*>(handle);
}

int32_t decode_step(EngineHandle* engine, RequestState* state, int64_t* out_token) {
  if (out_token != nullptr) *out_token = -1;
  bool last = false;
  const int32_t status = guarded([&]() -> Status {
    if (out_token == nullptr) return make_error(ErrorCode::invalid_argument, "out_token is NULL");
    KOHO_TRY_ASSIGN(const capi::Instance::Call call, capi::enter(engine));
    KOHO_TRY_ASSIGN(const capi::Step step, call->decode(capi::number(state)));
    *out_token = step.token;
    last = step.last;
    return {};
  });
  return status == KOHO_OK && last ? KOHO_DONE : status;
}

int32_t run_batch_decode(EngineHandle* engine,
                         RequestState** states,
                         int32_t n,
                         int64_t* out_tokens,
                         uint8_t* out_done) {
  return guarded([&]() -> Status {
    KOHO_TRY_ASSIGN(const capi::Instance::Call call, capi::enter(engine));
    KOHO_TRY_ASSIGN(const std::span<RequestState*> all, capi::array("states", states, n, 0));
    KOHO_TRY_ASSIGN(const std::span<int64_t> tokens, capi::array("out_tokens", out_tokens, n, 0));
    KOHO_TRY_ASSIGN(const std::span<uint8_t> done, capi::array("out_done", out_done, n, 0));
    return call->decode_batch(all, tokens, done);
  });
}

void free_request_state(EngineHandle* engine, RequestState* state) {
  guarded([&]() -> Status {
    KOHO_TRY_ASSIGN(const capi::Instance::Call call, capi::enter(engine));
    return call->free_request(capi::number(state));
  });
}

int32_t add_request(EngineHandle* engine,
                    int64_t request_id,
                    const int64_t* token_ids,
                    int32_t n,
                    const SamplingParams* params) {
  return guarded([&]() -> Status {
    KOHO_TRY_ASSIGN(const capi::Instance::Call call, capi::enter(engine));
    KOHO_TRY_ASSIGN(capi::NewRequest request, capi::request_of(call, token_ids, n, params));
    return call->add(request_id, std::move(request));
  });
}

int32_t poll_requests(EngineHandle* engine,
                      TokenEvent* events,
                      int32_t capacity,
                      int32_t timeout_ms) {
  int32_t count = 0;
  const int32_t status = guarded([&]() -> Status {
    KOHO_TRY_ASSIGN(const std::span<TokenEvent> space, capi::array("events", events, capacity, 1));
    KOHO_TRY_ASSIGN(const capi::Instance::Call call, capi::enter(engine));
    KOHO_TRY_ASSIGN(count, call->poll(space, timeout_ms));
    return {};
  });
  return status == KOHO_OK ? count : status;
}

int32_t cancel_request(EngineHandle* engine, int64_t request_id) {
  return guarded([&]() -> Status {
    KOHO_TRY_ASSIGN(const capi::Instance::Call call, capi::enter(engine));
    return call->cancel(request_id);
  });
}

int32_t post_request(EngineHandle* engine,
                     int64_t request_id,
                     const char* path,
                     const char* body,
                     int64_t body_bytes) {
  return guarded([&]() -> Status {
    KOHO_TRY_ASSIGN(const capi::Instance::Call call, capi::enter(engine));
    if (path == nullptr) return make_error(ErrorCode::invalid_argument, "path is NULL");
    if (body == nullptr) return make_error(ErrorCode::invalid_argument, "body is NULL");
    if (body_bytes < 0)
      return make_error(ErrorCode::invalid_argument, "body_bytes is {}", body_bytes);
    return call->endpoint_calls().post(request_id, path,
                                       std::string(body, static_cast<std::size_t>(body_bytes)));
  });
}

int64_t read_response(EngineHandle* engine,
                      int64_t request_id,
                      char* buffer,
                      int64_t capacity,
                      int32_t timeout_ms,
                      int32_t* out_status) {
  if (out_status != nullptr) *out_status = 0;
  int64_t bytes = 0;
  const int32_t status = guarded([&]() -> Status {
    KOHO_TRY_ASSIGN(const capi::Instance::Call call, capi::enter(engine));
    if (out_status == nullptr) return make_error(ErrorCode::invalid_argument, "out_status is NULL");
    if (buffer == nullptr || capacity < 1)
      return make_error(ErrorCode::invalid_argument, "a buffer of {} bytes at {}", capacity,
                        static_cast<const void*>(buffer));
    const std::span<char> out(buffer, static_cast<std::size_t>(capacity));
    KOHO_TRY_ASSIGN(const capi::EndpointCalls::Part part,
                    call->endpoint_calls().read(request_id, out, timeout_ms));
    bytes = static_cast<int64_t>(part.bytes);
    *out_status = part.status;
    return {};
  });
  return status == KOHO_OK ? bytes : status;
}

int32_t cancel_response(EngineHandle* engine, int64_t request_id) {
  return guarded([&]() -> Status {
    KOHO_TRY_ASSIGN(const capi::Instance::Call call, capi::enter(engine));
    return call->endpoint_calls().cancel(request_id);
  });
}

int64_t get_engine_info(EngineHandle* engine, int32_t info) {
  int64_t value = 0;
  const int32_t status = guarded([&]() -> Status {
    KOHO_TRY_ASSIGN(const capi::Instance::Call call, capi::enter(engine));
    KOHO_TRY_ASSIGN(value, call->info(info));
    return {};
  });
  return status == KOHO_OK ? value : status;
}

void free_engine(EngineHandle* engine) {
  guarded([&]() -> Status {
    KOHO_TRY_ASSIGN(const std::shared_ptr<capi::Instance> instance,
                    capi::engines().take(capi::number(engine)));
    instance->close();
    return {};
  });
}

const char* last_error(void) {
  return capi::last_message.data();
}

int32_t last_error_code(void) {
  return capi::last_status;
}

}  // extern "C"
