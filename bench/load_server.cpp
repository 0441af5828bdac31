// SPDX-License-Identifier: Apache-2.0
#include "bench/load_server.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/core.h>
#include <netinet/in.h>

#include "base/clock.h"
#include "base/log.h"
#include "bench/paced_executor.h"
#include "engine/engine.h"
#include "engine/plan_writer.h"
#include "runtime/detokenizing_decoder.h"
#include "server/server.h"

namespace koho::bench {
namespace {

constexpr std::size_t kJournalRequestsMax = 256;

/// The keys after so many reloads: limits, salts and priorities change, and one comes and goes.
std::vector<server::ApiKeySettings> soak_keys(std::int64_t reloads) {
  std::vector<server::ApiKeySettings> keys;
  for (const std::string_view key : LoadServer::kSoakKeys) keys.emplace_back(std::string(key));
  keys[1].priority = static_cast<std::int32_t>(reloads % kPriorities);
  keys[2].requests_at_once = 8 + reloads % 3;
  keys[2].cache_salt = reloads % 2 == 0 ? "third" : "";
  keys[3].tokens_per_minute = 2'000'000 + reloads;
  keys[3].name = "fourth";
  keys[4].requests_per_minute = 60'000;
  if (reloads % 2 == 1) keys.push_back(server::ApiKeySettings("sk-now-and-then"));
  return keys;
}

/// What the process does: tells its port, then its heap with every byte that comes from `order`,
/// until that closes; with 'k' it changes its keys before. Returns the exit code.
int serve(const Tokenizer& tokenizer,
          const LoadServerOptions& options,
          std::int64_t begin_us,
          int order,
          int answer) {
  const SteadyClock clock;
  EngineLimits limits;
  Limits& s = limits.scheduler;
  s.context_max = options.context;
  s.sequences_max = options.sequences;
  s.pages = options.sequences * s.pages_per_sequence_max();
  s.live_max = options.choices * (options.sequences + options.waiting);
  s.step_tokens_max = options.sequences + 8192;
  s.mixed_prefill_tokens_max = 8192;
  limits.vocabulary = tokenizer.vocab_size();
  limits.requests_max = options.sequences + options.waiting;
  limits.choices_max = options.choices;
  PacedExecutor executor(plan_bounds(limits), LoadServer::vocabulary(tokenizer),
                         {.period_us = options.period_us, .begin_us = begin_us});
  Result<std::unique_ptr<Engine>> engine =
      Engine::start(limits, executor, clock, detokenizing_decoders(tokenizer));
  if (!engine.ok()) {
    fmt::print(stderr, "{}\n", engine.error().message);
    return 1;
  }
  server::ServedModel serving{.engine = **engine, .model = {}};
  api::Model& model = serving.model;
  model.names = {"load"};
  model.tokenizer = &tokenizer;
  model.tag_ids = api::tag_ids_of(tokenizer);
  model.limits = limits;
  model.turns = std::make_shared<api::TurnMemory>(8U << 20U);
  model.journal = std::make_shared<api::PromptJournal>(kJournalRequestsMax, 4U << 20U);
  model.defaults.reasoning_begin = tokenizer.id_of("<think>").value_or(-1);
  model.defaults.reasoning_end = tokenizer.id_of("</think>").value_or(-1);
  server::ServerSettings settings;
  settings.host = "127.0.0.1";
  settings.port = 0;
  settings.io_threads = 2;
  settings.log_requests = false;
  settings.time = options.time;
  if (options.keys) settings.api_keys = soak_keys(0);
  Result<std::unique_ptr<server::Server>> server = server::Server::start(settings, clock);
  if (!server.ok()) {
    fmt::print(stderr, "{}\n", server.error().message);
    return 1;
  }
  (*server)->core().set_serving(serving);
  std::int64_t told = (*server)->port();
  char asked = 0;
  std::int64_t reloads = 0;
  do {
    if (asked == 'k') (*server)->core().set_api_keys(soak_keys(++reloads));
    if (write(answer, &told, sizeof told) != sizeof told) return 1;
    told = static_cast<std::int64_t>(mallinfo2().uordblks);
  } while (read(order, &asked, 1) == 1);
  (*server)->drain(5'000'000);
  return (*server)->core().counters().requests_live.load() == 0 ? 0 : 1;
}

/// The page, over a connection of its own; the descriptors of the process while that is open.
std::string scrape(std::uint16_t port, const LoadServer& server, std::int64_t* descriptors) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string page;
  constexpr std::string_view kAsk =
      "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  if (connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      send(socket, kAsk.data(), kAsk.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(kAsk.size())) {
    std::array<char, 65536> buffer;
    ssize_t bytes = 0;
    while ((bytes = recv(socket, buffer.data(), buffer.size(), 0)) > 0)
      page.append(buffer.data(), static_cast<std::size_t>(bytes));
  }
  // The server's end stays open until it sees ours close.
  if (descriptors != nullptr) *descriptors = server.descriptors();
  close(socket);
  return page;
}

