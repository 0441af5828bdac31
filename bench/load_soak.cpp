// SPDX-License-Identifier: Apache-2.0
// A day's mixed traffic without its pauses: every endpoint, streams and whole answers, several
// choices, bad input, wrong keys, clients that leave, aborts, and API keys whose limits change. It
// stops twenty times: then memory, descriptors, threads, processes and pages are compared with
// those at the start, and the counters of the metrics page with each other.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "bench/load_memory.h"
#include "bench/load_scenarios.h"

namespace koho::bench {
namespace {

using Draws = std::mt19937_64;

std::int64_t in(Draws& draws, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(draws);
}

struct Ask {
  std::string bytes;
  int status = 200;        // that is right for it
  bool generates = false;  // so that it may also be refused for a limit
};

std::string head(std::string_view method, std::string_view path, std::string_view key) {
  return fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n", method,
                     path, key);
}

std::string posted(std::string_view path, std::string_view key, std::string_view body) {
  return head("POST", path, key) +
         fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}", body.size(),
                     body);
}

std::string words(Draws& draws, std::int64_t most) {
  constexpr std::array<std::string_view, 12> kWords{"the ",  "sea ",  "is ", "blue ",
                                                    "and ",  "37 ",   "+ ",  "maß ",
                                                    "東京 ", "🙂 ", "\\n", "code "};
  std::string text;
  for (std::int64_t i = in(draws, 1, most); i > 0; --i)
    text += kWords[static_cast<std::size_t>(in(draws, 0, kWords.size() - 1))];
  return text;
}

/// Members that requests of every API take.
std::string members(Draws& draws, bool with_n) {
  std::string more = fmt::format(R"(,"temperature":{},"stream":{})", in(draws, 0, 1),
                                 in(draws, 0, 1) == 0 ? "true" : "false");
  if (in(draws, 0, 9) == 0) more += R"(,"seed":7)";
  if (with_n && in(draws, 0, 3) == 0) more += fmt::format(R"(,"n":{})", in(draws, 2, 4));
  if (with_n && in(draws, 0, 9) == 0) more += R"(,"stop":["maß","x"])";
  if (in(draws, 0, 19) == 0) more += R"(,"timeout":0.0001)";
  if (in(draws, 0, 19) == 0) more += fmt::format(R"(,"priority":{})", in(draws, 0, 7));
  if (in(draws, 0, 19) == 0) more += R"(,"cache_salt":"mine")";
  return more;
}

Ask generation(Draws& draws, std::string_view key) {
  const std::int64_t tokens = in(draws, 1, 24);
  const std::string text = words(draws, 60);
  Ask ask{.bytes = {}, .generates = true};
  switch (in(draws, 0, 5)) {
    case 0:
      ask.bytes = posted(
          "/v1/completions", key,
          fmt::format(R"({{"model":"load","prompt":"{}","max_tokens":{}{}{}}})", text, tokens,
                      in(draws, 0, 9) == 0 ? R"(,"logprobs":3)" : "", members(draws, true)));
      break;
    case 1:
      ask.bytes = posted("/v1/completions", key,
                         fmt::format(R"({{"model":"load","prompt":[[1,2,3,{}],[5,6]],)"
                                     R"("max_tokens":{}{}}})",
                                     in(draws, 1, 500), tokens, members(draws, true)));
      break;
    case 2:
      ask.bytes = posted(
          "/v1/chat/completions", key,
          fmt::format(R"({{"model":"load","messages":[{{"role":"system","content":"Be brief."}},)"
                      R"({{"role":"user","content":"{}"}}],"max_tokens":{}{}}})",
                      text, tokens, members(draws, true)));
      break;
    case 3:
      ask.bytes =
          posted("/v1/responses", key,
                 fmt::format(R"({{"model":"load","input":"{}","max_output_tokens":{}{}}})", text,
                             std::max<std::int64_t>(tokens, 16), members(draws, false)));
      break;
    case 4:
      ask.bytes =
          posted("/v1/messages", key,
                 fmt::format(R"({{"model":"load","max_tokens":{},"messages":[{{"role":"user",)"
                             R"("content":"{}"}}]{}}})",
                             tokens, text, members(draws, false)));
      break;
    default:
      ask.bytes = posted("/generate", key,
                         fmt::format(R"({{"ids":[1,2,3,{}],"max_tokens":{}{}}})", in(draws, 1, 500),
                                     tokens, members(draws, false)));
  }
  return ask;
}

