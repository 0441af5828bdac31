// SPDX-License-Identifier: Apache-2.0
#include "tiny_server.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "server/served_model.h"

namespace koho::server {
namespace {

template <typename T>
T value_or_abort(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.error().message.c_str());
  std::abort();
}

}  // namespace

std::unique_ptr<Runtime> start_tiny_runtime(const TinyRuntimeSizes& sizes) {
  RuntimeOptions options;
  options.device.kind = DeviceKind::cpu;
  options.device.threads = sizes.threads;
  options.sequences_max = sizes.sequences;
  options.context_max = 2048;
  options.queue_max = sizes.queue;
  options.clients_share = true;
  return value_or_abort(
      Runtime::start(std::filesystem::path(KOHO_SOURCE_DIR) / "models" / "tiny", options));
}

Runtime& tiny_runtime() {
  static const std::unique_ptr<Runtime> runtime =
      start_tiny_runtime({.threads = 2, .sequences = 8, .queue = 64});
  return *runtime;
}

TinyServer::TinyServer(const std::function<void(ServerSettings&)>& change, Runtime& runtime)
    : serving_(served_model_of(runtime, {"tiny", "other/name"})) {
  ServerSettings settings;
  settings.host = "127.0.0.1";
  settings.port = 0;
  settings.io_threads = 2;
  settings.model_name = "tiny";
  settings.time.tick_ms = 10;
  settings.time.feed_ms = 10;
  settings.log_requests = false;
  if (change) change(settings);
  server_ = value_or_abort(Server::start(settings, clock_));
  server_->core().set_serving(serving_);
}

bool TinyServer::becomes_idle() {
  constexpr std::int64_t kPatienceUs = 60'000'000;
  const std::int64_t until = clock_.now_us() + kPatienceUs;
  while (clock_.now_us() < until) {
    const Statistics now = serving_.engine.statistics();
    if (counters().requests_live.load() == 0 && now.requests_live == 0 &&
        now.pages_free + now.pages_cached == now.pages_total)
      return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

TinyServer& shared_server() {
  static TinyServer server;
  return server;
}

}  // namespace koho::server
