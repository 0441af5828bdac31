// SPDX-License-Identifier: Apache-2.0
// What one client's streams cost another: nobody has a key, clients differ by their addresses.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "client.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

TEST(FairClients, StreamsThatFillAllBatchSlotsDoNotKeepAnotherAddressWaiting) {
  constexpr int kBatchSlots = 4;
  const std::unique_ptr<Runtime> runtime =
      start_tiny_runtime({.threads = 2, .sequences = kBatchSlots, .queue = 64});
  TinyServer server({}, *runtime);
  const std::string stream =
      R"({"model":"tiny","prompt":[5,6],"max_tokens":1900,"ignore_eos":true,"stream":true})";
  std::vector<std::unique_ptr<Client>> many;
  const auto send_streams = [&](int count) {
    for (int i = 0; i < count; ++i) {
      many.push_back(std::make_unique<Client>(server.port(), "127.0.0.1"));
      ASSERT_TRUE(
          many.back()->send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                            "Content-Type: application/json\r\nContent-Length: " +
                            std::to_string(stream.size()) + "\r\n\r\n" + stream));
    }
  };
  send_streams(kBatchSlots);
  for (const std::unique_ptr<Client>& client : many) ASSERT_TRUE(client->read_until("data: "));
  send_streams(3 * kBatchSlots);
  for (int i = 0; i < 3; ++i) {
    Client other(server.port(), "127.0.0.2");
    const std::optional<Reply> reply = other.post(
        "/v1/completions", R"({"model":"tiny","prompt":[7,8],"max_tokens":3,"ignore_eos":true})");
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200) << reply->body;
    // The statistics may lag behind.
    EXPECT_LE(server.serving().engine.statistics().requests_completed,
              static_cast<std::uint64_t>(i + 1))
        << "a stream had to end first";
  }
  for (const std::unique_ptr<Client>& client : many) client->reset();
  EXPECT_TRUE(server.becomes_idle());
}

}  // namespace
}  // namespace koho::server
