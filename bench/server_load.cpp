// SPDX-License-Identifier: Apache-2.0
// What the server bears: thousands of streams, clients that leave, stall, dribble or vanish, and
// more requests than it can answer. A server without a model runs in a process of its own
// (load_server.h), the clients in this one. Each scenario prints one line of JSON with what was
// measured; the exit code is 1 if a target is missed or anything is left over.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "bench/load_generator.h"
#include "bench/load_server.h"

namespace {

using namespace koho;

constexpr std::int64_t kUsPerSecond = 1'000'000;
constexpr std::int64_t kKilobyte = 1024;

/// What a scenario found. Targets of time and memory count in full runs only: short ones are for
/// machines that are busy with other things, and for sanitizers.
class Findings {
 public:
  Findings(std::string_view scenario, bool brief)
      : brief_(brief), json_(fmt::format(R"({{"scenario":"{}")", scenario)) {}

  void tell(std::string_view name, double value) {
    json_ += fmt::format(R"(,"{}":{})", name, std::round(value * 100.0) / 100.0);
  }
  void is(std::string_view name, double value, double wanted) {
    tell(name, value);
    if (value != wanted) miss(fmt::format("{} is not {}", name, wanted));
  }
  void at_least(std::string_view name, double value, double least) {
    tell(name, value);
    if (value < least) miss(fmt::format("{} is below {}", name, least));
  }
  void at_most(std::string_view name, double value, double most) {
    tell(name, value);
    if (value > most) miss(fmt::format("{} is above {}", name, most));
  }
  void in_full_at_most(std::string_view name, double value, double most) {
    brief_ ? tell(name, value) : at_most(name, value, most);
  }
  void in_full_at_least(std::string_view name, double value, double least) {
    brief_ ? tell(name, value) : at_least(name, value, least);
  }
  void miss(std::string_view what) {
    missed_ += missed_.empty() ? "" : "; ";
    missed_ += what;
  }
  bool print() const {
    fmt::print("{},\"missed\":\"{}\"}}\n", json_, missed_);
    std::fflush(stdout);
    return missed_.empty();
  }

 private:
  bool brief_;
  std::string json_;
  std::string missed_;
};

/// When the server's tokens are due, see PacedExecutor.
struct Grid {
  std::int64_t begin_us = 0;
  std::int64_t period_us = 0;
  std::int64_t vocabulary = 1;

  std::int64_t lateness_us(std::int64_t token, std::int64_t now_us) const {
    const std::int64_t now = (now_us - begin_us) / period_us;
    const std::int64_t number = now - ((now - token) % vocabulary + vocabulary) % vocabulary;
    return now_us - begin_us - number * period_us;
  }
};

/// What all streams of a scenario tell.
struct Tally {
  Grid grid;
  std::int64_t complete = 0;
  std::int64_t errors = 0;  // broken off, out of order, or another answer than was due
  std::int64_t frames = 0;
  std::int64_t refused = 0;  // 429, as is due under overload
  std::vector<std::int32_t> lateness_us{};
  std::vector<std::int32_t> refusal_us{};
  std::vector<std::int32_t> total_us{};
  std::map<std::string, std::int64_t> faults{};  // what the errors were

  void fault(std::string_view what) {
    ++errors;
    ++faults[std::string(what)];
  }
};

double percentile_ms(std::vector<std::int32_t>& values, double share) {
  if (values.empty()) return 0.0;
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at / 1e3;
}

std::string post(std::string_view path, std::string_view body, bool keep_alive = false) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Connection: {}\r\nContent-Length: {}\r\n\r\n{}",
      path, keep_alive ? "keep-alive" : "close", body.size(), body);
}

std::string completion(int tokens, std::string_view more = {}, bool keep_alive = false) {
  return post("/v1/completions",
              fmt::format(R"({{"model":"load","prompt":[1,2,3,4],"max_tokens":{},)"
                          R"("ignore_eos":true,"stream":true,"return_token_ids":true{}}})",
                          tokens, more),
              keep_alive);
}

std::string chat(int tokens, bool keep_alive = false) {
  return post("/v1/chat/completions",
              fmt::format(R"({{"model":"load","messages":[{{"role":"user","content":"Hello."}}],)"
                          R"("max_tokens":{},"ignore_eos":true,"stream":true,)"
                          R"("return_token_ids":true}})",
                          tokens),
              keep_alive);
}

/// Reads one stream and checks it: every token, in the order of the steps, then the end.
class StreamingClient : public LoadClient {
 public:
  enum class Manner : std::uint8_t { stays, leaves, resets };

  StreamingClient(Tally& tally, std::string request, int tokens)
      : tally_(tally), request_(std::move(request)), tokens_(tokens) {}

  /// Goes away after so many tokens.
  void leave_after(int tokens, bool reset) {
    manner_ = reset ? Manner::resets : Manner::leaves;
    leave_after_ = tokens;
  }
  /// Someone else ends the request after so many tokens: `cancel` gets its id.
  void cancel_after(int tokens, std::function<void(std::string)> cancel) {
    cancel_after_ = tokens;
    cancel_ = std::move(cancel);
  }
  /// The queue may be full.
  void may_be_refused() { may_be_refused_ = true; }

