// SPDX-License-Identifier: Apache-2.0
// Batches and files of a server that was killed, and those whose files are damaged or cannot be
// read: nothing is lost in silence, and nothing stays that is nobody's.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/mapped_file.h"
#include "batch_client.h"
#include "client.h"
#include "server/batch_service.h"
#include "tests/support/temporary_directory.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

using chat::Json;
namespace fs = std::filesystem;

class BatchRestarts : public ::testing::Test {
 protected:
  void start() {
    server_ = std::make_unique<TinyServer>(
        [&](ServerSettings& settings) { settings.files_dir = directory_.path(); });
  }
  /// One whose model is still loading.
  std::unique_ptr<Server> start_without_model() {
    ServerSettings settings;
    settings.host = "127.0.0.1";
    settings.port = 0;
    settings.log_requests = false;
    settings.files_dir = directory_.path();
    auto server = Server::start(settings, clock_);
    EXPECT_TRUE(server.ok());
    return std::move(*server);
  }
  /// Leaves a directory as of a server that was killed when 20 of a batch's 400 lines had answers:
  /// the record is as when its status changed.
  void leave_batch() {
    start();
    id_ = text_at(create(server_->port(), lines(20, 3)), "id");
    const Json made = end();
    server_.reset();
    const fs::path files = directory_.path() / "files";
    const std::string output = text_at(made, "output_file_id");
    input_ = files / text_at(made, "input_file_id");
    fs::rename(files / output, part("output"));
    fs::remove(files / (output + ".json"));
    std::ofstream more(input_, std::ios::app);
    for (int i = 20; i < 400; ++i) more << line("r" + std::to_string(i), 3);
    change_record(R"("stored_status":"completed")", R"("stored_status":"in_progress")");
    change_record(R"("total":20,"completed":20)", R"("total":400,"completed":0)");
    change_record('"' + output + '"', "null");
  }
  fs::path part(const std::string& kind) const {
    return directory_.path() / "batches" / (id_ + "." + kind);
  }
  void change_record(const std::string& from, const std::string& to) {
    std::string text = *read_file(part("json"), 1U << 20U);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << text;
    text.replace(at, from.size(), to);
    std::ofstream(part("json")) << text;
  }
  /// From now on whoever opens the batch's input meets ELOOP.
  void break_input() {
    fs::rename(input_, directory_.path() / "aside");
    fs::create_symlink(input_, input_);
  }
  void mend_input() const { fs::rename(directory_.path() / "aside", input_); }
  Json end() { return wait_for(server_->port(), id_, has_ended); }
  /// It has its answers, no others, and says how many lines have none.
  void expect_the_rest_is_told(const Json& end) {
    EXPECT_EQ(text_at(end, "request_counts.total"), "400");
    EXPECT_EQ(text_at(end, "request_counts.completed"), "20");
    EXPECT_EQ(text_at(end, "request_counts.failed"), "0");
    EXPECT_EQ(read_lines(server_->port(), text_at(end, "output_file_id")).size(), 20U);
    EXPECT_EQ(text_at(end, "errors.data.0.code"), "io_error");
    EXPECT_EQ(text_at(end, "errors.data.0.param"), "input_file_id");
    constexpr std::string_view rest = "380 of its 400 requests were not";
    EXPECT_NE(text_at(end, "errors.data.0.message").find(rest), std::string::npos)
        << chat::dump_json(end);
  }

  koho::testing::TemporaryDirectory directory_;
  SteadyClock clock_;
  std::unique_ptr<TinyServer> server_;
  std::string id_;
  fs::path input_;
};

TEST_F(BatchRestarts, CountsAreThoseOfTheDiskBeforeThereIsAModel) {
  leave_batch();
  std::ofstream(part("output"), std::ios::app) << R"({"id":"batch_req_9)";
  const std::unique_ptr<Server> server = start_without_model();
  const Json batch = wait_for(server->port(), id_, [](const Json& now) {
    return text_at(now, "request_counts.completed") == "20";
  });
  EXPECT_EQ(text_at(batch, "request_counts.total"), "400");
}

TEST_F(BatchRestarts, ACancelledOneEndsWithoutItsInputAndSaysSo) {
  leave_batch();
  break_input();
  start();
  EXPECT_EQ(call(server_->port(), "POST", "/v1/batches/" + id_ + "/cancel").status, 200);
  const Json ended = end();
  EXPECT_EQ(text_at(ended, "status"), "cancelled");
  expect_the_rest_is_told(ended);
}

TEST_F(BatchRestarts, AnExpiredOneEndsWithoutItsInputAndSaysSo) {
  leave_batch();
  break_input();
  const std::string record = *read_file(part("json"), 1U << 20U);
  const std::size_t at = record.find("\"expires_at\":");
  change_record(record.substr(at, record.find(',', at) - at), "\"expires_at\":1000");
  start();
  const Json ended = end();
  EXPECT_EQ(text_at(ended, "status"), "expired");
  expect_the_rest_is_told(ended);
}

