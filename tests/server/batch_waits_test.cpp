// SPDX-License-Identifier: Apache-2.0
// Batches that wait: what their owners are told, and what counts for them meanwhile.
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
