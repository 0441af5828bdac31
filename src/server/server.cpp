// SPDX-License-Identifier: Apache-2.0
// The listener, the start and the end of the server.
#include "server/server.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <sys/resource.h>
#include <thread>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>

#include "base/log.h"
#include "base/processors.h"
#include "server/connection.h"
#include "server/file_routes.h"

namespace koho::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using SystemError = boost::system::error_code;

namespace {

/// The TLS context of the settings; nothing for plain HTTP.
Result<std::optional<TlsContext>> load_tls(const ServerSettings& settings) {
  if (settings.tls_cert.empty()) return std::optional<TlsContext>();
  const std::string& key = settings.tls_key.empty() ? settings.tls_cert : settings.tls_key;
  KOHO_TRY_ASSIGN(TlsContext context, TlsContext::load(settings.tls_cert, key));
  return std::optional<TlsContext>(std::move(context));
}

/// Resolves `host` and listens. Port 0: any free port.
Status open_listener(tcp::acceptor& acceptor, const std::string& host, std::uint16_t port) {
  SystemError error;
  asio::ip::address address =
      asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
  if (error) {
    tcp::resolver resolver(acceptor.get_executor());
    const auto found = resolver.resolve(host, "", error);
    if (error || found.empty())
      return make_error(ErrorCode::invalid_argument,
                        "--host \"{}\" is not an address or a known host name", host);
    address = found.begin()->endpoint().address();
  }
  const tcp::endpoint endpoint(address, port);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(4096, error);
  if (!error) acceptor.non_blocking(true, error);
  if (!error) return {};
  return make_error(ErrorCode::io_error, "cannot listen on {}:{}: {}", host, port, error.message());
}

/// Raises the limit of descriptors as far as this process may. If that is too little, there can be
/// fewer connections, so that these leave a quarter for files, and some for batches and workers.
void fit_descriptors(ServerSettings& settings) {
  constexpr rlim_t kOthers = 128;
  const rlim_t wanted = 2 * settings.connections_max / 3 * 4 + kOthers;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  static_cast<void>(setrlimit(RLIMIT_NOFILE, &limit));
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  settings.connections_max =
      std::max<std::size_t>((limit.rlim_cur - std::min(kOthers, limit.rlim_cur / 2)) / 8 * 3, 1);
  log::info("ulimit -n is {}: at most {} connections of one address", limit.rlim_cur,
            settings.connections_max);
}

}  // namespace

class Server::Impl {
 public:
  explicit Impl(Core& core) : core_(core), threads_(make_threads(core)) {}

  ~Impl() {
    if (started_) {
      asio::post(threads_.front()->context(), [this] { close_listener(); });
    }
    for (const std::shared_ptr<IoThread>& thread : threads_) thread->stop();
  }

  Status listen() {
    const ServerSettings& settings = core_.settings();
    KOHO_TRY_ASSIGN(tls_, load_tls(settings));
    KOHO_TRY(open_listener(acceptor_, settings.host, settings.port));
    SystemError error;
    port_ = acceptor_.local_endpoint(error).port();
    asio::post(threads_.front()->context(), [this] { wait_to_accept(); });
    started_ = true;
    for (const std::shared_ptr<IoThread>& thread : threads_) thread->start();
    return {};
  }

  std::uint16_t port() const { return port_; }

 private:
  static std::vector<std::shared_ptr<IoThread>> make_threads(Core& core) {
    const std::int32_t asked = core.settings().io_threads;
    const auto cores = std::int32_t{available_processors()};
    const std::int32_t count = asked > 0 ? asked : std::clamp(cores, 1, 8);
    std::vector<std::shared_ptr<IoThread>> threads;
    for (std::int32_t i = 0; i < count; ++i) threads.push_back(std::make_shared<IoThread>(core));
    return threads;
  }

  void wait_to_accept() {
    acceptor_.async_wait(tcp::acceptor::wait_read, [this](const SystemError& error) {
      if (error || !acceptor_.is_open()) return;
      accept_some();
    });
  }

