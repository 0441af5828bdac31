// SPDX-License-Identifier: Apache-2.0
// /v1/files and /v1/batches: what clients see, what a restart keeps, whose files are whose.
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "batch_client.h"
#include "client.h"
#include "raw_requests.h"
#include "server/batch_records.h"
#include "tests/support/temporary_directory.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

using chat::Json;
using koho::testing::TemporaryDirectory;

class Batches : public ::testing::Test {
 protected:
  std::unique_ptr<TinyServer> start(const std::function<void(ServerSettings&)>& change = {},
                                    Runtime& runtime = tiny_runtime()) const {
    return std::make_unique<TinyServer>(
        [&](ServerSettings& settings) {
          settings.files_dir = directory_.path();
          if (change) change(settings);
        },
        runtime);
  }
  /// Leaves a batch for the next server, as of one that ended then: so it meets several at once,
  /// however slowly the disk takes each.
  void leave(const std::string& id,
             const std::string& input,
             std::int64_t order,
             const std::string& owner = {}) const {
    BatchRecords records(directory_.path() / "batches");
    ASSERT_TRUE(records.read().ok());
    BatchRecord record{.id = id,
                       .owner = owner,
                       .endpoint = "/v1/completions",
                       .input_file_id = input,
                       .completion_window = "24h",
                       .created_at = Core::unix_seconds() - 1000 + order,
                       .expires_at = Core::unix_seconds() + 86'400};
    record.enter(BatchStatus::validating, record.created_at);
    ASSERT_TRUE(records.add(record).ok());
  }

  TemporaryDirectory directory_;
};

TEST_F(Batches, KeepsFilesUntilTheyAreDeleted) {
  const std::string content = lines(3, 2) + std::string(300'000, ' ') + "\n";
  std::string id;
  {
    const auto server = start();
    const Reply made = upload(server->port(), content);
    ASSERT_EQ(made.status, 200) << made.body;
    id = text_at(made.json(), "id");
    EXPECT_EQ(text_at(made.json(), "object"), "file");
    EXPECT_EQ(text_at(made.json(), "filename"), "in.jsonl") << "without its path";
    EXPECT_EQ(text_at(made.json(), "bytes"), std::to_string(content.size()));
    EXPECT_EQ(upload(server->port(), "x", "", "fine-tune").status, 400);
  }
  const auto server = start();
  const Reply got = call(server->port(), "GET", "/v1/files/" + id);
  EXPECT_EQ(got.status, 200) << "it survives the server";
  EXPECT_EQ(call(server->port(), "GET", "/v1/files/" + id + "/content").body, content);
  const Json list = call(server->port(), "GET", "/v1/files?purpose=batch&limit=1").json();
  EXPECT_EQ(text_at(list, "data.0.id"), id);
  EXPECT_EQ(text_at(list, "has_more"), "false");
  EXPECT_EQ(call(server->port(), "GET", "/v1/files/../lock/content").status, 404);
  EXPECT_EQ(call(server->port(), "GET", "/v1/files?limit=0").status, 400);
  EXPECT_EQ(text_at(call(server->port(), "DELETE", "/v1/files/" + id).json(), "deleted"), "true");
  EXPECT_EQ(call(server->port(), "GET", "/v1/files/" + id).status, 404);
  EXPECT_EQ(call(server->port(), "DELETE", "/v1/files/" + id).status, 404);
}

TEST_F(Batches, BoundsWhatItKeeps) {
  const auto server = start([](ServerSettings& settings) {
    settings.files_bytes_max = 1000;
    settings.http.upload_bytes = 4000;
  });
  const Reply first = upload(server->port(), std::string(900, 'x'));
  EXPECT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(upload(server->port(), std::string(101, 'x')).status, 429);
  EXPECT_EQ(upload(server->port(), std::string(5000, 'x')).status, 413);
  call(server->port(), "DELETE", "/v1/files/" + text_at(first.json(), "id"));
  EXPECT_EQ(upload(server->port(), std::string(101, 'x')).status, 200);
}

TEST_F(Batches, AServerWithoutADirectorySaysSo) {
  const Reply reply = call(shared_server().port(), "GET", "/v1/files");
  EXPECT_EQ(reply.status, 404);
  EXPECT_NE(reply.body.find("--files-dir"), std::string::npos);
}

TEST_F(Batches, AnswersEveryLine) {
  const auto server = start();
  const Json made =
      create(server->port(), lines(12, 3) + "\n" + line("wrong", 3, R"(,"top_p":9)") +
                                 line("stream", 3, R"(,"stream":true)") + line("last", 1));
  EXPECT_EQ(text_at(made, "object"), "batch");
  EXPECT_EQ(text_at(made, "metadata.name"), "a \"b\"");
  const Json batch = wait_for(server->port(), text_at(made, "id"), has_ended);
  EXPECT_EQ(text_at(batch, "status"), "completed");
  EXPECT_EQ(text_at(batch, "request_counts.total"), "15");
  EXPECT_EQ(text_at(batch, "request_counts.completed"), "13");
  EXPECT_EQ(text_at(batch, "request_counts.failed"), "2");
  for (const char* time : {"in_progress_at", "finalizing_at", "completed_at", "expires_at"})
    EXPECT_GT(std::stoll(text_at(batch, time)), 1'000'000'000) << time;
  const auto answers = read_lines(server->port(), text_at(batch, "output_file_id"));
  EXPECT_EQ(answers.size(), 13U);
  const Json& last = answers.at("last");
  EXPECT_EQ(text_at(last, "response.status_code"), "200");
  EXPECT_EQ(text_at(last, "response.body.usage.completion_tokens"), "1");
  const Reply direct = post(server->port(), "/v1/completions",
                            R"({"prompt":"Once upon r4","temperature":0,"ignore_eos":true,)"
                            R"("max_tokens":3})");
  EXPECT_EQ(text_at(answers.at("r4"), "response.body.choices.0.text"),
            text_at(direct.json(), "choices.0.text"));
  const auto errors = read_lines(server->port(), text_at(batch, "error_file_id"));
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(text_at(errors.at("wrong"), "response.body.error.param"), "top_p");
  EXPECT_EQ(text_at(errors.at("stream"), "response.body.error.param"), "stream");
  const Json list = call(server->port(), "GET", "/v1/batches").json();
  EXPECT_EQ(text_at(list, "data.0.id"), text_at(batch, "id"));
  EXPECT_TRUE(server->becomes_idle());
}

TEST_F(Batches, AFileThatCannotBeOpenedIsNotGone) {
  const auto server = start();
  const std::string id = text_at(upload(server->port(), "x").json(), "id");
  const std::filesystem::path path = directory_.path() / "files" / id;
  std::filesystem::remove(path);
  std::filesystem::create_symlink(path, path);  // ELOOP
  EXPECT_EQ(call(server->port(), "GET", "/v1/files/" + id + "/content").status, 500);
  std::filesystem::remove(path);  // by nobody who asked the server
  EXPECT_EQ(call(server->port(), "GET", "/v1/files/" + id + "/content").status, 500);
}

TEST_F(Batches, AnswersStopAtTheirOwnersShare) {
  const auto server = start([](ServerSettings& settings) {
    settings.api_keys = {"much", "little"};
    settings.files_bytes_max = 60'000;
  });
  const std::string id = text_at(create(server->port(), lines(100, 1), "much"), "id");
  wait_for(
      server->port(), id, [](const Json& now) { return at(now, "wait_reason").is_string(); },
      "much");
  EXPECT_EQ(upload(server->port(), std::string(7'000, 'x'), "much").status, 429);
  EXPECT_EQ(upload(server->port(), std::string(14'000, 'x'), "little").status, 200);
  EXPECT_EQ(call(server->port(), "POST", "/v1/batches/" + id + "/cancel", "much").status, 200);
  const Json end = wait_for(server->port(), id, has_ended, "much");
  EXPECT_EQ(text_at(end, "status"), "cancelled");
  const std::string output = text_at(end, "output_file_id");
  EXPECT_LT(call(server->port(), "GET", "/v1/files/" + output + "/content", "much").body.size(),
            30'000U)
      << "half of all, less its input, beside what ran";
  EXPECT_GT(read_lines(server->port(), output, "much").size(), 10U);
}

TEST_F(Batches, LastAnswersMayExceedTheShare) {
  const std::string content = line("last", 1);
  const auto server = start([&](ServerSettings& settings) {
    settings.api_keys = {"much", "little"};
    settings.api_keys[0].requests_at_once = 2;
    settings.files_bytes_max = 2 * std::ssize(content) + 2;
  });
  const std::string id = text_at(create(server->port(), content, "much"), "id");
  const Json end = wait_for(server->port(), id, has_ended, "much");
  EXPECT_EQ(text_at(end, "status"), "completed");
}

TEST_F(Batches, FilesOfOthersDoNotStopABatch) {
  const auto server = start([](ServerSettings& settings) {
    settings.api_keys = {"first", "later"};
    settings.files_bytes_max = 200'000;
  });
  // Nearly the share of one alone, so more than that of one beside another.
  const std::string content = lines(30, 100) + std::string(65'000, '\n');
  const std::string id = text_at(create(server->port(), content, "first"), "id");
  EXPECT_EQ(upload(server->port(), std::string(50'000, 'x'), "later").status, 200);
  const Json end = wait_for(server->port(), id, has_ended, "first");
  EXPECT_EQ(text_at(end, "status"), "completed");
  EXPECT_EQ(text_at(end, "request_counts.completed"), "30");
}

TEST_F(Batches, ABadFileFailsBeforeARequestRuns) {
  const auto server = start();
  const Json made = create(
      server->port(), line("a", 1) + "torn {\n" + line("a", 1) +
                          R"({"custom_id":"u","method":"POST","url":"/v1/responses","body":{}})"
                          "\n");
  const Json batch = wait_for(server->port(), text_at(made, "id"), has_ended);
  EXPECT_EQ(text_at(batch, "status"), "failed");
  EXPECT_EQ(text_at(batch, "errors.object"), "list");
  const std::vector<std::string> names_of_faults{"invalid_json_line", "duplicate_custom_id",
                                                 "mismatched_url"};
  for (std::size_t i = 0; i < names_of_faults.size(); ++i) {
    EXPECT_EQ(text_at(batch, "errors.data." + std::to_string(i) + ".code"), names_of_faults[i]);
    EXPECT_EQ(text_at(batch, "errors.data." + std::to_string(i) + ".line"), std::to_string(i + 2));
  }
  EXPECT_EQ(text_at(batch, "output_file_id"), "null");
  const Json empty = create(server->port(), "\n");
  EXPECT_EQ(
      text_at(wait_for(server->port(), text_at(empty, "id"), has_ended), "errors.data.0.code"),
      "empty_file");
  EXPECT_EQ(call(server->port(), "POST", "/v1/batches", "",
                 R"({"endpoint":"/v1/completions","completion_window":"24h",)"
                 R"("input_file_id":"file-none"})")
                .status,
            404);
}

TEST_F(Batches, CancelsAndExpiresWithWhatIsDone) {
  const auto server = start();
  const Json made = create(server->port(), lines(400, 60));
  const std::string id = text_at(made, "id");
  wait_for(server->port(), id,
           [](const Json& batch) { return text_at(batch, "request_counts.completed") != "0"; });
  const Json during =
      call(server->port(), "DELETE", "/v1/files/" + text_at(made, "input_file_id")).json();
  EXPECT_NE(text_at(during, "error.message").find("reads this file"), std::string::npos);
  EXPECT_EQ(call(server->port(), "POST", "/v1/batches/" + id + "/cancel").status, 200);
  const Json batch = wait_for(server->port(), id, has_ended);
  EXPECT_EQ(text_at(batch, "status"), "cancelled");
  const auto answers = read_lines(server->port(), text_at(batch, "output_file_id"));
  const auto errors = read_lines(server->port(), text_at(batch, "error_file_id"));
  EXPECT_EQ(answers.size() + errors.size(), 400U);
  ASSERT_FALSE(errors.empty());
  EXPECT_EQ(text_at(errors.begin()->second, "error.code"), "batch_cancelled");
  EXPECT_EQ(call(server->port(), "POST", "/v1/batches/" + id + "/cancel").status, 400);

  const Json late = create(server->port(), lines(200, 200), "", "1s");
  const Json expired = wait_for(server->port(), text_at(late, "id"), has_ended);
  EXPECT_EQ(text_at(expired, "status"), "expired");
  const auto unanswered = read_lines(server->port(), text_at(expired, "error_file_id"));
  ASSERT_FALSE(unanswered.empty());
  EXPECT_EQ(text_at(unanswered.begin()->second, "error.code"), "batch_expired");
  EXPECT_TRUE(server->becomes_idle());
}

TEST_F(Batches, GoOnInTheNextServer) {
  std::string id;
  {
    const auto server = start();
    id = text_at(create(server->port(), lines(40, 40) + line("wrong", 3, R"(,"top_p":9)")), "id");
    wait_for(server->port(), id,
             [](const Json& batch) { return text_at(batch, "request_counts.completed") != "0"; });
  }
  // Until it is open again its owner sees how far it was.
  BatchRecords records(directory_.path() / "batches");
  ASSERT_TRUE(records.read().ok());
  EXPECT_GT(records.get(id).completed, 0);
  const auto server = start();
  const Json batch = wait_for(server->port(), id, has_ended);
  EXPECT_EQ(text_at(batch, "status"), "completed");
  EXPECT_EQ(text_at(batch, "request_counts.completed"), "40");
  EXPECT_EQ(text_at(batch, "request_counts.failed"), "1");
  EXPECT_EQ(read_lines(server->port(), text_at(batch, "output_file_id")).size(), 40U);
  EXPECT_EQ(read_lines(server->port(), text_at(batch, "error_file_id")).size(), 1U);
}

TEST_F(Batches, BelongToTheirKeyAndItsLimits) {
  const auto server = start([](ServerSettings& settings) {
    settings.api_keys = {ApiKeySettings("sk-a"), ApiKeySettings("sk-b")};
    settings.api_keys[0].requests_at_once = 2;
  });
  EXPECT_EQ(call(server->port(), "GET", "/v1/files").status, 401);
  const Json made = create(server->port(), lines(6, 4), "sk-a");
  const std::string id = text_at(made, "id");
  const std::string input = text_at(made, "input_file_id");
  EXPECT_EQ(call(server->port(), "GET", "/v1/batches/" + id, "sk-b").status, 404);
  EXPECT_EQ(call(server->port(), "POST", "/v1/batches/" + id + "/cancel", "sk-b").status, 404);
  EXPECT_EQ(call(server->port(), "GET", "/v1/files/" + input, "sk-b").status, 404);
  EXPECT_EQ(call(server->port(), "GET", "/v1/files/" + input + "/content", "sk-b").status, 404);
  EXPECT_EQ(call(server->port(), "DELETE", "/v1/files/" + input, "sk-b").status, 404);
  EXPECT_EQ(text_at(call(server->port(), "GET", "/v1/files", "sk-b").json(), "data"), "[]");
  EXPECT_EQ(call(server->port(), "POST", "/v1/batches", "sk-b",
                 R"({"endpoint":"/v1/completions","completion_window":"24h","input_file_id":")" +
                     input + "\"}")
                .status,
            404);
  const Json batch = wait_for(server->port(), id, has_ended, "sk-a");
  EXPECT_EQ(text_at(batch, "request_counts.completed"), "6") << chat::dump_json(batch);
  const std::string output = text_at(batch, "output_file_id");
  EXPECT_EQ(call(server->port(), "GET", "/v1/files/" + output + "/content", "sk-b").status, 404);
  const auto keys = server->server().core().api_keys();
  EXPECT_EQ(keys->find("sk-a")->usage().requests, 6U);
  EXPECT_EQ(keys->find("sk-a")->usage().generated_tokens, 24U);
}

TEST_F(Batches, OneFromBeforeThereWereKeysIsCancelled) {
  std::string id;
  {
    const auto server = start();
    id = text_at(create(server->port(), lines(400, 60)), "id");
  }
  {
    const auto server =
        start([](ServerSettings& settings) { settings.api_keys = {ApiKeySettings("sk-a")}; });
    EXPECT_EQ(call(server->port(), "GET", "/v1/batches/" + id, "sk-a").status, 404);
    const Json own = create(server->port(), lines(1, 1), "sk-a");  // behind it
    wait_for(server->port(), text_at(own, "id"), has_ended, "sk-a");
  }
  const auto server = start();
  const Json batch = wait_for(server->port(), id, has_ended);
  EXPECT_EQ(text_at(batch, "status"), "cancelled");
  const auto errors = read_lines(server->port(), text_at(batch, "error_file_id"));
  ASSERT_FALSE(errors.empty());
  EXPECT_NE(text_at(errors.begin()->second, "error.message").find("has keys now"),
            std::string::npos);
}

TEST_F(Batches, AKeyAtItsLimitDelaysLinesAndLosesNone) {
  const auto server = start([](ServerSettings& settings) {
    settings.api_keys = {ApiKeySettings("sk-a")};
    settings.api_keys[0].requests_per_minute = 240;  // one more every 250 ms
  });
  const auto key = server->server().core().api_keys()->find("sk-a");
  for (int i = 0; i < 238; ++i) {
    EXPECT_FALSE(key->begin(server->server().core().clock().now_us()));
    key->end();
  }
  const Json made = create(server->port(), lines(5, 1), "sk-a");
  const Json batch = wait_for(server->port(), text_at(made, "id"), has_ended, "sk-a");
  EXPECT_EQ(text_at(batch, "request_counts.completed"), "5");
  EXPECT_EQ(text_at(batch, "request_counts.failed"), "0");
}

TEST_F(Batches, OfOneKeyDoNotKeepAnothersWaiting) {
  const auto server = start([](ServerSettings& settings) {
    settings.api_keys = {ApiKeySettings("sk-slow"), ApiKeySettings("sk-b")};
    settings.api_keys[0].requests_per_minute = 1;
  });
  std::string waiting;
  for (int i = 0; i < 9; ++i)
    waiting = text_at(create(server->port(), lines(20, 1), "sk-slow", "30d"), "id");
  wait_for(
      server->port(), waiting,
      [](const Json& batch) { return text_at(batch, "status") == "in_progress"; }, "sk-slow");
  const Json made = create(server->port(), lines(3, 1), "sk-b");
  const Json batch = wait_for(server->port(), text_at(made, "id"), has_ended, "sk-b");
  EXPECT_EQ(text_at(batch, "status"), "completed") << chat::dump_json(batch);
  // Nor do eight open ones a ninth from being cancelled.
  EXPECT_EQ(
      call(server->port(), "POST", "/v1/batches/" + waiting + "/cancel", "sk-slow", "").status,
      200);
  const Json cancelled = wait_for(server->port(), waiting, has_ended, "sk-slow");
  EXPECT_EQ(text_at(cancelled, "status"), "cancelled") << chat::dump_json(cancelled);
}

TEST_F(Batches, LargeInputsAreCheckedBesideOtherBatches) {
  std::string small;
  std::string large;
  {
    const auto server = start();
    small = text_at(upload(server->port(), lines(40, 1)).json(), "id");
    large = text_at(upload(server->port(), lines(40'000, 1)).json(), "id");
  }
  // The large one 60 times: many seconds.
  for (int i = 0; i <= 60; ++i) leave("batch_" + std::to_string(i), i == 0 ? small : large, i);
  {
    const auto server = start();
    EXPECT_EQ(text_at(wait_for(server->port(), "batch_0", has_ended), "status"), "completed");
    const Json list = call(server->port(), "GET", "/v1/batches?limit=100").json();
    EXPECT_EQ(text_at(list, "data.0.status"), "validating");
  }
  // The end of the server waited for none of them.
  const auto server = start();
  const Json list = call(server->port(), "GET", "/v1/batches?limit=100").json();
  EXPECT_EQ(text_at(list, "data.0.status"), "validating");
}

TEST_F(Batches, AFileThatIsGoneIsNotToldWithItsPath) {
  const Json made = [&] {
    const auto server = start();
    return create(server->port(), lines(2000, 400));
  }();
  std::filesystem::remove(directory_.path() / "files" / text_at(made, "input_file_id"));
  const auto server = start();
  const Json batch = wait_for(server->port(), text_at(made, "id"), has_ended);
  EXPECT_EQ(text_at(batch, "status"), "failed");
  const std::string text = chat::dump_json(batch);
  EXPECT_EQ(text.find(directory_.path().string()), std::string::npos) << text;
}

TEST_F(Batches, GiveWayToRequestsThatClientsWaitFor) {
  const std::unique_ptr<Runtime> runtime = start_tiny_runtime({.threads = 1, .sequences = 2});
  const auto server = start({}, *runtime);
  const std::string id = text_at(create(server->port(), lines(2, 500)), "id");
  wait_for(server->port(), id,
           [&](const Json&) { return server->serving().engine.statistics().running > 0; });
  // Two requests fill the server: the batch's one is taken back while both are there.
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 2; ++i) {
    clients.push_back(std::make_unique<Client>(server->port()));
    ASSERT_TRUE(clients.back()->send(request_of(endless())));
  }
  EXPECT_TRUE(
      comes_true([&] { return server->serving().engine.statistics().requests_cancelled > 0; }));
  EXPECT_FALSE(has_ended(call(server->port(), "GET", "/v1/batches/" + id).json()));
  clients.clear();
  const Json batch = wait_for(server->port(), id, has_ended);
  EXPECT_EQ(text_at(batch, "request_counts.completed"), "2");
  const auto answers = read_lines(server->port(), text_at(batch, "output_file_id"));
  ASSERT_EQ(answers.size(), 2U);
  for (const auto& [name, answer] : answers)
    EXPECT_EQ(text_at(answer, "response.body.usage.completion_tokens"), "500") << name;
  EXPECT_TRUE(server->becomes_idle());
}

TEST_F(Batches, LinesThatGiveWayAreNotHeldAgainstTheirKey) {
  const std::unique_ptr<Runtime> runtime = start_tiny_runtime({.threads = 1, .sequences = 2});
  const auto server = start(
      [](ServerSettings& settings) {
        settings.api_keys = {ApiKeySettings("sk-a"), ApiKeySettings("sk-b")};
        settings.api_keys[0].requests_per_minute = 3;
      },
      *runtime);
  const auto key = server->server().core().api_keys()->find("sk-a");
  const std::string id = text_at(create(server->port(), lines(1, 400), "sk-a"), "id");
  std::string request = request_of(endless());
  request.insert(request.find("\r\n") + 2, "Authorization: Bearer sk-b\r\n");
  for (std::uint64_t times = 1; times <= 5; ++times) {
    ASSERT_TRUE(comes_true([&] { return key->usage().requests == times; }));
    Client first(server->port());
    Client second(server->port());
    ASSERT_TRUE(first.send(request));
    ASSERT_TRUE(second.send(request));
    ASSERT_TRUE(comes_true([&] { return key->usage().live == 0; })) << "it is taken back";
  }
  const Json batch = wait_for(server->port(), id, has_ended, "sk-a");
  EXPECT_EQ(text_at(batch, "request_counts.completed"), "1");
  EXPECT_EQ(key->usage().refused, 0U);
}

TEST_F(Batches, ALargeOneThatIsCancelledStopsNoOther) {
  const auto with_keys = [](ServerSettings& settings) {
    settings.api_keys = {ApiKeySettings("sk-a"), ApiKeySettings("sk-b")};
    settings.api_keys[0].requests_per_minute = 1;
  };
  std::string large;
  std::string small_input;
  std::string large_owner;
  std::string small_owner;
  {
    const auto server = start(with_keys);
    large = text_at(create(server->port(), lines(50'000, 1), "sk-a"), "id");
    small_input = text_at(upload(server->port(), lines(1, 1), "sk-b").json(), "id");
    large_owner = server->server().core().api_keys()->find("sk-a")->owner();
    small_owner = server->server().core().api_keys()->find("sk-b")->owner();
    wait_for(
        server->port(), large,
        [](const Json& batch) { return text_at(batch, "status") == "in_progress"; }, "sk-a");
  }
  {
    BatchRecords records(directory_.path() / "batches");
    ASSERT_TRUE(records.read().ok());
    ASSERT_TRUE(records.cancel(large_owner, large).ok());
  }
  leave("batch_small", small_input, 0, small_owner);
  const auto server = start(with_keys);
  EXPECT_EQ(text_at(wait_for(server->port(), "batch_small", has_ended, "sk-b"), "status"),
            "completed");
  const Json over = wait_for(server->port(), large, has_ended, "sk-a");
  EXPECT_EQ(text_at(over, "status"), "cancelled");
  const ApiKey::Usage usage = server->server().core().api_keys()->find("sk-a")->usage();
  EXPECT_EQ(usage.requests + usage.refused, 0U) << "none of its lines is sent";
  const auto ended_at = [this](const std::string& id) {
    return std::filesystem::last_write_time(directory_.path() / "batches" / (id + ".json"));
  };
  EXPECT_LT(ended_at("batch_small"), ended_at(large)) << "it did not wait for the large one";
  const auto outcomes = read_lines(server->port(), text_at(over, "error_file_id"), "sk-a");
  const auto answers = read_lines(server->port(), text_at(over, "output_file_id"), "sk-a");
  EXPECT_EQ(outcomes.size() + answers.size(), 50'000U);
}

}  // namespace
}  // namespace koho::server
