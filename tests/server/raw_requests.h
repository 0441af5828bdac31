// SPDX-License-Identifier: Apache-2.0
// Requests as bytes for the tests of HTTP and connections.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "client.h"
#include "tests/support/patience.h"
#include "tiny_server.h"

namespace koho::server {

using testing::comes_true;

inline constexpr const char* kCompletionsPath = "/v1/completions";

inline constexpr const char* kBothPaths[] = {kCompletionsPath, "/v1/chat/completions"};

/// A body for both APIs: the prompt of the other API is an unknown field.
inline std::string endless(const std::string& more = "") {
  return R"({"model":"tiny","prompt":"Once upon a time","messages":[{"role":"user","content":"a"}],)"
         R"("max_tokens":2000,"ignore_eos":true)" +
         more + "}";
}

inline std::string request_of(const std::string& body, const char* path = kCompletionsPath) {
  return std::string("POST ") + path +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline void expect_alive(std::uint16_t port) {
  for (const char* path : kBothPaths)
    EXPECT_EQ(post(port, path,
                   R"({"model":"tiny","prompt":"hi","messages":[{"role":"user","content":"hi"}],)"
                   R"("max_tokens":2})")
                  .status,
              200);
}

/// Sends a malformed request; expects an answer with that status and the end of the connection.
inline void expect_refusal(const std::string& bytes, int status) {
  SCOPED_TRACE(bytes.substr(0, 120));
  Client client(shared_server().port());
  client.send(bytes);
  const std::optional<Reply> reply = client.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, status) << reply->body;
  EXPECT_TRUE(client.sees_end());
  expect_alive(shared_server().port());
}

}  // namespace koho::server