TEST_F(BatchRestarts, OneWhoseInputCannotBeReadForTheCheckWaits) {
  {
    const std::unique_ptr<Server> server = start_without_model();
    const Json made = create(server->port(), lines(3, 2));
    id_ = text_at(made, "id");
    input_ = directory_.path() / "files" / text_at(made, "input_file_id");
  }
  fs::rename(input_, directory_.path() / "aside");
  ASSERT_EQ(mkfifo(input_.c_str(), 0600), 0);  // whoever opens it would wait
  start();
  const std::string content = "/v1/files/" + input_.filename().string() + "/content";
  EXPECT_EQ(get(server_->port(), content).status, 500);
  const Json waiting = wait_for(server_->port(), id_, [](const Json& now) {
    return at(now, "wait_reason").is_string() || has_ended(now);
  });
  EXPECT_EQ(text_at(waiting, "status"), "validating");
  mend_input();
  EXPECT_EQ(text_at(end(), "status"), "completed");
}

TEST_F(BatchRestarts, OneThatFailsKeepsItsAnswers) {
  leave_batch();
  fs::remove(input_);
  start();
  Json ended = end();
  EXPECT_EQ(text_at(ended, "status"), "failed");
  EXPECT_EQ(text_at(ended, "errors.data.0.code"), "not_found");
  const std::string output = text_at(ended, "output_file_id");
  EXPECT_EQ(read_lines(server_->port(), output).size(), 20U);
  EXPECT_FALSE(fs::exists(part("output")));
  server_.reset();
  // The same of a server that was killed before the files were made.
  fs::rename(directory_.path() / "files" / output, part("output"));
  fs::remove(directory_.path() / "files" / (output + ".json"));
  change_record(R"("stored_status":"failed")", R"("stored_status":"in_progress")");
  start();
  ended = end();
  EXPECT_EQ(text_at(ended, "status"), "failed");
  EXPECT_EQ(text_at(ended, "output_file_id"), output);
  EXPECT_EQ(read_lines(server_->port(), output).size(), 20U);
}

TEST_F(BatchRestarts, AnswersThatAreDamagedAreNotLost) {
  leave_batch();
  std::ofstream(part("output"), std::ios::app) << "no answer\n";
  const std::string text = *read_file(part("output"), 1U << 30U);
  start();
  const Json ended = end();
  EXPECT_EQ(text_at(ended, "status"), "failed");
  const std::string path = "/v1/files/" + text_at(ended, "output_file_id");
  EXPECT_EQ(call(server_->port(), "GET", path + "/content").body, text);
  EXPECT_EQ(call(server_->port(), "DELETE", path).status, 200);
}

TEST_F(BatchRestarts, WhatAKilledServerHadBegunToWriteIsRemoved) {
  start();
  const std::string kept = text_at(upload(server_->port(), "x").json(), "id");
  server_.reset();
  const fs::path files = directory_.path() / "files";
  const fs::path batches = directory_.path() / "batches";
  const fs::path begun = files / ("file-" + std::string(32, 'a'));
  const fs::path damaged = batches / "batch_damaged.json";
  const std::vector<fs::path> leftovers{begun, begun.string() + ".json.part",
                                        files / (kept + ".part"), batches / "batch_1.json.part",
                                        batches / "batch_1.output"};
  const std::vector<fs::path> others{files / "file-notes", files / "notes.part",
                                     batches / "notes.output", batches / "batch_damaged.output",
                                     files / kept};
  for (const auto* const list : {&leftovers, &others})
    for (const fs::path& path : *list)
      if (!fs::exists(path)) std::ofstream(path) << "x";
  std::ofstream(damaged) << "{";
  start();
  EXPECT_TRUE(fs::exists(begun)) << "a batch that cannot be read may have named it";
  server_.reset();
  fs::remove(batches / "batch_damaged.output");
  fs::remove(damaged);
  start();
  for (const fs::path& path : leftovers) EXPECT_FALSE(fs::exists(path)) << path;
  for (const fs::path& path : others)
    EXPECT_EQ(fs::exists(path), path.filename() != "batch_damaged.output") << path;
  EXPECT_EQ(call(server_->port(), "GET", "/v1/files/" + kept + "/content").body, "x");
}

TEST_F(BatchRestarts, ARecordOfAnotherNameIsLeftOut) {
  leave_batch();
  const fs::path other = directory_.path() / "batches" / "other.json";
  fs::copy_file(part("json"), other);
  change_record('"' + id_ + '"', R"("../outside")");
  fs::create_symlink(part("cancelled"), part("cancelled"));  // whoever looks meets ELOOP
  start();
  EXPECT_EQ(text_at(call(server_->port(), "GET", "/v1/batches").json(), "first_id"), "null");
  server_.reset();
  EXPECT_FALSE(fs::exists(directory_.path() / "outside.json"));
  fs::rename(other, part("json"));
  start();
  EXPECT_EQ(text_at(end(), "status"), "cancelled");
}