  void on_open() override {
    begun_us_ = now_us();
    send(request_);
    std::exchange(request_, {}).shrink_to_fit();
  }
  void on_bytes(std::string_view bytes) override {
    if (status_ == 0 && bytes.size() >= 12 && bytes.starts_with("HTTP/1.1 "))
      std::from_chars(bytes.data() + 9, bytes.data() + 12, status_);
    if (status_ != 200) {
      tail_ += bytes;
      if (refusal_us_ == 0) refusal_us_ = now_us() - begun_us_;
      return;
    }
    if (!tail_.empty()) {
      tail_ += bytes;
      bytes = tail_;
    }
    while (!over_) {
      const std::size_t end = bytes.find("\n\n");
      if (end == std::string_view::npos) break;
      frame(bytes.substr(0, end));
      bytes.remove_prefix(end + 2);
    }
    if (over_) return;
    tail_ = std::string(bytes);
  }
  void on_end(End end) override {
    if (status_ == 429 && may_be_refused_ && tail_.find("Retry-After: ") != std::string::npos) {
      ++tally_.refused;
      tally_.refusal_us.push_back(static_cast<std::int32_t>(refusal_us_));
      return;
    }
    if (done_ && (count_ == tokens_ || (cancel_after_ > 0 && cancelled_))) {
      ++tally_.complete;
      tally_.total_us.push_back(static_cast<std::int32_t>(now_us() - begun_us_));
      return;
    }
    tally_.fault(fmt::format("{} with status {}{}", end == End::reset ? "reset" : "closed", status_,
                             done_ ? ", too few tokens" : ""));
  }

 private:
  void frame(std::string_view text) {
    constexpr std::string_view kIds = R"(,"token_ids":[)";
    if (const std::size_t ids = text.rfind(kIds); ids != std::string_view::npos) {
      std::int64_t token = -1;
      std::from_chars(text.data() + ids + kIds.size(), text.data() + text.size(), token);
      take(token, text);
    } else if (text.ends_with("data: [DONE]")) {
      done_ = true;
    } else if (text.find(R"(data: {"error":)") != std::string_view::npos) {
      cancelled_ = true;
    }
  }

  void take(std::int64_t token, std::string_view text) {
    ++count_;
    ++tally_.frames;
    const Grid& grid = tally_.grid;
    if (grid.period_us > 0) {
      tally_.lateness_us.push_back(static_cast<std::int32_t>(grid.lateness_us(token, now_us())));
      if (last_ >= 0 && token != (last_ + 1) % grid.vocabulary) tally_.fault("tokens out of order");
    }
    last_ = token;
    if (count_ == cancel_after_) {
      const std::size_t id = text.find(R"("id":")");
      const std::size_t dash = text.find('-', id);
      cancel_(std::string(text.substr(dash + 1, text.find('"', dash) - dash - 1)));
    }
    if (manner_ != Manner::stays && count_ >= leave_after_) {
      ++tally_.complete;
      over_ = true;
      leave(manner_ == Manner::resets);
    }
  }

  Tally& tally_;
  std::string request_;
  int tokens_;
  Manner manner_ = Manner::stays;
  int leave_after_ = 0;
  int cancel_after_ = 0;
  std::function<void(std::string)> cancel_;
  bool may_be_refused_ = false;

  std::string tail_;
  int status_ = 0;
  int count_ = 0;
  std::int64_t last_ = -1;
  bool done_ = false;
  bool cancelled_ = false;
  bool over_ = false;
  std::int64_t begun_us_ = 0;
  std::int64_t refusal_us_ = 0;
};

/// Sends what it is told and wants an answer of that status.
class SingleRequestClient : public LoadClient {
 public:
  SingleRequestClient(Tally& tally, std::string request, int status)
      : tally_(tally), request_(std::move(request)), status_(status) {}
  void on_open() override { send(request_); }
  void on_bytes(std::string_view bytes) override { answer_ += bytes; }
  void on_end(End /*end*/) override {
    if (answer_.starts_with(fmt::format("HTTP/1.1 {}", status_))) {
      ++tally_.complete;
    } else {
      tally_.fault(fmt::format("{} for {}", answer_.substr(0, 30), status_));
    }
  }

 private:
  Tally& tally_;
  std::string request_;
  int status_;
  std::string answer_;
};

/// What all scenarios have in common.
struct Run {
  const Tokenizer& tokenizer;
  bool brief;

  std::unique_ptr<LoadServer> start(const LoadServerOptions& options, Findings& findings) const {
    Result<std::unique_ptr<LoadServer>> server = LoadServer::start(tokenizer, options);
    if (server.ok()) return std::move(*server);
    findings.miss(server.error().message);
    return nullptr;
  }
  Grid grid_of(const LoadServer& server) const {
    return {server.begin_us(), server.period_us(), LoadServer::vocabulary(tokenizer)};
  }
};

std::int64_t now_us() {
  return SteadyClock().now_us();
}

void end_well(LoadServer& server, Findings& findings, std::int64_t patience_us = 10'000'000) {
  if (const std::string left = server.leftovers(patience_us); !left.empty())
    findings.miss("left over: " + left);
  if (!server.end()) findings.miss("the server did not end well");
}

void tell_streams(Findings& findings, Tally& tally, std::int64_t wanted) {
  findings.is("complete", static_cast<double>(tally.complete), static_cast<double>(wanted));
  findings.is("errors", static_cast<double>(tally.errors), 0);
  for (const auto& [what, count] : tally.faults) findings.miss(fmt::format("{}: {}", what, count));
}

