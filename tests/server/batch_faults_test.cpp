// SPDX-License-Identifier: Apache-2.0
// Batches on a disk that fails, in random stories: cancels, expiry, keys that go and come, clients
// in between, ends of the server with and without a word. In the end every line has one outcome,
// the counts are those of the files, and nothing is held.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "batch_client.h"
#include "client.h"
#include "failing_disk.h"
#include "tests/simulation/random.h"
#include "tests/support/environment.h"
#include "tests/support/temporary_directory.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

using chat::Json;
using koho::testing::FailingDisk;

Runtime& small_runtime() {
  static const std::unique_ptr<Runtime> runtime =
      start_tiny_runtime({.threads = 1, .sequences = 4});
  return *runtime;
}

class Story {
 public:
  explicit Story(std::uint64_t seed)
      : random_(seed),
        disk_(directory_.path(), random_.next()),
        has_keys_(random_.chance(600)),
        is_tight_(random_.chance(300)),
        reads_fail_(random_.chance(250)) {
    if (has_keys_) keys_ = {"sk-a", "sk-b"};
    start();
  }

  void run() {
    create();
    for (int i = random_.in(5, 25); i > 0; --i) {
      act();
      pause(random_.in(0, 40));
      look();
    }
    end();
  }

 private:
  struct Batch {
    std::string id{};
    std::string key{};
    std::set<std::string> lines{};
    std::int64_t completed_seen = 0;
    bool cancelled = false;
  };

