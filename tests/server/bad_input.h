// SPDX-License-Identifier: Apache-2.0
// Sends bad requests to both completion APIs and checks status, field and code of the answer, and
// that the server answers a good request after each.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "client.h"
#include "tiny_server.h"

namespace koho::server {

using chat::Json;

enum class Api : std::uint8_t { chat, completions };

inline constexpr Api kBoth[] = {Api::chat, Api::completions};

inline const char* path_of(Api api) {
  return api == Api::chat ? "/v1/chat/completions" : "/v1/completions";
}

/// A valid body with `members` ("\"n\":0") added or replaced.
inline std::string body_with(Api api, const std::string& members) {
  const Json extra = *chat::parse_json("{" + members + "}");
  Json body = *chat::parse_json(
      api == Api::chat
          ? R"({"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":2})"
          : R"({"model":"tiny","prompt":"hi","max_tokens":2})");
  for (std::size_t i = 0; i < extra.keys.size(); ++i) body.set(extra.keys[i], extra.items[i]);
  return chat::dump_json(body);
}

inline void expect_alive(Api api) {
  const Reply reply = post(shared_server().port(), path_of(api), body_with(api, ""));
  EXPECT_EQ(reply.status, 200) << reply.body;
}

inline void expect_error(const Reply& reply,
                         int status,
                         const std::string& param,
                         const std::string& code,
                         const std::string& what) {
  SCOPED_TRACE(what.substr(0, 300));
  ASSERT_EQ(reply.status, status) << reply.body;
  EXPECT_EQ(reply.fields.at("content-type"), "application/json");
  EXPECT_FALSE(reply.fields.at("x-request-id").empty());
  const Json json = reply.json();
  EXPECT_FALSE(text_at(json, "error.message").empty());
  EXPECT_NE(text_at(json, "error.type").find("_error"), std::string::npos);
  EXPECT_EQ(text_at(json, "error.param"), param.empty() ? "null" : param);
  EXPECT_EQ(text_at(json, "error.code"), code.empty() ? "null" : code);
  // The documentation has every code.
  static const std::string documentation =
      *read_file(std::string(KOHO_SOURCE_DIR) + "/docs/server.md", 1U << 20U);
  EXPECT_TRUE(code.empty() || documentation.find('`' + code + '`') != std::string::npos) << code;
}

/// Sends `body` and expects this error.
inline void refuse_body(Api api,
                        const std::string& body,
                        int status,
                        const std::string& param,
                        const std::string& code) {
  expect_error(post(shared_server().port(), path_of(api), body), status, param, code, body);
  expect_alive(api);
}

/// Sends a valid body with these members and expects this error.
inline void refuse(Api api,
                   const std::string& members,
                   int status,
                   const std::string& param,
                   const std::string& code = "") {
  refuse_body(api, body_with(api, members), status, param, code);
}

inline void refuse_both(const std::string& members,
                        const std::string& param,
                        const std::string& code = "") {
  for (const Api api : kBoth) refuse(api, members, 400, param, code);
}

inline void accept_both(const std::string& members) {
  for (const Api api : kBoth) {
    const Reply reply = post(shared_server().port(), path_of(api), body_with(api, members));
    EXPECT_EQ(reply.status, 200) << members.substr(0, 200) << "\n" << reply.body;
    expect_alive(api);
  }
}

}  // namespace koho::server