/// Joins streams at a steady rate.
class Arrivals {
 public:
  Arrivals(std::int64_t count, double per_second)
      : count_(count), per_second_(per_second), begun_us_(now_us()) {}
  std::int64_t joined() const { return joined_; }
  bool all() const { return joined_ == count_; }
  /// Calls `join(i)` for those whose time has come.
  template <typename Join>
  void go_on(Join join) {
    const double due = static_cast<double>(now_us() - begun_us_) / 1e6 * per_second_;
    while (joined_ < count_ && static_cast<double>(joined_) < due) join(joined_++);
  }

 private:
  std::int64_t count_;
  double per_second_;
  std::int64_t begun_us_;
  std::int64_t joined_ = 0;
};

struct StreamLoad {
  std::int64_t streams = 0;
  std::int64_t period_us = 0;
  int tokens = 0;
  bool chats = false;
  double arrivals_per_s = 0;
};

struct StreamTargets {
  double bytes_per_connection = 0;
  double lateness_p99_ms = 0;
  double cpu_us_per_token = 0;
};

/// L1, and the streaming overhead.
bool streams(const Run& run,
             std::string_view name,
             const StreamLoad& load,
             const StreamTargets& targets) {
  Findings findings(name, run.brief);
  LoadServerOptions options;
  options.sequences = static_cast<std::int32_t>(load.streams);
  options.context = load.tokens + 64;
  options.period_us = load.period_us;
  const std::unique_ptr<LoadServer> server = run.start(options, findings);
  if (!server) return findings.print();
  Tally tally{.grid = run.grid_of(*server)};
  tally.lateness_us.reserve(static_cast<std::size_t>(load.streams * load.tokens));
  LoadGenerator generator(server->port());
  const std::int64_t base_bytes = server->resident_bytes();
  const std::int64_t base_cpu = server->cpu_us();
  const std::int64_t begin = now_us();
  Arrivals arrivals(load.streams, load.arrivals_per_s);
  std::size_t at_once = 0;
  std::int64_t peak_bytes = base_bytes;
  std::int64_t look_us = 0;
  const bool ended = generator.run(
      [&] {
        arrivals.go_on([&](std::int64_t) {
          const std::string request = load.chats ? chat(load.tokens) : completion(load.tokens);
          if (!generator.join(std::make_unique<StreamingClient>(tally, request, load.tokens)))
            tally.fault("no connection");
        });
        at_once = std::max(at_once, generator.size());
        if (now_us() >= look_us) {
          look_us = now_us() + kUsPerSecond / 10;
          peak_bytes = std::max(peak_bytes, server->resident_bytes());
        }
        return arrivals.all() && generator.size() == 0;
      },
      begin + load.period_us * load.tokens + 60 * kUsPerSecond);
  const double seconds = static_cast<double>(now_us() - begin) / 1e6;
  const double cpu_us = static_cast<double>(server->cpu_us() - base_cpu);
  if (!ended) findings.miss("not at an end in time");
  findings.tell("streams", static_cast<double>(load.streams));
  findings.tell("tokens", static_cast<double>(tally.frames));
  findings.tell("seconds", seconds);
  tell_streams(findings, tally, load.streams);
  findings.in_full_at_least("at_once", static_cast<double>(at_once),
                            static_cast<double>(load.streams));
  findings.tell("lateness_p50_ms", percentile_ms(tally.lateness_us, 0.5));
  findings.in_full_at_most("lateness_p99_ms", percentile_ms(tally.lateness_us, 0.99),
                           targets.lateness_p99_ms);
  findings.tell("lateness_max_ms", percentile_ms(tally.lateness_us, 1.0));
  findings.in_full_at_most(
      "bytes_per_connection",
      static_cast<double>(peak_bytes - base_bytes) / static_cast<double>(load.streams),
      targets.bytes_per_connection);
  findings.in_full_at_most("cpu_us_per_token", cpu_us / static_cast<double>(tally.frames),
                           targets.cpu_us_per_token);
  end_well(*server, findings);
  return findings.print();
}