Ask operation(Draws& draws, std::string_view key) {
  constexpr std::array<std::string_view, 10> kPaths{
      "/v1/models", "/v1/models/load", "/metrics", "/health", "/livez",
      "/version",   "/server_info",    "/load",    "/ui",     "/readyz"};
  const std::string text = words(draws, 30);
  switch (in(draws, 0, 4)) {
    case 0:
      return {posted("/tokenize", key, fmt::format(R"({{"prompt":"{}"}})", text))};
    case 1:
      return {posted("/detokenize", key, R"({"tokens":[1,2,3,44]})")};
    case 2:
      return {
          posted("/v1/messages/count_tokens", key,
                 fmt::format(R"({{"model":"load","messages":[{{"role":"user","content":"{}"}}]}})",
                             text))};
    case 3:
      return {
          posted("/v1/chat/completions/render", key,
                 fmt::format(R"({{"model":"load","messages":[{{"role":"user","content":"{}"}}]}})",
                             text))};
    default:
      return {head("GET", kPaths[static_cast<std::size_t>(in(draws, 0, kPaths.size() - 1))], key) +
              "\r\n"};
  }
}

Ask bad_input(Draws& draws, std::string_view key) {
  const auto chat = [&](std::string_view body, int status = 400) {
    return Ask{posted("/v1/chat/completions", key, body), status, true};
  };
  switch (in(draws, 0, 11)) {
    case 0:
      return chat(R"({"model":"load","messages":)");
    case 1:
      return chat(R"({"model":"none","messages":[{"role":"user","content":"a"}]})", 404);
    case 2:
      return chat(R"({"model":"load","messages":[]})");
    case 3:
      return chat(R"({"model":"load","messages":[{"role":"user","content":"a"}],"temperature":9})");
    case 4:
      return chat("{\"model\":\"load\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}");
    case 5:
      return {posted("/v1/completions", key,
                     fmt::format(R"({{"model":"load","prompt":[{}],"max_tokens":9999}})",
                                 in(draws, 1, 99))),
              400, true};
    case 6:
      return {posted("/v1/nothing", key, "{}"), 404};
    case 7:
      return {head("PUT", "/v1/models", key) + "Content-Length: 0\r\n\r\n", 405};
    case 8:
      return {posted("/v1/messages", "wrong", R"({"model":"load"})"), 401};
    case 9:
      return {posted("/abort_request", key, R"({"request_id":"nobody-has-this"})"), 404};
    case 10:
      return {head("GET", "/debug/cache/nobody-has-this", key) + "\r\n", 404};
    default:
      return chat(fmt::format(R"({{"model":"load","messages":{}1{}}})", std::string(100, '['),
                              std::string(100, ']')));
  }
}

/// What all clients of the soak tell.
struct Soak {
  std::int64_t promised = 0;  // asked, and to be asked by the clients that there are
  std::int64_t asked = 0;
  std::int64_t answered = 0;
  std::int64_t left = 0;         // by clients that went away
  std::int64_t limited = 0;      // 429
  std::int64_t out_of_time = 0;  // 408, 503, 504: the request's own timeout
  std::int64_t streams = 0;
  double seconds = 0.0;
  std::map<std::string, std::int64_t> faults{};

  void fault(std::string_view what) { ++faults[std::string(what)]; }
};

