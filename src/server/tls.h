// SPDX-License-Identifier: Apache-2.0
// TLS as a layer of bytes: what the peer sent goes in, what it said comes out, and the other way
// round. No sockets; OpenSSL is known to tls.cpp only.
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

  /// Takes all of `bytes` from the peer; appends what it said to `plain`. False: this is no TLS, or
  /// none that we speak; what is left to send then is the alert that says so.
  bool receive(std::string_view bytes, std::string& plain);
  /// Whether the handshake is over: nothing may be sent before.
  bool established() const;
  /// Encrypts; the bytes are added to ciphertext(). False: the session is broken. Requires:
  /// established().
  bool send(std::string_view plain);
  /// The last record: nothing is sent after it. A second call does nothing.
  void end();
  /// What must go to the peer next; whoever sent some of it erases it.
  std::string& ciphertext();

 private:
  void collect();

  struct Free {
    void operator()(ssl_st* ssl) const;
  };
  std::unique_ptr<ssl_st, Free> ssl_;
  std::string ciphertext_;
  bool ended_ = false;
};

/// Certificate and key. Threads: any.
class TlsContext {
 public:
  /// PEM files: a certificate, with the chain behind it, and its key without a passphrase. TLS 1.2
  /// and 1.3. Errors: invalid_argument, naming the file and what is wrong with it.
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