/// L2: requests of all kinds come and go.
bool churn(const Run& run) {
  Findings findings("churn", run.brief);
  const std::int64_t total = run.brief ? 400 : 100'000;
  const std::size_t at_once = run.brief ? 50 : 1000;
  LoadServerOptions options;
  options.sequences = static_cast<std::int32_t>(at_once);
  options.waiting = static_cast<std::int32_t>(at_once);
  options.period_us = 2'000;
  const std::unique_ptr<LoadServer> server = run.start(options, findings);
  if (!server) return findings.print();
  Tally tally;
  LoadGenerator generator(server->port());
  std::mt19937 random(1);
  const auto below = [&random](int bound) {
    return static_cast<int>(random() % static_cast<unsigned>(bound));
  };
  std::int64_t cancels = 0;
  std::int64_t leavers = 0;
  std::int64_t invalid = 0;
  const auto make = [&]() -> std::unique_ptr<LoadClient> {
    const int kind = below(100);
    if (kind < 5) {
      ++invalid;
      switch (below(4)) {
        case 0:
          return std::make_unique<SingleRequestClient>(tally, post("/v1/completions", "{\"model\""),
                                                       400);
        case 1:
          return std::make_unique<SingleRequestClient>(
              tally, post("/v1/chat/completions", R"({"model":"load","messages":[]})"), 400);
        case 2:
          return std::make_unique<SingleRequestClient>(
              tally, post("/v1/completions", R"({"model":"none","prompt":"a"})"), 404);
        default:
          return std::make_unique<SingleRequestClient>(tally, "\x16\x03\x01 no HTTP", 400);
      }
    }
    const int tokens = 1 + below(40);
    const bool talks = below(2) == 0;
    auto client =
        std::make_unique<StreamingClient>(tally, talks ? chat(tokens) : completion(tokens), tokens);
    if (kind < 15) {
      ++leavers;
      client->leave_after(1 + below(tokens), below(2) == 0);
    } else if (kind < 25) {
      ++cancels;
      client->cancel_after(1 + below(tokens), [&tally, &generator](const std::string& id) {
        // Its end may come first: then nobody has that id any more.
        struct Canceller final : SingleRequestClient {
          using SingleRequestClient::SingleRequestClient;
          void on_end(End) override {}
        };
        const std::string order = fmt::format(R"({{"request_id":"{}"}})", id);
        generator.join(std::make_unique<Canceller>(tally, post("/abort_request", order), 0));
      });
    }
    return client;
  };
  std::int64_t joined = 0;
  const std::int64_t begin = now_us();
  const auto go_on_to = [&](std::int64_t last) {
    const bool ended = generator.run(
        [&] {
          while (joined < last && generator.size() < at_once) {
            if (!generator.join(make())) tally.fault("no connection");
            ++joined;
          }
          return joined == last && generator.size() == 0;
        },
        begin + 300 * kUsPerSecond);
    if (!ended) findings.miss("not at an end in time");
    if (const std::string left = server->leftovers(10 * kUsPerSecond); !left.empty())
      findings.miss("left over: " + left);
  };
  const std::int64_t warm = total / 5;
  go_on_to(warm);
  const auto warm_heap = static_cast<double>(server->heap_bytes());
  const auto warm_resident = static_cast<double>(server->resident_bytes());
  go_on_to(total);
  findings.tell("seconds", static_cast<double>(now_us() - begin) / 1e6);
  tell_streams(findings, tally, total);
  findings.tell("cancelled", static_cast<double>(cancels));
  findings.tell("left_midway", static_cast<double>(leavers));
  findings.tell("invalid", static_cast<double>(invalid));
  // Slots and malloc's own caches still grow to their bounds. One allocation lost with every
  // request would be 32 bytes, malloc's smallest, or more.
  const auto heap = static_cast<double>(server->heap_bytes());
  const auto resident = static_cast<double>(server->resident_bytes());
  findings.tell("heap_mb", heap / 1e6);
  findings.in_full_at_most("heap_growth_bytes_per_request",
                           (heap - warm_heap) / static_cast<double>(total - warm), 31.0);
  findings.tell("resident_mb", resident / 1e6);
  findings.tell("resident_growth_mb", (resident - warm_resident) / 1e6);
  end_well(*server, findings);
  return findings.print();
}

/// Reads nothing, or a few bytes at a time.
class SlowReader final : public LoadClient {
 public:
  SlowReader(std::string request, std::int64_t us_per_byte)
      : request_(std::move(request)), us_per_byte_(us_per_byte) {}
  void on_open() override {
    send(request_);
    read_at_most(0);
    if (us_per_byte_ > 0) wake_at(now_us());
  }
  void on_time() override {
    read_at_most(kBite);
    wake_at(now_us() + kUsPerSecond);
  }
  void on_bytes(std::string_view bytes) override {
    read_at_most(0);
    wake_at(now_us() + static_cast<std::int64_t>(bytes.size()) * us_per_byte_);
  }
  void on_end(End /*end*/) override {}

 private:
  static constexpr std::size_t kBite = 50;
  std::string request_;
  std::int64_t us_per_byte_;
};

/// L3: readers that take little or nothing, beside normal ones.
bool slow_readers(const Run& run) {
  Findings findings("slow_readers", run.brief);
  const std::int64_t slow = run.brief ? 5 : 500;  // of each kind
  const std::int64_t normal = run.brief ? 5 : 100;
  const int tokens = run.brief ? 50 : 200;  // of a normal stream
  const int rounds = run.brief ? 1 : 5;     // of normal streams, one after the other
  LoadServerOptions options;
  options.sequences = static_cast<std::int32_t>(2 * slow + normal);
  options.context = 4096;
  options.period_us = run.brief ? 2'000 : 50'000;
  if (run.brief) options.time = {.tick_ms = 10, .write_stall_ms = 200};
  const std::unique_ptr<LoadServer> server = run.start(options, findings);
  if (!server) return findings.print();
  LoadGenerator generator(server->port());
  const std::int64_t idle_bytes = server->resident_bytes();
  std::int64_t peak_bytes = idle_bytes;
  const auto serve_normal = [&](int times) {
    Tally tally{.grid = run.grid_of(*server)};
    for (std::int64_t wanted = normal; wanted <= times * normal; wanted += normal) {
      for (std::int64_t i = 0; i < normal; ++i)
        generator.join(std::make_unique<StreamingClient>(tally, completion(tokens), tokens));
      const bool ended = generator.run(
          [&] {
            peak_bytes = std::max(peak_bytes, server->resident_bytes());
            return tally.complete + tally.errors >= wanted;
          },
          now_us() + 60 * kUsPerSecond);
      if (!ended) findings.miss("normal streams did not end");
    }
    return tally;
  };
  // Large events, so that buffers fill soon. First everybody reads as fast as it can.
  constexpr std::string_view kLarge = R"(,"logprobs":5)";
  Tally others{.grid = run.grid_of(*server)};
  for (std::int64_t i = 0; i < 2 * slow; ++i)
    generator.join(std::make_unique<StreamingClient>(others, completion(tokens, kLarge), tokens));
  Tally before = serve_normal(1);
  generator.run_out(now_us() + 60 * kUsPerSecond);
  const std::int64_t begin = now_us();
  for (std::int64_t i = 0; i < 2 * slow; ++i)
    generator.join(
        std::make_unique<SlowReader>(completion(4000, kLarge), i < slow ? 0 : kUsPerSecond / 100),
        4096);
  Tally beside = serve_normal(rounds);
  // A client that reads nothing does not see its connection end: the server says.
  std::int64_t look_us = 0;
  const bool given_up = generator.run(
      [&] {
        if (now_us() < look_us) return false;
        look_us = now_us() + kUsPerSecond / 20;
        return server->metric("koho:connections_live") == 1.0;  // the question's own
      },
      begin + 150 * kUsPerSecond);
  if (!given_up) findings.miss("slow readers were not given up");
  findings.tell("slow", static_cast<double>(2 * slow));
  findings.tell("given_up_after_s", static_cast<double>(now_us() - begin) / 1e6);
  tell_streams(findings, beside, normal * rounds);
  // Beside as many that read: what is added is the slow ones' doing.
  const double p99_before = percentile_ms(before.lateness_us, 0.99);
  findings.tell("lateness_p99_ms_before", p99_before);
  findings.in_full_at_most("lateness_p99_ms_beside", percentile_ms(beside.lateness_us, 0.99),
                           1.1 * p99_before);
  findings.in_full_at_most(
      "bytes_per_slow_connection",
      static_cast<double>(peak_bytes - idle_bytes) / static_cast<double>(2 * slow),
      320.0 * kKilobyte);  // 64 as any, and 256 that may wait for it
  generator.leave_all();
  end_well(*server, findings, kUsPerSecond);
  return findings.print();
}