/// One after another on one connection, until it has asked so often or goes away.
class SoakClient final : public LoadClient {
 public:
  SoakClient(Soak& soak, std::uint64_t seed, std::int64_t requests)
      : soak_(soak), draws_(seed), requests_(requests), leaves_(in(draws_, 0, 3) != 0) {
    soak_.promised += requests_;
  }
  ~SoakClient() override { soak_.promised -= requests_ - asked_; }
  SoakClient(const SoakClient&) = delete;
  SoakClient& operator=(const SoakClient&) = delete;

  void on_open() override { ask(); }
  void on_bytes(std::string_view bytes) override {
    if (leave_after_ >= 0 && (leave_after_ -= static_cast<std::int64_t>(bytes.size())) <= 0) {
      ++soak_.left;
      leave(in(draws_, 0, 1) == 0);
      return;
    }
    answer_ += bytes;
    if (!complete()) return;
    judge();
    if (asked_ == requests_ || closes_) {
      leave(false);
    } else {
      ask();
    }
  }
  void on_end(End /*end*/) override {
    ++soak_.left;
    soak_.fault(fmt::format("ended by the server after {}", answer_.substr(0, 30)));
  }

 private:
  void ask() {
    answer_.clear();
    begin_ = 0;
    const std::string_view key =
        kSoakKeys[static_cast<std::size_t>(in(draws_, 0, kSoakKeys.size() - 1))];
    const std::int64_t kind = in(draws_, 0, 99);
    asked_is_ = kind < 70   ? generation(draws_, key)
                : kind < 85 ? operation(draws_, key)
                            : bad_input(draws_, key);
    ++asked_;
    ++soak_.asked;
    if (leaves_ && asked_ == requests_ && asked_is_.generates) {
      // Anywhere: within its own request, before the answer, or in the middle of it.
      leave_after_ = in(draws_, 0, 3000);
      const std::int64_t half = in(draws_, 0, 5);
      if (half == 0) {
        send(std::string_view(asked_is_.bytes).substr(0, asked_is_.bytes.size() / 2));
        wake_at(now_us() + 1000);
        return;
      }
      if (half == 1) wake_at(now_us() + 1000);
    }
    send(asked_is_.bytes);
  }
  void on_time() override {
    ++soak_.left;
    leave(in(draws_, 0, 1) == 0);
  }

  /// Whether answer_ holds the whole answer.
  bool complete() {
    const std::size_t end = answer_.find("\r\n\r\n");
    if (end == std::string::npos) return false;
    const std::string_view fields = std::string_view(answer_).substr(0, end + 2);
    if (begin_ == 0) begin_ = end + 4;
    if (const std::size_t at = fields.find("Content-Length: "); at != fields.npos)
      return answer_.size() >=
             end + 4 + static_cast<std::size_t>(std::atoll(answer_.c_str() + at + 16));
    while (begin_ < answer_.size()) {
      const std::size_t line = answer_.find("\r\n", begin_);
      if (line == std::string::npos) return false;
      const std::size_t bytes = std::strtoull(answer_.c_str() + begin_, nullptr, 16);
      if (answer_.size() < line + 4 + bytes) return false;
      begin_ = line + 4 + bytes;
      if (bytes == 0) return true;
    }
    return false;
  }

  void judge() {
    ++soak_.answered;
    const int status = std::atoi(answer_.c_str() + 9);
    closes_ = answer_.find("Connection: close") < answer_.find("\r\n\r\n");
    soak_.streams += answer_.find("text/event-stream") < answer_.find("\r\n\r\n") ? 1 : 0;
    if (status == 429 && asked_is_.generates) {
      ++soak_.limited;
      const bool full = answer_.find("Retry-After: ") != std::string::npos;
      if (!full) soak_.fault("429 without Retry-After");
      return;
    }
    const bool timed = asked_is_.bytes.find(R"("timeout")") != std::string::npos;
    if (timed && (status == 408 || status == 503 || status == 504)) {
      ++soak_.out_of_time;
      return;
    }
    if (status == 529 && asked_is_.generates) {
      ++soak_.limited;
      return;
    }
    // Where others' bodies are read, one of them may have the id that is to be aborted.
    if (status == 200 && answer_.ends_with(R"({"status":"pending"})")) return;
    if (status != asked_is_.status)
      soak_.fault(fmt::format("{} for {} of {}: {}", status, asked_is_.status,
                              asked_is_.bytes.substr(0, asked_is_.bytes.find(" HTTP")),
                              answer_.substr(answer_.find("\r\n\r\n") + 4, 120)));
  }

