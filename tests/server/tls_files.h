// SPDX-License-Identifier: Apache-2.0
// A certificate and its key for the tests of TLS, made anew by each program.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <unistd.h>

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

namespace koho::server {

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
class TlsFiles {
 public:
  TlsFiles() {
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
  ~TlsFiles() { std::filesystem::remove_all(directory_); }
  TlsFiles(const TlsFiles&) = delete;
  TlsFiles& operator=(const TlsFiles&) = delete;

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

inline const TlsFiles& files() {
  static const TlsFiles made;
  return made;
}

}  // namespace koho::server