  /// Accepts waiting connections, at most kAtOnce before the thread serves its own ones again.
  void accept_some() {
    constexpr int kAtOnce = 64;
    for (int i = 0; i < kAtOnce; ++i) {
      IoThread& thread = *threads_[next_++ % threads_.size()];
      SystemError error;
      tcp::socket socket = acceptor_.accept(thread.context(), error);
      if (error == asio::error::would_block) break;
      if (error == asio::error::no_descriptors ||
          error == boost::system::errc::too_many_files_open_in_system) {
        pause_accepting();
        return;
      }
      if (error) continue;  // the client has already left
      ++core_.counters().connections_accepted;
      ClientShare place;
      if (!place.take(core_.connections(), client_of(socket), 1)) {
        ++core_.counters().connections_refused;
        continue;  // the socket closes
      }
      auto connection = std::make_shared<Connection>(
          thread, std::move(socket), tls_ ? tls_->accept() : nullptr, std::move(place));
      asio::post(thread.context(), [connection] { connection->start(); });
    }
    wait_to_accept();
  }

  /// Out of file descriptors: accepts again a moment later, when some may have been closed.
  void pause_accepting() {
    log::warning("no file descriptors left for new connections: raise the limit (ulimit -n)");
    retry_.expires_after(std::chrono::milliseconds(100));
    retry_.async_wait([this](const SystemError& error) {
      if (!error && acceptor_.is_open()) wait_to_accept();
    });
  }

  void close_listener() {
    SystemError error;
    acceptor_.close(error);
    retry_.cancel();
  }

  Core& core_;
  std::optional<TlsContext> tls_;  // nothing: plain HTTP
  std::vector<std::shared_ptr<IoThread>> threads_;
  tcp::acceptor acceptor_{threads_.front()->context()};
  asio::steady_timer retry_{threads_.front()->context()};
  std::size_t next_ = 0;
  std::uint16_t port_ = 0;
  bool started_ = false;
};

Server::Server(std::unique_ptr<Core> core)
    : core_(std::move(core)), impl_(std::make_unique<Impl>(*core_)) {}

Server::~Server() {
  if (batches_) batches_->stop();
  impl_.reset();
  // The engine's thread may still hold a connection that it is waking.
  while (core_->counters().connections_live.load() > 0) std::this_thread::yield();
}

Result<std::unique_ptr<Server>> Server::start(ServerSettings settings, const Clock& clock) {
  if (!settings.files_dir.empty()) settings.http.upload_path = kFilesPath;
  fit_descriptors(settings);
  std::unique_ptr<Server> server(new Server(std::make_unique<Core>(std::move(settings), clock)));
  const ServerSettings& used = server->core_->settings();
  if (!used.files_dir.empty()) {
    KOHO_TRY_ASSIGN(server->batches_,
                    BatchService::open(*server->core_, used.files_dir, used.files_bytes_max));
    server->core_->set_batches(server->batches_.get());
  }
  KOHO_TRY(server->impl_->listen());
  return server;
}

Status Server::check(const ServerSettings& settings) {
  KOHO_TRY(load_tls(settings));
  if (!settings.files_dir.empty()) {
    // The server that this is about may have it open already.
    const auto files = FileStore::open(settings.files_dir, settings.files_bytes_max);
    if (!files.ok() && files.error().code != ErrorCode::unavailable) return files.error();
  }
  asio::io_context context;
  tcp::acceptor acceptor(context);
  return open_listener(acceptor, settings.host, 0);
}

Status Server::try_port(const ServerSettings& settings) {
  asio::io_context context;
  tcp::acceptor acceptor(context);
  return open_listener(acceptor, settings.host, settings.port);
}

std::uint16_t Server::port() const {
  return impl_->port();
}

void Server::drain(std::int64_t timeout_us) {
  const Clock& clock = core_->clock();
  const std::int64_t end_us = clock.now_us() + timeout_us;
  const auto wait_for_none = [&](const std::atomic<std::int64_t>& live, std::int64_t until_us) {
    while (live.load() > 0 && clock.now_us() < until_us)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  core_->set_draining();
  // An engine that drains takes nothing more.
  wait_for_none(core_->counters().requests_scoring, end_us);
  if (const ServedModel* serving = core_->serving())
    serving->engine.drain(std::max<std::int64_t>(end_us - clock.now_us(), 0));
  const std::int64_t flush_end_us =
      clock.now_us() + core_->settings().time.flush_ms * std::int64_t{1000};
  wait_for_none(core_->counters().requests_live, flush_end_us);
  // Whoever still reads an answer has what is left of the time.
  wait_for_none(core_->counters().answers_owed, std::max(end_us, flush_end_us));
}

}  // namespace koho::server
