// SPDX-License-Identifier: Apache-2.0
#include "server/tls.h"

#include <algorithm>
#include <array>
#include <climits>
#include <utility>

#include <openssl/err.h>
#include <openssl/ssl.h>

namespace koho::server {
namespace {

// Each costs the server 35 us and an answer, and the peer 26 bytes: without a bound it could keep a
// thread busy, and without reading the answers fill memory. Keys are good for 2^24 records.
constexpr int kExchangesMax = 64;
constexpr std::size_t kReadAtOnce = 4096;  // holds some 150 of them

/// OpenSSL's text for its latest error; clears its error queue.
std::string reason() {
  const unsigned long code = ERR_peek_last_error();
  const char* text = ERR_reason_error_string(code);
  ERR_clear_error();
  return text == nullptr ? "it is not readable" : text;
}

/// Password callback: OpenSSL calls it for keys with a passphrase, which are refused.
int no_passphrase(char* /*buffer*/, int /*size*/, int /*writing*/, void* /*data*/) {
  return 0;
}

}  // namespace

void TlsSession::Free::operator()(ssl_st* ssl) const {
  SSL_free(ssl);
}

void TlsContext::Free::operator()(ssl_ctx_st* context) const {
  SSL_CTX_free(context);
}

Result<TlsContext> TlsContext::load(const std::string& certificate, const std::string& key) {
  TlsContext made(SSL_CTX_new(TLS_server_method()));
  SSL_CTX* context = made.context_.get();
  if (context == nullptr)
    return make_error(ErrorCode::resource_exhausted, "OpenSSL could not be initialised: {}",
                      reason());
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // Release the record buffers of idle connections.
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_default_passwd_cb(context, no_passphrase);
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context, certificate.c_str()) != 1)
    return make_error(ErrorCode::invalid_argument,
                      "tls-cert: \"{}\" has no usable PEM certificate: {}", certificate, reason());
  if (SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) != 1)
    return make_error(ErrorCode::invalid_argument,
                      "tls-key: \"{}\" has no usable PEM key (without a passphrase) for \"{}\": {}",
                      key, certificate, reason());
  return made;
}

std::unique_ptr<TlsSession> TlsContext::accept() const {
  SSL* ssl = SSL_new(context_.get());
  return ssl == nullptr ? nullptr : std::make_unique<TlsSession>(ssl);
}

TlsSession::TlsSession(ssl_st* ssl) : ssl_(ssl) {
  SSL_set_bio(ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  SSL_set_accept_state(ssl);
  SSL_set_msg_callback(ssl, count_exchange);
  SSL_set_msg_callback_arg(ssl, this);
}

void TlsSession::count_exchange(int writes,
                                int /*version*/,
                                int type,
                                const void* /*message*/,
                                std::size_t /*size*/,
                                ssl_st* /*ssl*/,
                                void* session) {
  // OpenSSL answers a new handshake with an alert, and does not tell of the message.
  auto& self = *static_cast<TlsSession*>(session);
  if (type == (writes != 0 ? SSL3_RT_ALERT : SSL3_RT_HANDSHAKE) && self.opened_) ++self.exchanges_;
}

bool TlsSession::established() const {
  return SSL_is_init_finished(ssl_.get()) == 1;
}

std::string& TlsSession::ciphertext() {
  return ciphertext_;
}

/// Moves OpenSSL's output to ciphertext_.
void TlsSession::collect() {
  BIO* out = SSL_get_wbio(ssl_.get());
  const std::size_t bytes = BIO_ctrl_pending(out);
  if (bytes == 0) return;
  const std::size_t before = ciphertext_.size();
  ciphertext_.resize(before + bytes);
  const int read = BIO_read(out, ciphertext_.data() + before, static_cast<int>(bytes));
  ciphertext_.resize(before + static_cast<std::size_t>(std::max(read, 0)));
}

bool TlsSession::receive(std::string_view bytes, std::string& plain) {
  bool good = exchanges_ <= kExchangesMax;
  for (; good && !bytes.empty(); bytes.remove_prefix(std::min(kReadAtOnce, bytes.size())))
    good = receive_some(bytes.substr(0, kReadAtOnce), plain) && exchanges_ <= kExchangesMax;
  collect();
  return good;
}

bool TlsSession::receive_some(std::string_view bytes, std::string& plain) {
  ERR_clear_error();
  BIO_write(SSL_get_rbio(ssl_.get()), bytes.data(), static_cast<int>(bytes.size()));
  std::array<char, 16U << 10U> record;
  int read = 0;
  while ((read = SSL_read(ssl_.get(), record.data(), static_cast<int>(record.size()))) > 0)
    plain.append(record.data(), static_cast<std::size_t>(read));
  const int why = SSL_get_error(ssl_.get(), read);
  ERR_clear_error();
  opened_ = opened_ || established();
  // close_notify ends only the peer's sending side.
  return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_ZERO_RETURN;
}

bool TlsSession::send(std::string_view plain) {
  while (!plain.empty()) {
    const int part = static_cast<int>(std::min<std::size_t>(plain.size(), INT_MAX));
    const int written = SSL_write(ssl_.get(), plain.data(), part);
    if (written <= 0) {
      ERR_clear_error();
      return false;
    }
    plain.remove_prefix(static_cast<std::size_t>(written));
  }
  collect();
  return true;
}

void TlsSession::end() {
  if (std::exchange(ended_, true)) return;
  if (established()) SSL_shutdown(ssl_.get());
  ERR_clear_error();
  collect();
}

}  // namespace koho::server
