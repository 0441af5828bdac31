// SPDX-License-Identifier: Apache-2.0
#include "bench/load_paced_server.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/core.h>

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

EngineLimits engine_limits(const Tokenizer& tokenizer, const LoadServerOptions& options) {
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
  return limits;
}

/// What the process does: tells its port, then its heap with every byte that comes from `order`,
/// until that closes; with 'k' it changes its keys before. Returns the exit code.
int serve(const Tokenizer& tokenizer,
          const LoadServerOptions& options,
          std::int64_t begin_us,
          int order,
          int answer) {
  const SteadyClock clock;
  const EngineLimits limits = engine_limits(tokenizer, options);
  PacedExecutor executor(plan_bounds(limits), PacedLoadServer::vocabulary(tokenizer),
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

}  // namespace

Result<std::unique_ptr<LoadServer>> PacedLoadServer::start(const Tokenizer& tokenizer,
                                                           const LoadServerOptions& options) {
  int order[2];
  int answer[2];
  if (pipe(order) != 0 || pipe(answer) != 0)
    return make_error(ErrorCode::io_error, "no pipe: {}", std::strerror(errno));
  std::unique_ptr<PacedLoadServer> server(new PacedLoadServer);
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
  KOHO_TRY(server->look());
  return std::unique_ptr<LoadServer>(std::move(server));
}

PacedLoadServer::~PacedLoadServer() {
  if (order_ >= 0) close(order_);
  if (answer_ >= 0) close(answer_);
}

std::string PacedLoadServer::end() {
  close(order_);
  order_ = -1;
  int status = 1;
  waitpid(process_, &status, 0);
  process_ = -1;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "" : "the server did not end well";
}

std::int32_t PacedLoadServer::vocabulary(const Tokenizer& tokenizer) {
  return tokenizer.vocab_size() / 2;  // no added token among them
}

void PacedLoadServer::change_keys(std::int64_t /*reloads*/) {
  std::int64_t bytes = 0;
  if (write(order_, "k", 1) != 1 || read(answer_, &bytes, sizeof bytes) != sizeof bytes) return;
}

std::int64_t PacedLoadServer::heap_bytes() const {
  std::int64_t bytes = 0;
  const bool told =
      write(order_, "h", 1) == 1 && read(answer_, &bytes, sizeof bytes) == sizeof bytes;
  return told ? bytes : -1;
}

}  // namespace koho::bench