/// Sends a request a byte at a time; the server must cut it short with a 408.
class SlowlorisClient final : public LoadClient {
 public:
  SlowlorisClient(Tally& tally, std::string at_once, std::int64_t us_per_byte)
      : tally_(tally), at_once_(std::move(at_once)), us_per_byte_(us_per_byte) {}
  void on_open() override {
    send(at_once_);
    wake_at(now_us() + us_per_byte_);
  }
  void on_time() override {
    send("x");
    wake_at(now_us() + us_per_byte_);
  }
  void on_bytes(std::string_view bytes) override { answer_ += bytes; }
  void on_end(End /*end*/) override {
    if (answer_.starts_with("HTTP/1.1 408 ")) {
      ++tally_.complete;
    } else {
      tally_.fault(fmt::format("{} for 408", answer_.substr(0, 30)));
    }
  }

 private:
  Tally& tally_;
  std::string at_once_;
  std::int64_t us_per_byte_;
  std::string answer_;
};

/// L5: heads and bodies that never end, a body in a million chunks; beside them normal streams.
bool slowloris(const Run& run) {
  Findings findings("slowloris", run.brief);
  const std::int64_t heads = run.brief ? 20 : 5000;
  const std::int64_t bodies = run.brief ? 10 : 1000;
  const std::int64_t chunks = run.brief ? 2000 : 1'000'000;
  const std::int64_t normal = run.brief ? 5 : 100;
  LoadServerOptions options;
  options.period_us = run.brief ? 2'000 : 50'000;
  options.sequences = static_cast<std::int32_t>(normal) + 8;
  if (run.brief) options.time = {.tick_ms = 10, .head_ms = 200, .body_grace_ms = 200};
  const std::int64_t patience_us = options.time.head_ms * 1000;
  const int tokens = static_cast<int>(patience_us * 2 / options.period_us);
  const std::unique_ptr<LoadServer> server = run.start(options, findings);
  if (!server) return findings.print();
  Tally attack;
  Tally tally{.grid = run.grid_of(*server)};
  LoadGenerator generator(server->port());
  const std::int64_t base_cpu = server->cpu_us();
  const std::int64_t begin = now_us();
  for (std::int64_t i = 0; i < normal; ++i)
    generator.join(std::make_unique<StreamingClient>(tally, completion(tokens), tokens));
  for (std::int64_t i = 0; i < heads; ++i)
    generator.join(std::make_unique<SlowlorisClient>(attack, "G", patience_us));
  for (std::int64_t i = 0; i < bodies; ++i)
    generator.join(std::make_unique<SlowlorisClient>(
        attack,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{",
        kUsPerSecond / 10));
  const bool ended = generator.run_out(begin + 8 * patience_us + 60 * kUsPerSecond);
  const double seconds = static_cast<double>(now_us() - begin) / 1e6;
  const double cpu = static_cast<double>(server->cpu_us() - base_cpu) / 1e6;
  if (!ended) findings.miss("not at an end in time");
  findings.tell("seconds", seconds);
  findings.is("attackers_told_408", static_cast<double>(attack.complete),
              static_cast<double>(heads + bodies));
  for (const auto& [what, count] : attack.faults) findings.miss(fmt::format("{}: {}", what, count));
  tell_streams(findings, tally, normal);
  findings.in_full_at_most("lateness_p99_ms", percentile_ms(tally.lateness_us, 0.99), 250.0);
  findings.in_full_at_most("cpu_percent_of_a_core", 100.0 * cpu / seconds, 50.0);

  // One byte a chunk: spaces, then the request.
  std::string body;
  const std::string_view request = R"({"model":"load","prompt":[1],"max_tokens":1})";
  for (std::int64_t i = 0; i < chunks; ++i)
    body += fmt::format("1\r\n{}\r\n",
                        i < chunks - static_cast<std::int64_t>(request.size())
                            ? ' '
                            : request[request.size() - static_cast<std::size_t>(chunks - i)]);
  Tally chunked;
  const std::int64_t chunk_cpu = server->cpu_us();
  generator.join(std::make_unique<SingleRequestClient>(
      chunked,
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" +
          body + "0\r\n\r\n",
      200));
  if (!generator.run_out(now_us() + 60 * kUsPerSecond)) findings.miss("the chunks were not read");
  findings.is("chunked_body_answered", static_cast<double>(chunked.complete), 1);
  findings.tell("chunks", static_cast<double>(chunks));
  findings.tell("chunks_cpu_ms", static_cast<double>(server->cpu_us() - chunk_cpu) / 1e3);
  end_well(*server, findings);
  return findings.print();
}

/// Falls silent without a word, at once or after so many bytes.
class VanishingClient final : public LoadClient {
 public:
  VanishingClient(std::int64_t& vanished, std::string request)
      : vanished_(vanished), request_(std::move(request)) {}
  void on_open() override {
    if (request_.empty()) {
      go();
    } else {
      send(request_);
    }
  }
  void on_bytes(std::string_view /*bytes*/) override { go(); }
  void on_end(End /*end*/) override {}

 private:
  void go() {
    if (!gone_ && vanish()) ++vanished_;
    gone_ = true;
  }

  std::int64_t& vanished_;
  std::string request_;
  bool gone_ = false;
};

/// L4: clients whose machine is gone: idle, in the middle of a stream, and waiting in the queue.
bool half_open(const Run& run) {
  Findings findings("half_open", run.brief);
  if (run.brief) return true;  // the kernel's timers, which set the pace here, have no short form
  constexpr std::int64_t kStreaming = 400;
  constexpr std::int64_t kQueued = 200;
  constexpr std::int64_t kIdle = 400;
  LoadServerOptions options;
  options.sequences = kStreaming;
  options.waiting = 1024;
  options.context = 8192;
  options.period_us = 50'000;
  const std::unique_ptr<LoadServer> server = run.start(options, findings);
  if (!server) return findings.print();
  LoadGenerator generator(server->port());
  std::int64_t vanished = 0;
  for (std::int64_t i = 0; i < kStreaming; ++i)
    generator.join(std::make_unique<VanishingClient>(vanished, completion(8000)));
  for (std::int64_t i = 0; i < kIdle; ++i)
    generator.join(std::make_unique<VanishingClient>(vanished, ""));
  generator.run([&] { return vanished == kStreaming + kIdle; }, now_us() + 5 * kUsPerSecond);
  // Those that wait behind them get pings only; they go as soon as they have asked.
  const std::int64_t begin = now_us();
  struct OneByteClient final : LoadClient {
    std::int64_t* vanished;
    void on_open() override {
      send(completion(8000));
      wake_at(now_us() + kUsPerSecond / 10);
    }
    void on_time() override { *vanished += vanish() ? 1 : 0; }
    void on_bytes(std::string_view) override {}
    void on_end(End) override {}
  };
  for (std::int64_t i = 0; i < kQueued; ++i) {
    auto client = std::make_unique<OneByteClient>();
    client->vanished = &vanished;
    generator.join(std::move(client));
  }
  generator.run([&] { return vanished == kStreaming + kIdle + kQueued; },
                now_us() + 5 * kUsPerSecond);
  findings.is("vanished", static_cast<double>(vanished), kStreaming + kIdle + kQueued);
  const std::string left = server->leftovers(90 * kUsPerSecond);
  const double seconds = static_cast<double>(now_us() - begin) / 1e6;
  if (!left.empty()) findings.miss("left over: " + left);
  findings.at_most("all_found_after_s", seconds, 45.0);
  if (!server->end()) findings.miss("the server did not end well");
  return findings.print();
}

/// Takes so many bytes of an answer and goes away, orderly or not.
class DisconnectingClient final : public LoadClient {
 public:
  DisconnectingClient(std::int64_t& left, std::string request, std::size_t bytes, bool reset)
      : left_(left), request_(std::move(request)), bytes_(bytes), reset_(reset) {}
  void on_open() override {
    send(request_);
    go_on();
  }
  void on_bytes(std::string_view bytes) override {
    bytes_ -= bytes.size();
    go_on();
  }
  void on_end(End /*end*/) override { ++left_; }  // the answer was shorter

 private:
  void go_on() {
    if (bytes_ > 0) {
      read_at_most(bytes_);
      return;
    }
    ++left_;
    leave(reset_);
  }

  std::int64_t& left_;
  std::string request_;
  std::size_t bytes_;
  bool reset_;
};

/// Counts an answer's bytes.
class MeasuringClient final : public LoadClient {
 public:
  MeasuringClient(std::size_t& bytes, std::string request)
      : bytes_(bytes), request_(std::move(request)) {}
  void on_open() override { send(request_); }
  void on_bytes(std::string_view bytes) override { bytes_ += bytes.size(); }
  void on_end(End /*end*/) override {}

 private:
  std::size_t& bytes_;
  std::string request_;
};

/// L6: clients leave at every byte of an answer, in both ways.
bool every_byte(const Run& run) {
  Findings findings("every_byte", run.brief);
  constexpr int kTokens = 40;
  constexpr std::size_t kAtOnce = 200;
  const std::size_t stride = run.brief ? 97 : 1;
  LoadServerOptions options;
  options.sequences = kAtOnce;
  options.waiting = kAtOnce;
  options.period_us = 1'000;
  const std::unique_ptr<LoadServer> server = run.start(options, findings);
  if (!server) return findings.print();
  LoadGenerator generator(server->port());
  std::size_t bytes = 0;
  generator.join(std::make_unique<MeasuringClient>(bytes, chat(kTokens)));
  generator.run_out(now_us() + 10 * kUsPerSecond);
  std::int64_t joined = 0;
  std::int64_t left = 0;
  std::size_t place = 0;
  const std::int64_t begin = now_us();
  const bool ended = generator.run(
      [&] {
        while (place < 2 * bytes && generator.size() < kAtOnce) {
          generator.join(std::make_unique<DisconnectingClient>(left, chat(kTokens), place / 2,
                                                               place % 2 == 1));
          ++joined;
          place += stride;
        }
        return place >= 2 * bytes && generator.size() == 0;
      },
      begin + 300 * kUsPerSecond);
  if (!ended) findings.miss("not at an end in time");
  findings.tell("seconds", static_cast<double>(now_us() - begin) / 1e6);
  findings.at_least("answer_bytes", static_cast<double>(bytes), 40.0 * kTokens);
  findings.is("left", static_cast<double>(left), static_cast<double>(joined));
  findings.in_full_at_least("disconnects_counted", server->metric("koho:disconnects_total"),
                            static_cast<double>(joined) * 0.5);
  end_well(*server, findings);
  return findings.print();
}

/// L7: twenty times what the ranks can answer.
bool overload(const Run& run) {
  Findings findings("overload", run.brief);
  constexpr int kTokens = 50;
  constexpr double kTimes = 20.0;
  const double offered_s = run.brief ? 0.2 : 60.0;
  LoadServerOptions options;
  options.sequences = run.brief ? 8 : 64;
  options.waiting = options.sequences;
  options.period_us = run.brief ? 1'000 : 10'000;
  const std::unique_ptr<LoadServer> server = run.start(options, findings);
  if (!server) return findings.print();
  // What the ranks give: a row a sequence and step.
  const double tokens_per_s = options.sequences * 1e6 / static_cast<double>(options.period_us);
  const double requests_per_s = kTimes * tokens_per_s / kTokens;
  const auto requests = static_cast<std::int64_t>(requests_per_s * offered_s);
  Tally tally{.grid = run.grid_of(*server)};
  LoadGenerator generator(server->port());
  const std::int64_t begin = now_us();
  Arrivals arrivals(requests, requests_per_s);
  std::int64_t frames_in_time = 0;
  const bool ended = generator.run(
      [&] {
        arrivals.go_on([&](std::int64_t) {
          auto client = std::make_unique<StreamingClient>(tally, completion(kTokens), kTokens);
          client->may_be_refused();
          if (!generator.join(std::move(client))) tally.fault("no connection");
        });
        if (!arrivals.all()) frames_in_time = tally.frames;
        return arrivals.all() && generator.size() == 0;
      },
      begin + static_cast<std::int64_t>(2 * offered_s * 1e6) + 60 * kUsPerSecond);
  if (!ended) findings.miss("not at an end in time");
  findings.tell("requests", static_cast<double>(requests));
  findings.tell("refused", static_cast<double>(tally.refused));
  tell_streams(findings, tally, requests - tally.refused);
  findings.at_least("answered", static_cast<double>(tally.complete), 1);
  findings.tell("seconds", static_cast<double>(now_us() - begin) / 1e6);
  const double goodput = static_cast<double>(frames_in_time) / offered_s;
  findings.tell("goodput_percent", 100.0 * goodput / tokens_per_s);
  if (!run.brief && goodput < 0.9 * tokens_per_s) findings.miss("goodput is below 90 %");
  findings.in_full_at_most("refused_p50_ms", percentile_ms(tally.refusal_us, 0.5), 50.0);
  findings.in_full_at_most("refused_p99_ms", percentile_ms(tally.refusal_us, 0.99), 50.0);
  findings.in_full_at_most("lateness_p99_ms", percentile_ms(tally.lateness_us, 0.99), 250.0);
  // A place in the queue waits for one that runs, and runs then.
  findings.in_full_at_most("total_p99_ms", percentile_ms(tally.total_us, 0.99),
                           1.5 * 2.0 * kTokens * static_cast<double>(options.period_us) / 1e3);
  end_well(*server, findings);
  return findings.print();
}

/// Sends small requests in packs without waiting for an answer, each with a name of its own, and
/// wants the answers in their order.
class PipeliningClient final : public LoadClient {
 public:
  PipeliningClient(Tally& tally, std::int64_t number, std::int64_t requests)
      : tally_(tally), number_(number), requests_(requests) {}

  void on_open() override { send_pack(); }
  void on_bytes(std::string_view bytes) override {
    pending_ += bytes;
    std::size_t at = 0;
    while (true) {
      const std::size_t head = pending_.find("\r\n\r\n", at);
      if (head == std::string::npos) break;
      const std::string_view fields = std::string_view(pending_).substr(at, head + 2 - at);
      std::size_t length = 0;
      const std::string_view told = field(fields, "Content-Length: ");
      std::from_chars(told.data(), told.data() + told.size(), length);
      if (pending_.size() < head + 4 + length) break;
      const std::string_view body = std::string_view(pending_).substr(head + 4, length);
      if (!fields.starts_with("HTTP/1.1 200 ")) tally_.fault(fields.substr(0, 12));
      if (field(fields, "x-request-id: ") != name(answered_)) tally_.fault("another's answer");
      if (body.find(generates(answered_) ? R"("completion_tokens":1)" : R"("engine":"koho")") ==
          body.npos)
        tally_.fault("the answer to another question");
      ++answered_;
      ++tally_.frames;
      at = head + 4 + length;
    }
    pending_.erase(0, at);
    if (answered_ == requests_) {
      ++tally_.complete;
      leave(false);
    } else if (answered_ == sent_) {
      send_pack();
    }
  }
  void on_end(End /*end*/) override { tally_.fault("ended by the server"); }

 private:
  static constexpr std::int64_t kPack = 16;

  static std::string_view field(std::string_view fields, std::string_view name) {
    const std::size_t at = fields.find(name);
    if (at == fields.npos) return {};
    const std::string_view rest = fields.substr(at + name.size());
    return rest.substr(0, rest.find('\r'));
  }
  std::string name(std::int64_t request) const { return fmt::format("{}-{}", number_, request); }
  /// One in so many takes a step of the engine: those behind it could overtake it.
  static bool generates(std::int64_t request) { return request % kPack == 3; }

  void send_pack() {
    std::string pack;
    for (; sent_ < requests_ && (pack.empty() || sent_ % kPack != 0); ++sent_) {
      const std::string_view body =
          generates(sent_) ? R"({"model":"load","prompt":[1],"max_tokens":1})" : "";
      pack += fmt::format(
          "{} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {}\r\nContent-Type: application/json"
          "\r\nContent-Length: {}\r\n\r\n{}",
          body.empty() ? "GET /version" : "POST /v1/completions", name(sent_), body.size(), body);
    }
    send(pack);
  }

  Tally& tally_;
  std::int64_t number_;
  std::int64_t requests_;
  std::int64_t sent_ = 0;
  std::int64_t answered_ = 0;
  std::string pending_;
};

/// L8: many small requests in packs on connections that stay.
bool pipelining(const Run& run) {
  Findings findings("pipelining", run.brief);
  const std::int64_t connections = run.brief ? 10 : 100;
  const std::int64_t each = run.brief ? 400 : 10'000;
  LoadServerOptions options;
  options.sequences = 128;
  const std::unique_ptr<LoadServer> server = run.start(options, findings);
  if (!server) return findings.print();
  LoadGenerator generator(server->port());
  Tally tally;
  const std::int64_t begin = now_us();
  for (std::int64_t i = 0; i < connections; ++i)
    generator.join(std::make_unique<PipeliningClient>(tally, i, each));
  if (!generator.run_out(begin + 400 * kUsPerSecond)) findings.miss("not at an end in time");
  const double seconds = static_cast<double>(now_us() - begin) / 1e6;
  tell_streams(findings, tally, connections);
  findings.is("answers", static_cast<double>(tally.frames),
              static_cast<double>(connections * each));
  findings.tell("seconds", seconds);
  findings.tell("answers_per_s", static_cast<double>(tally.frames) / seconds);
  end_well(*server, findings);
  return findings.print();
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  bool brief = false;
  std::string_view tokenizer_file;
  std::vector<std::string_view> chosen;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--brief") {
      brief = true;
    } else if (tokenizer_file.empty()) {
      tokenizer_file = argument;
    } else {
      chosen.push_back(argument);
    }
  }
  using Scenario = std::pair<std::string_view, bool (*)(const Run&)>;
  const std::array<Scenario, 10> scenarios{{
      {"streams",
       [](const Run& run) {
         const StreamLoad load = run.brief ? StreamLoad{100, 20'000, 10, false, 1000}
                                           : StreamLoad{10'000, 500'000, 240, false, 2000};
         return streams(run, "streams", load, {64.0 * kKilobyte, 250.0, 1e9});
       }},
      {"overhead",
       [](const Run& run) {
         const StreamLoad load = run.brief ? StreamLoad{32, 5'000, 20, false, 1e6}
                                           : StreamLoad{256, 20'000, 1000, false, 1e6};
         return streams(run, "overhead", load, {256.0 * kKilobyte, 250.0, 20.0});
       }},
      {"overhead_chat",
       [](const Run& run) {
         const StreamLoad load = run.brief ? StreamLoad{32, 5'000, 20, true, 1e6}
                                           : StreamLoad{256, 20'000, 1000, true, 1e6};
         return streams(run, "overhead_chat", load, {256.0 * kKilobyte, 250.0, 20.0});
       }},
      {"churn", churn},
      {"slow_readers", slow_readers},
      {"half_open", half_open},
      {"slowloris", slowloris},
      {"every_byte", every_byte},
      {"overload", overload},
      {"pipelining", pipelining},
  }};
  if (tokenizer_file.empty()) {
    fmt::print(stderr, "server_load TOKENIZER.json [--brief] [SCENARIO ...]\nscenarios:");
    for (const auto& [name, scenario] : scenarios) fmt::print(stderr, " {}", name);
    fmt::print(stderr, "\n");
    return 2;
  }
  const Result<Tokenizer> tokenizer = Tokenizer::load(std::string(tokenizer_file));
  if (!tokenizer.ok()) {
    fmt::print(stderr, "{}\n", tokenizer.error().message);
    return 1;
  }
  const Run run{*tokenizer, brief};
  bool good = true;
  for (const auto& [name, scenario] : scenarios)
    if (chosen.empty() || std::ranges::find(chosen, name) != chosen.end())
      good = scenario(run) && good;
  return good ? 0 : 1;
}