  Soak& soak_;
  Draws draws_;
  std::int64_t requests_;
  bool leaves_;
  std::int64_t asked_ = 0;
  Ask asked_is_;
  std::string answer_;
  std::size_t begin_ = 0;  // of what complete() has not walked
  bool closes_ = false;
  std::int64_t leave_after_ = -1;
};

/// Four long answers at once, read to the end or refused.
class FullClient final : public LoadClient {
 public:
  explicit FullClient(int tokens) : tokens_(tokens) {}
  void on_open() override {
    std::string prompt = "1";
    for (int i = 0; i < 99; ++i) prompt += fmt::format(",{}", i);
    send(post(
        "/v1/completions",
        fmt::format(
            R"({{"model":"load","prompt":[{}],"max_tokens":{},"n":4,"logprobs":5,"ignore_eos":true,)"
            R"("stream":true}})",
            prompt, tokens_),
        false, kSoakKeys[0]));
  }
  void on_bytes(std::string_view /*bytes*/) override {}
  void on_end(End /*end*/) override {}

 private:
  int tokens_;
};

/// What must be on the metrics page while no request lives.
void check_counters(const LoadServer& server, double pages, std::int64_t stop, Findings& findings) {
  const std::string page = server.metrics_page();
  const auto value = [&](std::string_view name) { return LoadServer::metric_in(page, name); };
  const auto is = [&](std::string_view name, double wanted) {
    if (value(name) != wanted)
      findings.miss(fmt::format("stop {}: {} is {} for {}", stop, name, value(name), wanted));
  };
  const auto equal = [&](std::string_view a, std::string_view b) {
    if (value(a) != value(b) || value(a) < 0)
      findings.miss(fmt::format("stop {}: {} is {}, {} is {}", stop, a, value(a), b, value(b)));
  };
  equal("vllm:request_success_total", "vllm:request_generation_tokens_count");
  equal("vllm:request_success_total", "vllm:e2e_request_latency_seconds_count");
  equal("vllm:request_success_total", "vllm:request_params_n_sum");
  equal("koho_requests_accepted_total", "vllm:request_params_n_count");
  equal("koho_requests_accepted_total", "vllm:request_prompt_tokens_count");
  equal("koho_requests_accepted_total", "vllm:request_max_num_generation_tokens_count");
  equal("vllm:prompt_tokens_total", "vllm:request_prompt_tokens_sum");
  equal("vllm:generation_tokens_total", "vllm:request_generation_tokens_sum");
  equal("vllm:time_to_first_token_seconds_count", "vllm:request_decode_time_seconds_count");
  is("vllm:num_requests_running", 0);
  is("vllm:num_requests_waiting", 0);
  is("koho_key_requests_live", 0);
  is("koho_device_failures_total", 0);
  is("koho_device_up", 1);
  is("koho_pages", pages);
  // Answers that the client did not take are not charged, nor those of a key that is gone.
  if (value("koho_key_tokens_total") >
      value("vllm:generation_tokens_total") + value("vllm:prompt_tokens_total"))
    findings.miss("keys are charged more tokens than there were");
}