TEST_F(BatchRestarts, ListsTheRestOfWhatIsDeletedOnTheWay) {
  start();
  for (const char* order : {"asc", "desc"}) {
    for (int i = 0; i < 5; ++i) ASSERT_EQ(upload(server_->port(), lines(1, 1)).status, 200);
    std::string after;
    std::set<std::string> deleted;
    for (bool more = true; more;) {
      const Reply page = call(server_->port(), "GET",
                              fmt::format("/v1/files?limit=2&order={}&after={}", order, after));
      ASSERT_EQ(page.status, 200) << page.body;
      const Json list = page.json();
      for (const Json& file : list.find("data")->items) {
        after = text_at(file, "id");
        EXPECT_TRUE(deleted.insert(after).second);
        EXPECT_EQ(call(server_->port(), "DELETE", "/v1/files/" + after).status, 200);
      }
      more = text_at(list, "has_more") == "true";
    }
    EXPECT_EQ(deleted.size(), 5U) << order;
  }
}

TEST_F(BatchRestarts, ErrorsNameTheirFields) {
  start();
  const auto error_of = [&](const std::string& method, const std::string& path,
                            const std::string& body = {}) {
    const Json json = call(server_->port(), method, path, "", body).json();
    return text_at(json, "error.param") + " " + text_at(json, "error.code");
  };
  EXPECT_EQ(error_of("GET", "/v1/files/file-a"), "id not_found");
  EXPECT_EQ(error_of("DELETE", "/v1/files/file-a"), "id not_found");
  EXPECT_EQ(error_of("POST", "/v1/batches/batch_a/cancel"), "id not_found");
  EXPECT_TRUE(error_of("GET", "/v1/files?order=newest").starts_with("order "));
  EXPECT_TRUE(error_of("GET", "/v1/files?after=file-of-nobody").starts_with("after "));
  EXPECT_TRUE(error_of("GET", "/v1/batches?after=batch_of_nobody").starts_with("after "));
  // OpenAI counts characters.
  std::string text;
  for (int i = 0; i < 512; ++i) text += "\u00e4";
  const std::string order = R"({"endpoint":"/v1/completions","completion_window":"24h",)"
                            R"("input_file_id":"file-none","metadata":{"name":")";
  EXPECT_EQ(error_of("POST", "/v1/batches", order + text + "\"}}"), "input_file_id not_found");
  EXPECT_TRUE(error_of("POST", "/v1/batches", order + text + "x\"}}").starts_with("metadata "));
  const std::string expires = R"(","output_expires_after":{"anchor":"created_at","seconds":)";
  const std::string short_order = order.substr(0, order.find("\",\"metadata")) + expires;
  EXPECT_EQ(error_of("POST", "/v1/batches", short_order + "3.6e3}}"), "input_file_id not_found");
  EXPECT_TRUE(error_of("POST", "/v1/batches", short_order + "3600.5}}")
                  .starts_with("output_expires_after.seconds "));
  // The check and the run tell the same of a line.
  const std::string wrong = R"({"custom_id":"a","method":"POST","url":"/v1/completions")";
  const Json made = create(server_->port(), wrong + ",\"body\":5}\n" + wrong + "}\n");
  const Json ended = wait_for(server_->port(), text_at(made, "id"), has_ended);
  EXPECT_EQ(text_at(ended, "errors.data.0.code"), "invalid_type");
  EXPECT_EQ(text_at(ended, "errors.data.1.code"), "missing_required_parameter");
}

TEST_F(BatchRestarts, AFileGoesOrGetsAReader) {
  start();
  BatchService& service = *server_->server().core().batches();
  for (int round = 0; round < 100; ++round) {
    const std::string file = "file-" + std::to_string(round);
    ASSERT_TRUE(service.files().add({.id = file}, "no request\n").ok());
    std::atomic<int> ready{0};
    const auto meet = [&] {
      ++ready;
      while (ready.load() < 2) std::this_thread::yield();
    };
    bool removed = false;
    std::thread other([&] {
      meet();
      removed = service.remove_file("", file).ok();
    });
    meet();
    const auto made = service.create({.endpoint = "/v1/completions",
                                      .input_file_id = file,
                                      .completion_window = "24h",
                                      .window_s = 86'400});
    other.join();
    if (!made.ok()) continue;
    while (!is_over(service.records().get(made->id).status)) std::this_thread::yield();
    EXPECT_EQ(service.records().get(made->id).faults.front().code, "invalid_json_line");
    if (!removed) {
      EXPECT_TRUE(service.remove_file("", file).ok());
    }
  }
}

}  // namespace
}  // namespace koho::server
