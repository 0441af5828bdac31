// SPDX-License-Identifier: Apache-2.0
// A client of /v1/files and /v1/batches, for tests.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include <gtest/gtest.h>

#include "client.h"
#include "tests/support/patience.h"

namespace koho::server {

inline constexpr std::string_view kBoundary = "koho-boundary";

inline std::string part(std::string_view name,
                        std::string_view content,
                        std::string_view filename = {}) {
  std::string out = "--" + std::string(kBoundary) + "\r\nContent-Disposition: form-data; name=\"" +
                    std::string(name) + '"';
  if (!filename.empty()) out += "; filename=\"" + std::string(filename) + '"';
  return out + "\r\n\r\n" + std::string(content) + "\r\n";
}

/// One request with any method and body; `key` is an API key or "".
inline Reply call(std::uint16_t port,
                  const std::string& method,
                  const std::string& path,
                  const std::string& key = {},
                  const std::string& body = {},
                  const std::string& type = "application/json") {
  Client client(port);
  std::string request = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n";
  if (!key.empty()) request += "Authorization: Bearer " + key + "\r\n";
  if (!body.empty())
    request +=
        "Content-Type: " + type + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  client.send(request + "\r\n" + body);
  return client.read_reply().value_or(Reply{});
}

inline Reply upload(std::uint16_t port,
                    const std::string& content,
                    const std::string& key = {},
                    const std::string& purpose = "batch") {
  const std::string body = part("purpose", purpose) + part("file", content, "dir/in.jsonl") + "--" +
                           std::string(kBoundary) + "--\r\n";
  return call(port, "POST", "/v1/files", key, body,
              "multipart/form-data; boundary=" + std::string(kBoundary));
}

inline std::string line(const std::string& custom_id, int tokens, const std::string& more = {}) {
  return R"({"custom_id":")" + custom_id +
         R"(","method":"POST","url":"/v1/completions","body":{"prompt":"Once upon )" + custom_id +
         R"(","temperature":0,"ignore_eos":true,"max_tokens":)" + std::to_string(tokens) + more +
         "}}\n";
}

inline std::string lines(int count, int tokens) {
  std::string all;
  for (int i = 0; i < count; ++i) all += line("r" + std::to_string(i), tokens);
  return all;
}

inline chat::Json create(std::uint16_t port,
                         const std::string& content,
                         const std::string& key = {},
                         const std::string& window = "24h") {
  const Reply file = upload(port, content, key);
  EXPECT_EQ(file.status, 200) << file.body;
  const Reply made = call(port, "POST", "/v1/batches", key,
                          R"({"endpoint":"/v1/completions","completion_window":")" + window +
                              R"(","metadata":{"name":"a \"b\""},"input_file_id":")" +
                              text_at(file.json(), "id") + "\"}");
  EXPECT_EQ(made.status, 200) << made.body;
  return made.json();
}

/// The batch once `done` says so of its status.
inline chat::Json wait_for(std::uint16_t port,
                           const std::string& id,
                           const std::function<bool(const chat::Json& batch)>& done,
                           const std::string& key = {}) {
  chat::Json batch;
  const bool came = testing::comes_true([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    batch = call(port, "GET", "/v1/batches/" + id, key).json();
    return done(batch);
  });
  if (!came) ADD_FAILURE() << chat::dump_json(batch);
  return batch;
}

inline bool has_ended(const chat::Json& batch) {
  const std::set<std::string> over{"completed", "failed", "expired", "cancelled"};
  return over.contains(text_at(batch, "status"));
}

/// The lines of a file by custom_id; each id stands there once.
inline std::map<std::string, chat::Json> read_lines(std::uint16_t port,
                                                    const std::string& id,
                                                    const std::string& key = {}) {
  std::map<std::string, chat::Json> found;
  if (id == "null") return found;
  const std::string text = call(port, "GET", "/v1/files/" + id + "/content", key).body;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const Result<chat::Json> json =
        chat::parse_json(std::string_view(text).substr(begin, end - begin));
    EXPECT_TRUE(json.ok()) << text.substr(begin, 200);
    if (!json.ok()) break;
    EXPECT_TRUE(found.emplace(text_at(*json, "custom_id"), *json).second);
    begin = end + 1;
  }
  return found;
}

}  // namespace koho::server
