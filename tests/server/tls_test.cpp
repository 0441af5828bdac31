// SPDX-License-Identifier: Apache-2.0
// HTTPS through a socket: a certificate of the test, OpenSSL as the client.
#include <string>

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/ssl.h>

#include "client.h"
#include "tiny_server.h"
#include "tls_files.h"

namespace koho::server {
namespace {

TinyServer& secure_server() {
  static TinyServer server([](ServerSettings& settings) {
    settings.tls_cert = files().path("cert.pem");
    settings.tls_key = files().path("key.pem");
  });
  return server;
}

/// Everything the server says until it ends the connection; nothing if there is no handshake.
std::optional<std::string> exchange(const std::string& request, int version_max = 0) {
  const Context context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_load_verify_file(context.get(), files().path("cert.pem").c_str());
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  if (version_max != 0) {
    SSL_CTX_set_security_level(context.get(), 0);
    SSL_CTX_set_max_proto_version(context.get(), version_max);
  }
  const Bio bio(BIO_new_ssl_connect(context.get()));
  SSL* ssl = nullptr;
  BIO_get_ssl(bio.get(), &ssl);
  X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), "127.0.0.1");
  BIO_set_conn_hostname(bio.get(), ("127.0.0.1:" + std::to_string(secure_server().port())).c_str());
  if (BIO_do_connect(bio.get()) != 1 || BIO_do_handshake(bio.get()) != 1) return {};
  for (std::size_t sent = 0; sent < request.size();) {
    const int bytes =
        BIO_write(bio.get(), request.data() + sent, static_cast<int>(request.size() - sent));
    if (bytes <= 0) return {};
    sent += static_cast<std::size_t>(bytes);
  }
  std::string said;
  char buffer[4096];
  for (int bytes = 0; (bytes = BIO_read(bio.get(), buffer, sizeof buffer)) > 0;)
    said.append(buffer, static_cast<std::size_t>(bytes));
  // A connection that breaks could have been cut by anybody; its end is said.
  EXPECT_EQ(SSL_get_shutdown(ssl) & SSL_RECEIVED_SHUTDOWN, SSL_RECEIVED_SHUTDOWN);
  return said;
}

std::string request(const std::string& path, const std::string& body) {
  return "POST " + path +
         " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
         "application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

const std::string kBody =
    R"({"model":"tiny","prompt":"hi","max_tokens":20,"ignore_eos":true,"stream":true})";

TEST(Tls, AnswersAndStreams) {
  for (const int version : {0, TLS1_2_VERSION}) {
    const std::optional<std::string> said = exchange(request("/v1/completions", kBody), version);
    ASSERT_TRUE(said) << version;
    EXPECT_TRUE(said->starts_with("HTTP/1.1 200 ")) << *said;
    EXPECT_NE(said->find("data: [DONE]\n\n"), std::string::npos) << *said;
  }
  // Many records in either direction.
  const std::optional<std::string> back = exchange(request(
      "/detokenize", R"({"tokens":[)" + [] {
        std::string ids = "7";
        for (int i = 0; i < 100'000; ++i) ids += ",7";
        return ids;
      }() + "]}"));
  ASSERT_TRUE(back);
  EXPECT_TRUE(back->starts_with("HTTP/1.1 200 ")) << back->substr(0, 300);
  EXPECT_GT(back->size(), 100'000U);
}

TEST(Tls, RefusesWhatItDoesNotSpeak) {
  EXPECT_FALSE(exchange(request("/v1/completions", kBody), TLS1_1_VERSION));
  for (const std::string& bytes :
       {std::string("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        std::string("\x16\x03\x01\x00\x05hello", 10), std::string("\x16\x03\x01\xff\xff", 5)}) {
    Client client(secure_server().port());
    ASSERT_TRUE(client.send(bytes));
    EXPECT_TRUE(client.sees_end());
  }
  EXPECT_TRUE(exchange(request("/v1/completions", kBody)));
  EXPECT_TRUE(secure_server().becomes_idle());
}

TEST(Tls, GivesUpAHandshakeThatDoesNotCome) {
  TinyServer server([](ServerSettings& settings) {
    settings.tls_cert = files().path("cert.pem");
    settings.tls_key = files().path("key.pem");
    settings.time.head_ms = 20;
  });
  Client silent(server.port());
  EXPECT_TRUE(silent.sees_end());
  Client half(server.port());
  ASSERT_TRUE(half.send("\x16\x03\x01"));
  EXPECT_TRUE(half.sees_end());
}

TEST(Tls, BadFilesAreNamed) {
  const auto refusal = [](const std::string& certificate, const std::string& key) {
    SteadyClock clock;
    ServerSettings settings;
    settings.host = "127.0.0.1";
    settings.port = 0;
    settings.tls_cert = certificate;
    settings.tls_key = key;
    const Result<std::unique_ptr<Server>> server = Server::start(settings, clock);
    return server.ok() ? "accepted" : server.error().message;
  };
  const std::string cert = files().path("cert.pem");
  const std::string key = files().path("key.pem");
  EXPECT_NE(refusal("/nowhere.pem", key).find("tls-cert: \"/nowhere.pem\""), std::string::npos);
  EXPECT_NE(refusal(key, key).find("tls-cert: \"" + key), std::string::npos);
  EXPECT_NE(refusal(cert, "/nowhere.pem").find("tls-key: \"/nowhere.pem\""), std::string::npos);
  EXPECT_NE(refusal(cert, cert).find("tls-key: \"" + cert), std::string::npos);
  const std::string other = refusal(cert, files().path("other.pem"));
  EXPECT_NE(other.find("other.pem"), std::string::npos) << other;
  EXPECT_NE(other.find("mismatch"), std::string::npos) << other;
}

}  // namespace
}  // namespace koho::server
