// SPDX-License-Identifier: Apache-2.0
// A client's bytes to a TLS session: whatever comes, the session answers with records or refuses,
// and a real client's handshake with a byte changed ends in one of the two. The first byte chooses:
// raw bytes, or a client whose record has the input's bytes put in. How the bytes are split into
// reads makes no difference to whether the session is refused.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <unistd.h>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "base/check.h"
#include "server/tls.h"

namespace koho::server {
namespace {

/// A self-signed certificate and its key in one new file.
std::string make_certificate() {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 86'400L * 365);
  X509_set_pubkey(certificate, key);
  X509_NAME* name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  KOHO_CHECK(X509_sign(certificate, key, EVP_sha256()) > 0);
  std::string path = "/tmp/koho-tls-fuzz-XXXXXX";
  const int descriptor = mkstemp(path.data());
  KOHO_CHECK(descriptor >= 0);
  std::FILE* file = fdopen(descriptor, "w");
  KOHO_CHECK(PEM_write_X509(file, certificate) == 1);
  KOHO_CHECK(PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
  std::fclose(file);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return path;
}

const TlsContext& context() {
  static const TlsContext made = [] {
    const std::string path = make_certificate();
    Result<TlsContext> loaded = TlsContext::load(path, path);
    unlink(path.c_str());
    KOHO_CHECK(loaded.ok());
    return std::move(*loaded);
  }();
  return made;
}

/// Whether the session takes all of `bytes`, given in pieces of `piece` bytes.
bool takes(std::string_view bytes, std::size_t piece) {
  const std::unique_ptr<TlsSession> session = context().accept();
  std::string plain;
  while (!bytes.empty()) {
    if (!session->receive(bytes.substr(0, piece), plain)) return false;
    bytes.remove_prefix(std::min(piece, bytes.size()));
    KOHO_CHECK(plain.empty() || session->established());
  }
  if (session->established()) KOHO_CHECK(session->send("HTTP/1.1 200 OK\r\n\r\n"));
  session->end();
  return true;
}

/// A real handshake in memory. `changes` are put over the client's bytes: (offset, byte) pairs.
void run_client(std::string_view changes) {
  static SSL_CTX* clients = SSL_CTX_new(TLS_client_method());
  const std::unique_ptr<SSL, decltype(&SSL_free)> client(SSL_new(clients), SSL_free);
  BIO* in = BIO_new(BIO_s_mem());
  BIO* out = BIO_new(BIO_s_mem());
  SSL_set_bio(client.get(), in, out);
  SSL_set_connect_state(client.get());
  const std::unique_ptr<TlsSession> session = context().accept();
  std::size_t sent = 0;
  std::string plain;
  for (int round = 0; round < 6; ++round) {
    const bool done = SSL_do_handshake(client.get()) == 1;
    if (done) SSL_write(client.get(), "GET / HTTP/1.1\r\n\r\n", 18);
    char* data = nullptr;
    const long size = BIO_get_mem_data(out, &data);
    std::string bytes(data, static_cast<std::size_t>(size));
    BIO_reset(out);
    for (std::size_t i = 0; i + 2 < changes.size(); i += 3) {
      const std::size_t at = static_cast<unsigned char>(changes[i]) * 256U +
                             static_cast<unsigned char>(changes[i + 1]);
      if (at >= sent && at - sent < bytes.size()) bytes[at - sent] = changes[i + 2];
    }
    sent += bytes.size();
    if (!session->receive(bytes, plain)) return;
    const std::string& answer = session->ciphertext();
    BIO_write(in, answer.data(), static_cast<int>(answer.size()));
    session->ciphertext().clear();
    if (done && session->established()) break;
  }
  // Without changes the request arrives as it was sent.
  if (changes.empty()) KOHO_CHECK(plain == "GET / HTTP/1.1\r\n\r\n");
}

}  // namespace
}  // namespace koho::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    koho::server::run_client(bytes);
    return 0;
  }
  const bool whole = koho::server::takes(bytes, ~std::size_t{0});
  KOHO_CHECK_EQ(whole, koho::server::takes(bytes, 1 + data[0] / 2U));
  return 0;
}
