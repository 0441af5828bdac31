// SPDX-License-Identifier: Apache-2.0
// HTTPS through a socket: a certificate of the test, OpenSSL as the client.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "client.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Context = std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>>;
using Bio = std::unique_ptr<BIO, Freed<BIO_free_all>>;

/// cert.pem (self-signed, of 127.0.0.1), its key.pem, and other.pem, a key of nobody.
class Files {
 public:
  Files() {
    char name[] = "/tmp/koho-tls-XXXXXX";
    directory_ = mkdtemp(name);
    const Key key(EVP_EC_gen("P-256"));
    const Key other(EVP_EC_gen("P-256"));
    const Certificate made(X509_new());
    X509_set_version(made.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
    X509_NAME* subject = X509_get_subject_name(made.get());
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("koho"), -1, -1, 0);
    X509_set_issuer_name(made.get(), subject);
    X509_set_pubkey(made.get(), key.get());
    X509_EXTENSION* names =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
    X509_add_ext(made.get(), names, -1);
    X509_EXTENSION_free(names);
    X509_sign(made.get(), key.get(), EVP_sha256());
    write("cert.pem", [&](std::FILE* file) { PEM_write_X509(file, made.get()); });
    write("key.pem", [&](std::FILE* file) { write_key(file, key); });
    write("other.pem", [&](std::FILE* file) { write_key(file, other); });
  }
  ~Files() { std::filesystem::remove_all(directory_); }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  std::string path(const std::string& name) const { return directory_ / name; }

 private:
  static void write_key(std::FILE* file, const Key& key) {
    PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  }
  template <typename Write>
  void write(const std::string& name, const Write& write) const {
    std::FILE* file = std::fopen(path(name).c_str(), "w");
    write(file);
    std::fclose(file);
  }

  std::filesystem::path directory_;
};

const Files& files() {
  static const Files made;
  return made;
}

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
