// SPDX-License-Identifier: Apache-2.0
// Batches that wait: what their owners are told, and what counts for them meanwhile.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "batch_client.h"
#include "client.h"
#include "tests/support/temporary_directory.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

using chat::Json;

bool waits(const Json& batch) {
  return at(batch, "wait_reason").is_string();
}

TEST(BatchesThatWait, SayThatTheirOwnersShareIsUsedUp) {
  const koho::testing::TemporaryDirectory directory;
  TinyServer server([&](ServerSettings& settings) {
    settings.files_dir = directory.path();
    settings.files_bytes_max = 60'000;
    settings.api_keys = {"much", "little"};
  });
  const std::string other =
      text_at(upload(server.port(), std::string(20'000, 'x'), "much").json(), "id");
  const std::string id = text_at(create(server.port(), lines(40, 1), "much"), "id");
  const Json waiting = wait_for(server.port(), id, waits, "much");
  EXPECT_EQ(text_at(waiting, "status"), "in_progress");
  EXPECT_NE(text_at(waiting, "wait_reason").find("delete some first"), std::string::npos);
  EXPECT_EQ(call(server.port(), "DELETE", "/v1/files/" + other, "much").status, 200);
  const Json end = wait_for(server.port(), id, has_ended, "much");
  EXPECT_EQ(text_at(end, "status"), "completed");
  EXPECT_FALSE(waits(end));
}

TEST(BatchesThatWait, ForTheirFilesCountForTheirOwner) {
  constexpr std::int64_t kFilesBytes = 1'000'000;
  const koho::testing::TemporaryDirectory directory;
  const std::filesystem::path files = directory.path() / "files";
  const auto start = [&] {
    return std::make_unique<TinyServer>([&](ServerSettings& settings) {
      settings.files_dir = directory.path();
      settings.files_bytes_max = kFilesBytes;
    });
  };
  auto server = start();
  const std::string content = lines(200, 30);
  const std::string id = text_at(create(server->port(), content), "id");
  wait_for(server->port(), id,
           [](const Json& now) { return text_at(now, "request_counts.completed") != "0"; });
  // Its answers are written, and no file can be made of them.
  std::filesystem::rename(files, directory.path() / "aside");
  std::ofstream(files) << "no directory";
  const auto is_finalizing = [](const Json& now) {
    return text_at(now, "status") == "finalizing" && waits(now);
  };
  const Json waiting = wait_for(server->port(), id, is_finalizing);
  EXPECT_EQ(text_at(waiting, "wait_reason").find(directory.path().string()), std::string::npos);
  const auto bytes = std::filesystem::file_size(directory.path() / "batches" / (id + ".output"));
  const std::size_t left = kFilesBytes - content.size() - bytes;
  EXPECT_EQ(upload(server->port(), std::string(left + 1, 'x')).status, 429);
  server.reset();
  std::filesystem::remove(files);
  std::filesystem::rename(directory.path() / "aside", files);
  // Nor in the next server, whose other files can be written.
  const std::filesystem::path output = files / text_at(waiting, "output_file_id");
  std::filesystem::create_directory(output);
  server = start();
  EXPECT_EQ(upload(server->port(), std::string(left + 1, 'x')).status, 429);
  wait_for(server->port(), id, is_finalizing);
  EXPECT_EQ(upload(server->port(), std::string(left + 1, 'x')).status, 429);
  std::filesystem::remove(output);
  EXPECT_EQ(text_at(wait_for(server->port(), id, has_ended), "status"), "completed");
  EXPECT_EQ(upload(server->port(), std::string(left + 1, 'x')).status, 429);
  EXPECT_EQ(upload(server->port(), std::string(left, 'x')).status, 200) << "they count once";
}

TEST(BatchesThatWait, ForNothingEndWhileTheServerIsFull) {
  const koho::testing::TemporaryDirectory directory;
  const std::unique_ptr<Runtime> runtime = start_tiny_runtime({.threads = 1, .sequences = 2});
  TinyServer server([&](ServerSettings& settings) { settings.files_dir = directory.path(); },
                    *runtime);
  const std::string id = text_at(create(server.port(), line("last", 900)), "id");
  wait_for(server.port(), id,
           [&](const Json&) { return server.serving().engine.statistics().running > 0; });
  ++server.counters().requests_live;  // as of a client that waits: no line would begin
  const Json end = wait_for(server.port(), id, has_ended);
  EXPECT_EQ(text_at(end, "status"), "completed");
  --server.counters().requests_live;
}

}  // namespace
}  // namespace koho::server
