// SPDX-License-Identifier: Apache-2.0
// In place of tls.cpp where OpenSSL's headers are missing: no context loads, so no session exists.
#include "server/tls.h"

namespace koho::server {

void TlsSession::Free::operator()(ssl_st* /*ssl*/) const {}

void TlsContext::Free::operator()(ssl_ctx_st* /*context*/) const {}

Result<TlsContext> TlsContext::load(const std::string& /*certificate*/,
                                    const std::string& /*key*/) {
  return make_error(
      ErrorCode::invalid_argument,
      "tls-cert: this build has no TLS: install OpenSSL's headers (libssl-dev) and build again");
}

std::unique_ptr<TlsSession> TlsContext::accept() const {
  return nullptr;
}

bool TlsSession::receive(std::string_view /*bytes*/, std::string& /*plain*/) {
  return false;
}

bool TlsSession::established() const {
  return false;
}

bool TlsSession::send(std::string_view /*plain*/) {
  return false;
}

void TlsSession::end() {}

std::string& TlsSession::ciphertext() {
  return ciphertext_;
}

}  // namespace koho::server
