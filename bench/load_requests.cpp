// SPDX-License-Identifier: Apache-2.0
// Scenarios of server_load about single requests: broken off at every byte, more than the server
// can answer, many on one connection.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "bench/load_scenarios.h"

namespace koho::bench {

namespace {

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

}  // namespace

namespace {

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

}  // namespace

/// L6: clients leave at every byte of an answer, in both ways.
bool every_byte(const Run& run) {
  Findings findings("every_byte", run);
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
  findings.in_full_at_least("disconnects_counted", server->metric("koho_disconnects_total"),
                            static_cast<double>(joined) * 0.5);
  end_well(*server, findings);
  return findings.print();
}

/// L7: twenty times what the ranks can answer.
bool overload(const Run& run) {
  Findings findings("overload", run);
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

namespace {

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

}  // namespace

/// L8: many small requests in packs on connections that stay.
bool pipelining(const Run& run) {
  Findings findings("pipelining", run);
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

}  // namespace koho::bench
