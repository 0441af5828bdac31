// SPDX-License-Identifier: Apache-2.0
// A table of raw HTTP requests, each with the status that it gets: what may be read in two ways is
// refused, what HTTP allows is served. After each the server answers a good request.
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "client.h"
#include "raw_requests.h"
#include "server/host_check.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

/// A request as bytes. The name says what is unusual in it.
struct Case {
  const char* name;
  std::string bytes;
  int status;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

const std::string kHost = "Host: localhost\r\n";
const std::string kJson = "Content-Type: application/json\r\n";
const std::string kBody = R"({"model":"tiny","prompt":"hi","max_tokens":1})";
const std::string kLength = "Content-Length: " + std::to_string(kBody.size()) + "\r\n";
const std::string kPost = "POST /v1/completions HTTP/1.1\r\n" + kHost;

std::string get_of(const std::string& target, const std::string& version = "HTTP/1.1") {
  return "GET " + target + " " + version + "\r\n" + kHost + "\r\n";
}

std::string models_with(const std::string& fields) {
  return "GET /v1/models HTTP/1.1\r\n" + kHost + fields + "\r\n";
}

std::string post_with(const std::string& fields) {
  return kPost + fields + kLength + "\r\n" + kBody;
}

std::string chunked(const std::string& chunks, const std::string& fields = "") {
  return kPost + kJson + fields + "Transfer-Encoding: chunked\r\n\r\n" + chunks;
}

std::string in_one_chunk(const std::string& size, const std::string& after) {
  return chunked(size + "\r\n" + kBody + "\r\n" + after);
}

const std::string kSize = "2d";  // of kBody

std::vector<Case> request_lines() {
  return {
      {"http_1_1", get_of("/v1/models"), 200},
      {"http_1_0_without_host", "GET /v1/models HTTP/1.0\r\n\r\n", 200},
      {"http_1_2_is_http_1_1", get_of("/v1/models", "HTTP/1.2"), 200},
      {"http_1_9_is_http_1_1", get_of("/v1/models", "HTTP/1.9"), 200},
      {"http_2_0", get_of("/v1/models", "HTTP/2.0"), 505},
      {"http_0_9_in_full", get_of("/v1/models", "HTTP/0.9"), 505},
      {"http_3_1", get_of("/v1/models", "HTTP/3.1"), 505},
      {"http_2_preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"http_2_without_minor", get_of("/v1/models", "HTTP/2"), 400},
      {"http_1_10", get_of("/v1/models", "HTTP/1.10"), 400},
      {"http_in_lower_case", get_of("/v1/models", "http/1.1"), 400},
      {"version_without_digits", get_of("/v1/models", "HTTP/x.y"), 400},
      {"version_of_another_protocol", get_of("/v1/models", "RTSP/1.0"), 400},
      {"no_version", "GET /v1/models\r\n\r\n", 400},
      {"no_target", "GET HTTP/1.1\r\n" + kHost + "\r\n", 400},
      {"two_spaces", "GET  /v1/models HTTP/1.1\r\n" + kHost + "\r\n", 400},
      {"space_in_the_target", get_of("/v1/mo dels"), 400},
      {"tab_instead_of_space", "GET\t/v1/models HTTP/1.1\r\n" + kHost + "\r\n", 400},
      {"space_after_the_version", "GET /v1/models HTTP/1.1 \r\n" + kHost + "\r\n", 400},
      {"space_before_the_method", " GET /v1/models HTTP/1.1\r\n" + kHost + "\r\n", 400},
      {"empty_lines_before", "\r\n\r\n" + get_of("/v1/models"), 200},
      {"method_in_lower_case", "get /v1/models HTTP/1.1\r\n" + kHost + "\r\n", 405},
      {"method_with_a_colon", "G:T /v1/models HTTP/1.1\r\n" + kHost + "\r\n", 400},
      {"method_unknown", "BREW /v1/models HTTP/1.1\r\n" + kHost + "\r\n", 405},
      {"method_trace", "TRACE /v1/models HTTP/1.1\r\n" + kHost + "\r\n", 405},
      {"method_connect", "CONNECT localhost:80 HTTP/1.1\r\n" + kHost + "\r\n", 405},
      {"method_delete", "DELETE /v1/models HTTP/1.1\r\n" + kHost + "\r\n", 405},
      {"method_head", "HEAD /v1/models HTTP/1.1\r\n" + kHost + "\r\n", 200},
      {"options_asterisk", "OPTIONS * HTTP/1.1\r\n" + kHost + "\r\n", 204},
      {"zero_byte_in_the_line", std::string("GET /v1/mo\0dels HTTP/1.1\r\n\r\n", 27), 400},
      {"byte_above_127_in_the_line", get_of("/v1/m\xc3\xb6"), 400},
      {"tls_client_hello", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), 400},
      {"bare_line_feeds", "GET /v1/models HTTP/1.1\nHost: localhost\n\n", 400},
      {"bare_carriage_return", "GET /v1/models HTTP/1.1\rHost: localhost\r\r", 400},
      {"url_of_5_kb", get_of("/" + std::string(5000, 'a')), 414},
  };
}

std::vector<Case> targets() {
  return {
      {"trailing_slash", get_of("/v1/models/"), 200},
      {"trailing_slash_of_a_post",
       "POST /v1/completions/ HTTP/1.1\r\n" + kHost + kJson + kLength + "\r\n" + kBody, 200},
      {"two_trailing_slashes", get_of("/v1/models//"), 404},
      {"slash_alone", get_of("/"), 302},
      {"query", get_of("/v1/models?a=b"), 200},
      {"query_with_a_slash", get_of("/v1/models?a=/x/"), 200},
      {"query_without_a_path", get_of("?a"), 400},
      {"query_alone_before_a_large_body",
       "POST ? HTTP/1.1\r\n" + kHost + kJson + "Content-Length: 150000000\r\n\r\n", 400},
      {"fragment", get_of("/v1/models#a"), 404},
      {"percent_escape", get_of("/v1/%6dodels"), 200},
      {"percent_escape_broken", get_of("/v1/%zz"), 400},
      {"percent_escape_cut", get_of("/v1/models%2"), 400},
      {"model_that_is_no_unicode", get_of("/v1/models/claude-%ff"), 404},
      {"percent_escaped_zero", get_of("/v1/models/%00"), 404},
      {"dots", get_of("/v1/../v1/models"), 404},
      {"escaped_dots", get_of("/v1/models/%2e%2e/%2e%2e/etc/passwd"), 404},
      {"backslashes", get_of("/v1\\models"), 404},
      {"absolute_url", get_of("http://localhost/v1/models"), 200},
      {"absolute_url_in_capitals", get_of("HTTP://LOCALHOST:80/v1/models"), 200},
      {"absolute_url_of_another_host", get_of("http://evil.example/v1/models"), 403},
      {"absolute_url_with_a_user", get_of("http://localhost@evil.example/v1/models"), 400},
      {"absolute_url_without_host", get_of("http:///v1/models"), 400},
      {"absolute_url_of_another_scheme", get_of("ftp://localhost/v1/models"), 400},
      {"unknown_path", get_of("/v1/nothing"), 404},
      {"path_in_capitals", get_of("/V1/MODELS"), 404},
  };
}

std::vector<Case> fields() {
  return {
      {"host_missing", "GET /v1/models HTTP/1.1\r\n\r\n", 400},
      {"host_empty", "GET /v1/models HTTP/1.1\r\nHost: \r\n\r\n", 400},
      {"host_twice", models_with(kHost), 400},
      {"host_in_capitals", "GET /v1/models HTTP/1.1\r\nHOST: LOCALHOST\r\n\r\n", 200},
      {"host_with_the_root_dot", "GET /v1/models HTTP/1.1\r\nHost: localhost.\r\n\r\n", 200},
      {"host_of_the_network", "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.2:8000\r\n\r\n", 200},
      {"host_is_an_address", "GET /v1/models HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n", 200},
      {"host_looks_like_loopback",
       "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n", 403},
      {"host_with_a_user_behind_the_port",
       "GET /v1/models HTTP/1.1\r\nHost: localhost:80@evil.example\r\n\r\n", 403},
      {"host_with_text_behind_the_address",
       "GET /v1/models HTTP/1.1\r\nHost: [::1].evil.example\r\n\r\n", 403},
      {"host_without_a_closing_bracket", "GET /v1/models HTTP/1.1\r\nHost: [::1\r\n\r\n", 403},
      {"host_is_an_address_of_ipv6", "GET /v1/models HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n", 200},
      {"origin_twice", models_with("Origin: http://localhost\r\nOrigin: http://evil.example\r\n"),
       400},
      {"origin_with_text_behind_the_address", models_with("Origin: http://[::1].evil.example\r\n"),
       403},
      {"api_key_twice", models_with("x-api-key: a\r\nx-api-key: b\r\n"), 400},
      {"key_twice", models_with("Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"), 400},
      {"type_twice", post_with(kJson + "Content-Type: text/plain\r\n"), 400},
      {"host_of_another_machine", "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403},
      {"origin_of_this_machine", models_with("Origin: http://localhost:3000\r\n"), 200},
      {"origin_null", models_with("Origin: null\r\n"), 403},
      {"origin_of_another_machine", models_with("Origin: http://evil.example\r\n"), 403},
      {"origin_looks_like_localhost", models_with("Origin: http://localhost.evil.example\r\n"),
       403},
      {"name_with_a_space", models_with("A b: 1\r\n"), 400},
      {"name_with_a_space_before_the_colon", models_with("A : 1\r\n"), 400},
      {"name_empty", models_with(": 1\r\n"), 400},
      {"no_colon", models_with("nonsense\r\n"), 400},
      {"value_empty", models_with("A:\r\n"), 200},
      {"value_with_tabs", models_with("A: \t1\t \r\n"), 200},
      {"value_above_127", models_with("A: \xc3\xb6\r\n"), 200},
      {"value_with_a_control_character", models_with("A: \x01\r\n"), 400},
      {"value_with_a_zero_byte", models_with(std::string("A: a\0b\r\n", 8)), 400},
      {"value_with_a_bare_carriage_return", models_with("A: a\rb\r\n"), 400},
      {"folded_line", models_with("A: 1\r\n 2\r\n"), 400},
      {"folded_line_after_host", "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n x\r\n\r\n", 400},
      {"line_feed_alone", "GET /v1/models HTTP/1.1\r\nHost: localhost\nA: 1\r\n\r\n", 400},
      {"field_of_40_kb", models_with("A: " + std::string(40'000, 'a') + "\r\n"), 431},
      {"range_is_ignored", models_with("Range: bytes=0-3\r\n"), 200},
      {"upgrade_is_ignored", models_with("Connection: Upgrade\r\nUpgrade: h2c\r\n"), 200},
      {"connection_close", models_with("Connection: close\r\n"), 200},
      {"connection_list", models_with("Connection: keep-alive, x\r\n"), 200},
  };
}

std::vector<Case> bodies() {
  const std::string type = "Content-Type: ";
  return {
      {"json", post_with(kJson), 200},
      {"json_with_a_charset", post_with(type + "application/json; charset=utf-8\r\n"), 200},
      {"json_in_capitals", post_with(type + "Application/JSON ;charset=utf-8\r\n"), 200},
      {"no_type", post_with(""), 415},
      {"type_empty", post_with(type + "\r\n"), 415},
      {"type_plain", post_with(type + "text/plain\r\n"), 415},
      {"type_form", post_with(type + "application/x-www-form-urlencoded\r\n"), 415},
      {"type_multipart", post_with(type + "multipart/form-data; boundary=x\r\n"), 415},
      {"type_json_in_a_parameter", post_with(type + "text/plain; application/json\r\n"), 415},
      {"type_json_lines", post_with(type + "application/jsonl\r\n"), 415},
      {"no_type_chunked",
       kPost + "Transfer-Encoding: chunked\r\n\r\n" + kSize + "\r\n" + kBody + "\r\n0\r\n\r\n",
       415},
      {"no_type_and_no_body", "POST /ping HTTP/1.1\r\n" + kHost + "\r\n", 200},
      {"no_type_and_length_0", "POST /ping HTTP/1.1\r\n" + kHost + "Content-Length: 0\r\n\r\n",
       200},
      {"a_type_of_no_body",
       "POST /ping HTTP/1.1\r\n" + kHost +
           "Content-Type: application/octet-stream\r\nContent-Length: 0\r\n\r\n",
       200},
      {"no_body", kPost + kJson + "\r\n", 400},
      {"encoding_gzip", post_with(kJson + "Content-Encoding: gzip\r\n"), 415},
      {"encoding_twice",
       post_with(kJson + "Content-Encoding: identity\r\nContent-Encoding: gzip\r\n"), 400},
      {"encoding_identity", post_with(kJson + "Content-Encoding: Identity\r\n"), 200},
      {"expect", post_with(kJson + "Expect: 100-continue\r\n"), 200},
      {"expect_in_capitals", post_with(kJson + "EXPECT: 100-CONTINUE\r\n"), 200},
      {"expect_something_else", post_with(kJson + "Expect: magic\r\n"), 417},
      {"body_of_a_get", models_with(kLength) + kBody, 200},
      {"length_twice_the_same", kPost + kJson + kLength + kLength + "\r\n" + kBody, 400},
      {"length_twice_different", kPost + kJson + kLength + "Content-Length: 1\r\n\r\n" + kBody,
       400},
      {"length_as_a_list", kPost + kJson + "Content-Length: 45, 45\r\n\r\n" + kBody, 400},
      {"length_negative", kPost + kJson + "Content-Length: -1\r\n\r\n", 400},
      {"length_with_a_plus", kPost + kJson + "Content-Length: +45\r\n\r\n" + kBody, 400},
      {"length_hexadecimal", kPost + kJson + "Content-Length: 0x2d\r\n\r\n" + kBody, 400},
      {"length_with_a_unit", kPost + kJson + "Content-Length: 45b\r\n\r\n" + kBody, 400},
      {"length_empty", kPost + kJson + "Content-Length: \r\n\r\n", 400},
      {"length_beyond_64_bits", kPost + kJson + "Content-Length: 18446744073709551617\r\n\r\n",
       400},
      {"length_beyond_the_limit", kPost + kJson + "Content-Length: 99999999999\r\n\r\n", 413},
  };
}

std::vector<Case> chunks() {
  const std::string last = "0\r\n\r\n";
  const std::string coding = "Transfer-Encoding: ";
  return {
      {"one_chunk", in_one_chunk(kSize, last), 200},
      {"size_in_capitals", in_one_chunk("2D", last), 200},
      {"size_with_zeros", in_one_chunk("0002d", last), 200},
      {"extension", in_one_chunk(kSize + ";a=b", last), 200},
      {"trailer", in_one_chunk(kSize, "0\r\nA: 1\r\n\r\n"), 200},
      {"trailer_without_colon", in_one_chunk(kSize, "0\r\nnonsense\r\n\r\n"), 400},
      {"size_no_number", in_one_chunk("zz", last), 400},
      {"size_with_0x", in_one_chunk("0x2d", last), 400},
      {"size_negative", in_one_chunk("-1", last), 400},
      {"size_with_a_space_before", in_one_chunk(" 2d", last), 400},
      {"size_empty", in_one_chunk("", last), 400},
      {"size_beyond_64_bits", in_one_chunk("10000000000000000", last), 400},
      {"size_beyond_the_limit", in_one_chunk("fffffffff", last), 413},
      {"data_longer_than_its_size", in_one_chunk("2c", last), 400},
      {"line_feed_alone", chunked(kSize + "\n" + kBody + "\n0\n\n"), 400},
      {"extension_of_1_kb", in_one_chunk(kSize + ";" + std::string(1000, 'a'), last), 400},
      {"length_and_chunks", chunked(kSize + "\r\n" + kBody + "\r\n" + last, kLength), 400},
      {"coding_twice", chunked(last, coding + "chunked\r\n"), 400},
      {"coding_in_capitals",
       kPost + kJson + coding + "CHUNKED\r\n\r\n" + kSize + "\r\n" + kBody + "\r\n" + last, 200},
      {"coding_unknown", kPost + kJson + coding + "xchunked\r\n\r\n" + last, 400},
      {"coding_gzip", kPost + kJson + coding + "gzip, chunked\r\n\r\n" + last, 400},
      {"coding_identity", kPost + kJson + coding + "identity\r\n\r\n" + kBody, 400},
      {"coding_with_a_vertical_tab",
       kPost + kJson + coding +
           "\x0b"
           "chunked\r\n\r\n" +
           last,
       400},
      {"coding_in_http_1_0",
       "POST /v1/completions HTTP/1.0\r\n" + kJson + coding + "chunked\r\n\r\n" + last, 400},
  };
}

class RawHttp : public ::testing::TestWithParam<Case> {};

TEST_P(RawHttp, GetsItsStatus) {
  const Case& one = GetParam();
  Client client(shared_server().port());
  client.send(one.bytes);
  std::optional<Reply> reply = client.read_reply(one.bytes.starts_with("HEAD"));
  if (reply && reply->status == 100) reply = client.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, one.status) << reply->body;
  // Every answer tells its time (RFC 9110, 6.6.1).
  EXPECT_TRUE(reply->fields.contains("date")) << reply->body;
  EXPECT_TRUE(reply->fields.at("date").ends_with(" GMT")) << reply->fields.at("date");
  if (reply->status >= 400) {
    EXPECT_FALSE(text_at(reply->json(), "error.message").empty()) << reply->body;
  }
  expect_alive(shared_server().port());
}

std::string name_of(const ::testing::TestParamInfo<Case>& one) {
  return one.param.name;
}

INSTANTIATE_TEST_SUITE_P(RequestLine, RawHttp, ::testing::ValuesIn(request_lines()), name_of);
INSTANTIATE_TEST_SUITE_P(Target, RawHttp, ::testing::ValuesIn(targets()), name_of);
INSTANTIATE_TEST_SUITE_P(Field, RawHttp, ::testing::ValuesIn(fields()), name_of);
INSTANTIATE_TEST_SUITE_P(Body, RawHttp, ::testing::ValuesIn(bodies()), name_of);
INSTANTIATE_TEST_SUITE_P(Chunks, RawHttp, ::testing::ValuesIn(chunks()), name_of);

int status_of(TinyServer& server, const std::string& fields) {
  Client client(server.port());
  client.send("GET /v1/models HTTP/1.1\r\n" + fields + "\r\n");
  const std::optional<Reply> reply = client.read_reply();
  return reply ? reply->status : 0;
}

TEST(Hosts, AServerAnswersItsOwnAddress) {
  ServerSettings settings;
  settings.host = "127.0.0.2";
  RequestHead head;
  for (const char* host : {"127.0.0.2", "127.0.0.2:8000", "localhost", "127.0.0.1"}) {
    head.fields = {{"host", host}};
    EXPECT_FALSE(refuse_host(settings, true, head)) << host;
  }
  settings.host = "::1";
  head.fields = {{"host", "[::1]:8000"}};
  EXPECT_FALSE(refuse_host(settings, true, head));
  head.fields = {{"host", "evil.example"}};
  EXPECT_TRUE(refuse_host(settings, true, head));
}

TEST(Hosts, AllowedHostsAreNamesOfTheServer) {
  TinyServer server([](ServerSettings& settings) { settings.allowed_hosts = {"gpu.example"}; });
  EXPECT_EQ(status_of(server, "Host: GPU.example:8000\r\n"), 200);
  EXPECT_EQ(status_of(server, "Host: gpu.example\r\nOrigin: https://gpu.example\r\n"), 200);
  EXPECT_EQ(status_of(server, "Host: xgpu.example\r\n"), 403);
  EXPECT_EQ(status_of(server, "Host: localhost\r\n"), 200);
  TinyServer any([](ServerSettings& settings) { settings.allowed_hosts = {"*"}; });
  EXPECT_EQ(status_of(any, "Host: evil.example\r\n"), 200);
}

TEST(Hosts, AWebPageCannotUseAServerWithoutKeysOnAnyAddress) {
  TinyServer server([](ServerSettings& settings) { settings.host = "0.0.0.0"; });
  // Programs reach it under any name, web pages of other sites do not.
  EXPECT_EQ(status_of(server, "Host: gpu.example\r\n"), 200);
  EXPECT_EQ(status_of(server, "Host: gpu.example\r\nOrigin: http://evil.example\r\n"), 403);
  // What a page can send without asking: a POST without a type, as of navigator.sendBeacon.
  const std::string body = R"({"model":"tiny","prompt":"hi","max_tokens":1})";
  for (const char* origin : {"Origin: http://evil.example\r\n", ""}) {
    Client beacon(server.port());
    beacon.send("POST /v1/completions HTTP/1.1\r\nHost: gpu.example\r\n" + std::string(origin) +
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    const std::optional<Reply> reply = beacon.read_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, *origin == '\0' ? 415 : 403);
  }
  ServerSettings settings;
  EXPECT_NE(host_warning(settings).find("--allowed-hosts"), std::string::npos);
  settings.allowed_hosts = {"gpu.example"};
  EXPECT_EQ(host_warning(settings), "");
  settings = {};
  settings.api_keys = {"key"};
  EXPECT_EQ(host_warning(settings), "");
  settings = {};
  settings.host = "127.0.0.1";
  EXPECT_EQ(host_warning(settings), "");
}

TEST(Hosts, ThePageCannotBeFramed) {
  const Reply page = get(shared_server().port(), "/ui");
  const std::string& policy = page.fields.at("content-security-policy");
  for (const char* part : {"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'"})
    EXPECT_NE(policy.find(part), std::string::npos) << part << policy;
  EXPECT_EQ(page.fields.at("x-content-type-options"), "nosniff");
  EXPECT_EQ(page.fields.at("referrer-policy"), "no-referrer");
}

}  // namespace
}  // namespace koho::server
