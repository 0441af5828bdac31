// SPDX-License-Identifier: Apache-2.0
#include "capi/endpoint_calls.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/generation_job.h"
#include "server/served_model.h"

namespace koho::capi {
namespace {

constexpr std::size_t kReadBytes = 64U << 10U;  // of a stream, taken from its job at once

server::ServerSettings quiet_settings() {
  server::ServerSettings settings;
  settings.log_requests = false;
  return settings;
}

}  // namespace

/// A request and what of its answer is not read yet.
struct EndpointCalls::Exchange {
  std::shared_ptr<server::GenerationJob> job{};  // null: a text endpoint, whose answer is complete
  std::mutex mutex{};
  std::condition_variable ready{};
  bool woken = true;  // poll() may have something
  bool closed = false;
  bool in_use = false;
  std::string bytes{};
  std::size_t taken = 0;
  int status = 0;  // of a complete answer

  void wake() {
    {
      const std::lock_guard lock(mutex);
      woken = true;
    }
    ready.notify_all();
  }
};

EndpointCalls::EndpointCalls(Runtime& runtime, std::string name)
    : core_(quiet_settings(), clock_),
      serving_(server::served_model_of(runtime, {std::move(name)})) {
  serving_.model.any_name = true;
  core_.set_serving(serving_);
}

EndpointCalls::~EndpointCalls() {
  close();
}

Status EndpointCalls::post(std::int64_t id, std::string_view path, std::string body) {
  auto exchange = std::make_shared<Exchange>();
  const api::GenerationEndpoint* generation = nullptr;
  const api::TextEndpoint* text = nullptr;
  for (const api::GenerationEndpoint& one : api::generation_endpoints())
    if (one.path == path) generation = &one;
  for (const api::TextEndpoint& one : api::text_endpoints())
    if (one.path == path) text = &one;
  if (generation == nullptr && text == nullptr)
    return make_error(ErrorCode::not_found, "there is no POST endpoint {}", path);
  if (generation != nullptr)
    exchange->job = std::make_shared<server::GenerationJob>(
        core_, server::GenerationJob::Setup{.endpoint = generation,
                                            .serving = &serving_,
                                            .id = core_.make_id(),
                                            .request_id = {},
                                            .wake = [weak = std::weak_ptr<Exchange>(exchange)] {
                                              if (const auto it = weak.lock()) it->wake();
                                            }});
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return make_error(ErrorCode::unavailable, "the engine is being freed");
    if (!exchanges_.try_emplace(id, exchange).second)
      return make_error(ErrorCode::invalid_argument, "request {} is live already", id);
  }
  if (exchange->job) {
    exchange->job->start(std::move(body));
    return {};
  }
  return answer_text(*text, body, *exchange);
}

Status EndpointCalls::answer_text(const api::TextEndpoint& endpoint,
                                  const std::string& body,
                                  Exchange& into) {
  std::string answer;
  const api::Refusal refused = api::answer_text(endpoint, body, serving_.model, {}, answer);
  const std::lock_guard lock(into.mutex);
  into.status = refused ? refused->status : 200;
  into.bytes = refused ? server::error_response(api::error_style(endpoint.path), *refused).body
                       : std::move(answer);
  return {};
}

std::shared_ptr<EndpointCalls::Exchange> EndpointCalls::find(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = exchanges_.find(id);
  return found == exchanges_.end() ? nullptr : found->second;
}

void EndpointCalls::forget(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  exchanges_.erase(id);
}

Result<EndpointCalls::Part> EndpointCalls::read(std::int64_t id,
                                                std::span<char> out,
                                                std::int32_t timeout_ms) {
  const std::shared_ptr<Exchange> exchange = find(id);
  if (!exchange) return make_error(ErrorCode::not_found, "no request {} is live", id);
  std::unique_lock lock(exchange->mutex);
  if (exchange->in_use)
    return make_error(ErrorCode::unavailable, "another thread reads request {}", id);
  exchange->in_use = true;
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(std::max(timeout_ms, 0));
  while (exchange->taken == exchange->bytes.size() && exchange->status == 0) {
    const auto may_go_on = [&] { return exchange->woken || exchange->closed; };
    if (timeout_ms < 0) {
      exchange->ready.wait(lock, may_go_on);
    } else if (!exchange->ready.wait_until(lock, deadline, may_go_on)) {
      break;
    }
    if (exchange->closed) break;
    exchange->woken = false;
    lock.unlock();  // the job wakes while it is polled
    std::string more;
    const server::GenerationJob::State state = exchange->job->poll(more, kReadBytes);
    lock.lock();
    exchange->bytes.erase(0, std::exchange(exchange->taken, 0));
    exchange->bytes += more;
    if (state == server::GenerationJob::State::streaming) exchange->woken = true;  // perhaps more
    if (state == server::GenerationJob::State::streamed) exchange->status = 200;
    if (state == server::GenerationJob::State::answered) {
      exchange->status = exchange->job->response().status;
      exchange->bytes += exchange->job->response().body;
    }
  }
  if (exchange->closed) {
    lock.unlock();
    if (exchange->job) exchange->job->on_disconnect();
    return make_error(ErrorCode::cancelled, "request {} was cancelled", id);
  }
  exchange->in_use = false;
  Part part;
  part.bytes = std::min(out.size(), exchange->bytes.size() - exchange->taken);
  std::copy_n(exchange->bytes.data() + exchange->taken, part.bytes, out.data());
  exchange->taken += part.bytes;
  if (exchange->taken == exchange->bytes.size()) part.status = exchange->status;
  lock.unlock();
  if (part.status != 0) forget(id);
  return part;
}

void EndpointCalls::end(Exchange& exchange) {
  if (exchange.job) exchange.job->abort_with_error();
  std::unique_lock lock(exchange.mutex);
  exchange.closed = true;
  exchange.ready.notify_all();
  if (exchange.in_use) return;  // its reader ends the job
  exchange.in_use = true;
  lock.unlock();
  if (exchange.job) exchange.job->on_disconnect();
}

Status EndpointCalls::cancel(std::int64_t id) {
  const std::shared_ptr<Exchange> exchange = find(id);
  if (!exchange) return make_error(ErrorCode::not_found, "no request {} is live", id);
  forget(id);
  end(*exchange);
  return {};
}

void EndpointCalls::close() {
  std::unordered_map<std::int64_t, std::shared_ptr<Exchange>> all;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    all.swap(exchanges_);
  }
  for (const auto& [id, exchange] : all) end(*exchange);
}

}  // namespace koho::capi
