// SPDX-License-Identifier: Apache-2.0
// TLS between byte buffers: decrypts what the peer sent and encrypts what goes to the peer. No
// sockets; only tls.cpp includes OpenSSL.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

struct ssl_st;
struct ssl_ctx_st;

namespace koho::server {

/// One connection, the server's side. Threads: one at a time.
class TlsSession {
 public:
  explicit TlsSession(ssl_st* ssl);

  /// Decrypts `bytes` from the peer and appends the plain text to `plain`. False: not TLS, an
  /// unsupported version, or more new keys than a session may ask for; ciphertext() then has the
  /// alert for the peer, if there is one.
  bool receive(std::string_view bytes, std::string& plain);
  /// Whether the handshake is done; send() needs that.
  bool established() const;
  /// Encrypts `plain` and appends the records to ciphertext(). False: the session has failed.
  /// Requires: established().
  bool send(std::string_view plain);
  /// Appends close_notify, the last record. A second call does nothing.
  void end();
  /// The bytes for the peer; the caller erases what it has sent.
  std::string& ciphertext();

 private:
  bool receive_some(std::string_view bytes, std::string& plain);
  void collect();
  static void count_exchange(int writes,
                             int version,
                             int type,
                             const void* message,
                             std::size_t size,
                             ssl_st* ssl,
                             void* session);

  struct Free {
    void operator()(ssl_st* ssl) const;
  };
  std::unique_ptr<ssl_st, Free> ssl_;
  std::string ciphertext_;
  int exchanges_ = 0;    // after the handshake: keys, and handshakes that are refused
  bool opened_ = false;  // the first handshake is done; established() is false in a later one
  bool ended_ = false;
};

/// Certificate and key. Threads: any.
class TlsContext {
 public:
  /// PEM files: a certificate followed by its chain, and its key without a passphrase. TLS 1.2 and
  /// 1.3. Errors: invalid_argument with the file and the reason.
  static Result<TlsContext> load(const std::string& certificate, const std::string& key);

  std::unique_ptr<TlsSession> accept() const;

 private:
  struct Free {
    void operator()(ssl_ctx_st* context) const;
  };
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}

  std::unique_ptr<ssl_ctx_st, Free> context_;
};

}  // namespace koho::server