double sum_of(std::string_view page, std::string_view name) {
  double sum = 0.0;
  bool found = false;
  while (!page.empty()) {
    const std::size_t end = std::min(page.find('\n'), page.size());
    const std::string_view line = page.substr(0, end);
    page.remove_prefix(std::min(end + 1, page.size()));
    if (!line.starts_with(name) || line.size() == name.size() || line[name.size()] != '{') continue;
    sum += std::strtod(std::string(line.substr(line.rfind(' ') + 1)).c_str(), nullptr);
    found = true;
  }
  return found ? sum : -1.0;
}

}  // namespace

Result<std::unique_ptr<LoadServer>> LoadServer::start(const Tokenizer& tokenizer,
                                                      const LoadServerOptions& options) {
  int order[2];
  int answer[2];
  if (pipe(order) != 0 || pipe(answer) != 0)
    return make_error(ErrorCode::io_error, "no pipe: {}", std::strerror(errno));
  std::unique_ptr<LoadServer> server(new LoadServer);
  server->begin_us_ = SteadyClock().now_us();
  server->period_us_ = options.period_us;
  server->process_ = fork();
  if (server->process_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(order[1]);
    close(answer[0]);
    log::configure(log::Level::warning, log::Format::text);
    _exit(serve(tokenizer, options, server->begin_us_, order[0], answer[1]));
  }
  close(order[0]);
  close(answer[1]);
  server->order_ = order[1];
  server->answer_ = answer[0];
  std::int64_t port = 0;
  if (server->process_ <= 0 || read(answer[0], &port, sizeof port) != sizeof port)
    return make_error(ErrorCode::io_error, "the server did not start");
  server->port_ = static_cast<std::uint16_t>(port);
  if (scrape(server->port_, *server, &server->descriptors_idle_).empty())
    return make_error(ErrorCode::io_error, "the server does not answer");
  return server;
}

LoadServer::~LoadServer() {
  if (order_ >= 0) close(order_);
  if (answer_ >= 0) close(answer_);
  if (process_ <= 0) return;
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
}

bool LoadServer::end() {
  close(order_);
  order_ = -1;
  int status = 1;
  waitpid(process_, &status, 0);
  process_ = -1;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::int32_t LoadServer::vocabulary(const Tokenizer& tokenizer) {
  return tokenizer.vocab_size() / 2;  // no added token among them
}

std::int64_t LoadServer::cpu_us() const {
  std::ifstream file(fmt::format("/proc/{}/stat", process_));
  std::string line;
  std::getline(file, line);
  // The fields after the name in brackets: state is the first, user and system time 12 and 13.
  std::size_t at = line.rfind(')') + 2;
  for (int field = 0; field < 11; ++field) at = line.find(' ', at) + 1;
  char* rest = nullptr;
  const std::int64_t user = std::strtoll(line.c_str() + at, &rest, 10);
  const std::int64_t system = std::strtoll(rest, nullptr, 10);
  return (user + system) * 1'000'000 / sysconf(_SC_CLK_TCK);
}

std::int64_t LoadServer::resident_bytes() const {
  std::ifstream file(fmt::format("/proc/{}/statm", process_));
  std::int64_t total = 0;
  std::int64_t resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

void LoadServer::reload_keys() {
  std::int64_t bytes = 0;
  if (write(order_, "k", 1) != 1 || read(answer_, &bytes, sizeof bytes) != sizeof bytes) return;
}

std::int64_t LoadServer::threads() const {
  std::int64_t count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at(fmt::format("/proc/{}/task", process_), error), end;
       !error && at != end; at.increment(error))
    ++count;
  return count;
}

std::int64_t LoadServer::heap_bytes() const {
  std::int64_t bytes = 0;
  const bool told =
      write(order_, "h", 1) == 1 && read(answer_, &bytes, sizeof bytes) == sizeof bytes;
  return told ? bytes : -1;
}

std::int64_t LoadServer::descriptors() const {
  std::int64_t count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at(fmt::format("/proc/{}/fd", process_), error), end;
       !error && at != end; at.increment(error))
    ++count;
  return count;
}

double LoadServer::metric(std::string_view name) const {
  return sum_of(metrics_page(), name);
}

std::string LoadServer::metrics_page() const {
  return scrape(port_, *this, nullptr);
}

double LoadServer::metric_in(std::string_view page, std::string_view name) {
  return sum_of(page, name);
}

std::string LoadServer::leftovers(std::int64_t timeout_us) const {
  const SteadyClock clock;
  const std::int64_t until = clock.now_us() + timeout_us;
  while (true) {
    std::int64_t descriptors = 0;
    const std::string page = scrape(port_, *this, &descriptors);
    std::string left;
    const auto expect = [&](std::string_view name, double found, double wanted) {
      if (found == wanted) return;
      left += fmt::format("{}{} {} for {}", left.empty() ? "" : ", ", name, found, wanted);
    };
    for (const char* name : {"koho_pages_used", "koho_engine_requests_live", "koho_requests_live"})
      expect(name, sum_of(page, name), 0);
    expect("koho_connections_live", sum_of(page, "koho_connections_live"), 1);
    expect("descriptors", static_cast<double>(descriptors), static_cast<double>(descriptors_idle_));
    if (left.empty() || clock.now_us() >= until) return left;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace koho::bench