/// What was asked and answered.
void report(const Soak& soak, const LoadServer& server, std::int64_t requests, Findings& findings) {
  if (const std::string device = server.device(); !device.empty()) findings.name("device", device);
  findings.at_least("requests", static_cast<double>(soak.asked), static_cast<double>(requests));
  findings.tell("seconds", soak.seconds);
  findings.tell("requests_per_s", static_cast<double>(soak.asked) / soak.seconds);
  findings.tell("answered", static_cast<double>(soak.answered));
  findings.tell("left", static_cast<double>(soak.left));
  findings.tell("streams", static_cast<double>(soak.streams));
  findings.tell("limited", static_cast<double>(soak.limited));
  findings.tell("out_of_time", static_cast<double>(soak.out_of_time));
  findings.tell("generated_tokens", server.metric("vllm:generation_tokens_total"));
  findings.tell("pages_cached", server.metric("koho_pages_cached"));
  findings.is("unaccounted", static_cast<double>(soak.asked - soak.answered - soak.left), 0);
}

LoadServerOptions server_options(bool brief) {
  LoadServerOptions options;
  options.sequences = brief ? 8 : 48;
  options.waiting = brief ? 12 : 80;
  options.choices = 4;
  options.keys = true;
  return options;
}

}  // namespace

bool soak(const Run& run) {
  Findings findings("soak", run);
  const std::int64_t requests = run.requests > 0 ? run.requests : run.brief ? 4'000 : 1'000'000;
  const std::int64_t stops = run.brief ? 5 : 20;
  const std::uint64_t each = run.brief ? 5 : 25;  // requests of a connection, on average
  const LoadServerOptions options = server_options(run.brief);
  const auto at_once = static_cast<std::size_t>(2 * options.sequences);
  const std::unique_ptr<LoadServer> server = run.start_koho(options, findings);
  if (!server) return findings.print();
  LoadGenerator generator(server->port());
  Soak soak;
  const std::int64_t threads = server->threads();
  const double pages = server->metric("koho_pages");
  MemoryAtStops memory;
  std::int64_t reloads = 0;
  std::uint64_t seed = 1;
  const std::int64_t begin = now_us();
  // As much at once as the engine takes, so that every buffer has had its largest request.
  for (std::int64_t i = 0; i < 2 * (options.sequences + options.waiting); ++i)
    generator.join(std::make_unique<FullClient>(run.brief ? 8 : 400));
  if (!generator.run_out(now_us() + 1'800 * kUsPerSecond)) findings.miss("the first never ended");
  for (std::int64_t stop = 1; stop <= stops; ++stop) {
    const std::int64_t until = requests * stop / stops;
    std::int64_t reload_at = soak.asked;
    const bool ended = generator.run(
        [&] {
          if (soak.asked >= reload_at && soak.asked < until) {
            server->reload_keys();
            ++reloads;
            reload_at = soak.asked + std::max<std::int64_t>(requests / 500, 100);
          }
          while (soak.promised < until && generator.size() < at_once) {
            ++seed;
            auto client = std::make_unique<SoakClient>(
                soak, seed, 1 + static_cast<std::int64_t>(seed * 7919 % (2 * each)));
            if (!generator.join(std::move(client))) {
              soak.fault("no connection");
              break;
            }
          }
          return soak.asked >= until && generator.size() == 0;
        },
        now_us() + 3'600 * kUsPerSecond);
    if (!ended) findings.miss("not at an end in time");
    const std::string left = server->leftovers(60 * kUsPerSecond);
    if (!left.empty()) findings.miss(fmt::format("left over at stop {}: {}", stop, left));
    if (server->threads() != threads)
      findings.miss(
          fmt::format("{} threads at stop {}, {} at first", server->threads(), stop, threads));
    check_counters(*server, pages, stop, findings);
    memory.look(*server);
    if (!left.empty()) break;  // it would be so at every further stop
  }
  soak.seconds = static_cast<double>(now_us() - begin) / 1e6;
  report(soak, *server, requests, findings);
  memory.report(findings);
  findings.tell("processes", static_cast<double>(server->processes().size()));
  findings.tell("threads", static_cast<double>(threads));
  findings.tell("key_reloads", static_cast<double>(reloads));
  for (const auto& [what, count] : soak.faults)
    findings.miss(fmt::format("{} times {}", count, what));
  end_well(*server, findings);
  return findings.print();
}

}  // namespace koho::bench