  static void pause(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

  void start() {
    server_ = std::make_unique<TinyServer>(
        [&](ServerSettings& settings) {
          settings.files_dir = directory_.path();
          settings.files_bytes_max = files_bytes();
          settings.api_keys = settings_of_keys();
        },
        small_runtime());
  }
  void stop() {
    clients_.clear();
    server_.reset();
    disk_.mend();
  }
  std::int64_t files_bytes() const { return is_tight_ ? 60'000 : 10'000'000; }
  std::vector<ApiKeySettings> settings_of_keys() const {
    std::vector<ApiKeySettings> made;
    for (const std::string& key : keys_) {
      if (key == key_gone_) continue;
      made.emplace_back(key);
      if (key == "sk-b") made.back().requests_at_once = 4;
    }
    return made;
  }
  std::string some_key() { return keys_.empty() ? "" : keys_[random_.next() % keys_.size()]; }
  std::uint16_t port() const { return server_->port(); }

  void act() {
    switch (random_.in(0, 9)) {
      case 0:
      case 1:
        if (batches_.size() < 5) create();
        return;
      case 2:
        if (!batches_.empty()) cancel(batches_[random_.next() % batches_.size()]);
        return;
      case 3:
        disk_.mend();
        return;
      case 4:
      case 5:
        return disk_.fail(random_.chance(300) ? 1000 : random_.in(20, 400), reads_fail_);
      case 6:
        if (!has_keys_) return;
        key_gone_ = key_gone_.empty() && random_.chance(500) ? some_key() : "";
        return server_->server().core().set_api_keys(settings_of_keys());
      case 7:
        return ask();
      case 8:
        if (random_.chance(500)) pause(1100);
        return;
      default:
        // As if the machine had stopped, or as an operator stops it.
        if (random_.chance(600)) {
          disk_.stop_after(random_.in(0, 12));
          pause(random_.in(0, 60));
        }
        stop();
        start();
    }
  }

  void create() {
    const std::string key = some_key();
    Batch batch{.key = key};
    std::string content;
    for (int i = random_.in(1, 40); i > 0; --i) {
      const std::string name = "r" + std::to_string(i);
      const char* const wrong[] = {R"(,"top_p":9)", R"(,"stream":true)"};
      content += line(name, random_.in(1, 20), random_.chance(100) ? wrong[random_.in(0, 1)] : "");
      if (random_.chance(50)) content += "\n";
      batch.lines.insert(name);
    }
    const Reply file = upload(port(), content, key);
    if (file.status != 200) return;
    const std::string window = random_.chance(200) ? std::to_string(random_.in(1, 2)) + "s" : "24h";
    const Reply made = call(port(), "POST", "/v1/batches", key,
                            R"({"endpoint":"/v1/completions","completion_window":")" + window +
                                R"(","input_file_id":")" + text_at(file.json(), "id") + "\"}");
    if (made.status != 200) return;
    batch.id = text_at(made.json(), "id");
    batches_.push_back(std::move(batch));
  }

  void cancel(Batch& batch) {
    const Reply reply = call(port(), "POST", "/v1/batches/" + batch.id + "/cancel", batch.key);
    if (reply.status != 200) return;
    // One that has all its answers is finalizing, and stays so.
    batch.cancelled = batch.cancelled || text_at(reply.json(), "status") == "cancelling";
  }

  /// A client that leaves some time.
  void ask() {
    auto client = std::make_unique<Client>(port());
    const std::string body =
        R"({"model":"tiny","prompt":[5],"max_tokens":200,"ignore_eos":true,"stream":true})";
    client->send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: " +
                 std::string("application/json\r\n") +
                 (has_keys_ ? "Authorization: Bearer sk-a\r\n" : "") +
                 "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    clients_.push_back(std::move(client));
    if (clients_.size() > 4) clients_.erase(clients_.begin());
  }

  void look() {
    for (Batch& batch : batches_) {
      const Reply reply = call(port(), "GET", "/v1/batches/" + batch.id, batch.key);
      if (reply.status == 401) continue;
      ASSERT_EQ(reply.status, 200) << reply.body;
      note(batch, reply.json());
    }
  }
  static void note(Batch& batch, const Json& now) {
    const std::int64_t completed = std::stoll(text_at(now, "request_counts.completed"));
    batch.completed_seen = std::max(batch.completed_seen, completed);
  }

  void end() {
    disk_.mend();
    clients_.clear();
    key_gone_.clear();
    if (random_.chance(500)) {
      stop();
      start();
    } else if (has_keys_) {
      server_->server().core().set_api_keys(settings_of_keys());
    }
    for (Batch& batch : batches_)
      if (is_tight_ || random_.chance(200)) cancel(batch);
    for (Batch& batch : batches_) expect_end(batch);
    EXPECT_TRUE(server_->becomes_idle());
    expect_nothing_held();
  }

  void expect_end(Batch& batch) {
    const Json now = wait_for(port(), batch.id, has_ended, batch.key);
    const std::string text = chat::dump_json(now);
    note(batch, now);
    EXPECT_EQ(text_at(now, "request_counts.completed"), std::to_string(batch.completed_seen))
        << "an answer is lost: " << text;
    const std::string status = text_at(now, "status");
    if (batch.cancelled) {
      EXPECT_NE(status, "completed") << text;
    }
    EXPECT_NE(status, "failed") << text;
    const auto answers = read_lines(port(), text_at(now, "output_file_id"), batch.key);
    const auto errors = read_lines(port(), text_at(now, "error_file_id"), batch.key);
    EXPECT_EQ(text_at(now, "request_counts.completed"), std::to_string(answers.size())) << text;
    EXPECT_EQ(text_at(now, "request_counts.failed"), std::to_string(errors.size())) << text;
    std::set<std::string> outcomes;
    for (const auto* const found : {&answers, &errors})
      for (const auto& [name, outcome] : *found)
        EXPECT_TRUE(outcomes.insert(name).second) << name << " has two outcomes: " << text;
    EXPECT_TRUE(std::ranges::includes(batch.lines, outcomes)) << text;
    const std::size_t left = batch.lines.size() - outcomes.size();
    const std::string total = text_at(now, "request_counts.total");
    if (left == 0) {
      EXPECT_EQ(total, std::to_string(batch.lines.size())) << text;
      EXPECT_EQ(text_at(now, "errors"), "null") << text;
    } else {
      // Its input could not be read when it ended.
      EXPECT_TRUE(reads_fail_ && status != "completed") << text;
      EXPECT_EQ(text_at(now, "errors.data.0.param"), "input_file_id") << text;
      const std::string message = text_at(now, "errors.data.0.message");
      const std::string rest =
          total == std::to_string(outcomes.size())  // nobody has counted them
              ? "its other requests"
              : std::to_string(left) + " of its " + std::to_string(batch.lines.size());
      EXPECT_NE(message.find(rest), std::string::npos) << text;
    }
    for (const char* kind : {".output", ".errors"}) {
      std::error_code none;
      const auto bytes =
          std::filesystem::file_size(directory_.path() / "batches" / (batch.id + kind), none);
      EXPECT_TRUE(none || bytes == 0) << kind << " " << text;
    }
  }

  /// Without its files everybody has the whole share again.
  void expect_nothing_held() {
    const std::vector<std::string> owners = has_keys_ ? keys_ : std::vector<std::string>{""};
    const auto remove_all = [&](const std::string& key) {
      const Json list = call(port(), "GET", "/v1/files", key).json();
      for (const Json& file : at(list, "data").items) {
        const std::string path = "/v1/files/" + text_at(file, "id");
        EXPECT_EQ(call(port(), "DELETE", path, key).status, 200);
      }
    };
    for (const std::string& key : owners) remove_all(key);
    const std::string all(static_cast<std::size_t>(files_bytes() / (has_keys_ ? 2 : 1)), 'x');
    for (const std::string& key : owners) {
      const Reply reply = upload(port(), all, key);
      EXPECT_EQ(reply.status, 200) << reply.body;
      remove_all(key);
    }
  }

  koho::testing::TemporaryDirectory directory_;
  simulation::Random random_;
  FailingDisk disk_;
  const bool has_keys_;
  const bool is_tight_;  // files beyond a share are met
  const bool reads_fail_;
  std::vector<std::string> keys_;
  std::string key_gone_;
  std::unique_ptr<TinyServer> server_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Batch> batches_;
};

TEST(BatchFaults, EveryLineHasOneOutcomeWhateverFails) {
  const std::uint64_t first = koho::testing::number_from_environment("KOHO_BATCH_SEED", 1);
  const std::uint64_t stories = koho::testing::number_from_environment("KOHO_BATCH_STORIES", 6, 1);
  for (std::uint64_t seed = first; seed < first + stories && !HasFailure(); ++seed) {
    SCOPED_TRACE("KOHO_BATCH_SEED=" + std::to_string(seed));
    Story(seed).run();
  }
}

}  // namespace
}  // namespace koho::server
