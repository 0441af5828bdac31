// SPDX-License-Identifier: Apache-2.0
#include "tiny_server.h"

#include <cstdio>
#include <cstdlib>

#include "server/served_model.h"
#include "tests/support/patience.h"

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

TinyServer::TinyServer(const std::function<void(ServerSettings&)>& change,
                       Runtime& runtime,
                       const Clock& clock)
    : serving_(served_model_of(runtime, {"tiny", "other/name"})) {
  ServerSettings settings;
  settings.host = "127.0.0.1";
  settings.port = 0;
  settings.io_threads = 2;
  settings.model_name = "tiny";
  settings.time.tick_ms = 10;
  settings.time.feed_ms = 10;
  // The test that is to meet a limit sets it.
  constexpr std::int64_t kNeverMs = 3'600'000;
  settings.time.head_ms = kNeverMs;
  settings.time.body_grace_ms = kNeverMs;
  settings.time.write_stall_ms = kNeverMs;
  settings.time.idle_ms = kNeverMs;
  settings.time.ping_ms = kNeverMs;
  settings.log_requests = false;
  if (change) change(settings);
  server_ = value_or_abort(Server::start(settings, clock));
  server_->core().set_serving(serving_);
}

bool TinyServer::becomes_idle() {
  return testing::comes_true([this] {
    if (counters().requests_live.load() != 0) return false;
    serving_.engine.settle();  // what the server's requests asked of it until they ended
    const Statistics now = serving_.engine.statistics();
    return now.requests_live == 0 && now.pages_free + now.pages_cached == now.pages_total;
  });
}

TinyServer& shared_server() {
  static TinyServer server;
  return server;
}

}  // namespace koho::server
