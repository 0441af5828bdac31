// SPDX-License-Identifier: Apache-2.0
// What the scenarios of server_load share: what they find, the clients that check every answer they
// get, and how streams arrive.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "base/log.h"
#include "bench/load_generator.h"
#include "bench/load_koho_server.h"
#include "bench/load_server.h"
#include "tokenizer/tokenizer.h"

namespace koho::bench {

inline constexpr std::int64_t kUsPerSecond = 1'000'000;
inline constexpr std::int64_t kKilobyte = 1024;

struct Run;

/// What a scenario found. Targets of time and memory count in full runs only: short ones are for
/// machines that are busy with other things, and for sanitizers.
class Findings {
 public:
  Findings(std::string_view scenario, const Run& run);

  void tell(std::string_view name, double value) {
    json_ += fmt::format(R"(,"{}":{})", name, std::round(value * 100.0) / 100.0);
  }
  void name(std::string_view name, std::string_view text) {
    json_ += fmt::format(R"(,"{}":{})", name, log::quoted(text));
  }
  void list(std::string_view name, const std::vector<double>& values) {
    std::string text;
    for (const double value : values)
      text += fmt::format("{}{}", text.empty() ? "" : ",", std::round(value * 100.0) / 100.0);
    json_ += fmt::format(R"(,"{}":[{}])", name, text);
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
  /// Also among the run's rows. False if anything was missed.
  bool print() const;

 private:
  bool brief_;
  std::vector<std::string>& rows_;
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

/// Of `values`, which are in microseconds and are put in another order.
double percentile_ms(std::vector<std::int32_t>& values, double share);
/// `key`: an API key, or "".
std::string post(std::string_view path,
                 std::string_view body,
                 bool keep_alive = false,
                 std::string_view key = {});
/// A streamed completion of `tokens` tokens; `more`: members of its JSON.
std::string completion(int tokens, std::string_view more = {}, bool keep_alive = false);
std::string chat(int tokens, bool keep_alive = false);
std::int64_t now_us();

/// Reads one stream and checks it: as many tokens as are due, in the order of the steps, then the
/// end.
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
      // A server that was late for a step of one sequence goes on at the grid's next time.
      const std::int64_t later = (token - last_ + grid.vocabulary) % grid.vocabulary;
      if (last_ >= 0 && (later == 0 || later > grid.vocabulary / 2))
        tally_.fault("tokens out of order");
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
  std::vector<std::string>& rows;  // what scenarios found, as JSON
  std::int64_t requests = 0;       // of the soak; 0: as many as it has
  KohoProgram koho{};              // what the soak loads; without it a server over paced ranks

  /// Over paced ranks.
  std::unique_ptr<LoadServer> start(const LoadServerOptions& options, Findings& findings) const;
  /// `koho` where it is named.
  std::unique_ptr<LoadServer> start_koho(const LoadServerOptions& options,
                                         Findings& findings) const;
  Grid grid_of(const LoadServer& server) const;
};

/// Ends the server; a miss if it held anything back.
void end_well(LoadServer& server, Findings& findings, std::int64_t patience_us = 10'000'000);
void tell_streams(Findings& findings, Tally& tally, std::int64_t wanted);

/// Starts streams at a steady rate.
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

// ---- scenarios: whether all targets were met

bool streams(const Run& run,
             std::string_view name,
             const StreamLoad& load,
             const StreamTargets& targets);
bool churn(const Run& run);
bool slow_readers(const Run& run);
bool slowloris(const Run& run);
bool half_open(const Run& run);
bool every_byte(const Run& run);
bool overload(const Run& run);
bool pipelining(const Run& run);
bool soak(const Run& run);

}  // namespace koho::bench
