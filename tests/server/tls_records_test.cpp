// SPDX-License-Identifier: Apache-2.0
// Records of TLS cut, joined, broken and repeated by a client: a request arrives however its bytes
// come, and whatever comes instead ends the session with little memory. OpenSSL is the client, in
// memory.
#include <algorithm>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "server/tls.h"
#include "tls_files.h"

namespace koho::server {
namespace {

using Ssl = std::unique_ptr<SSL, Freed<SSL_free>>;

const std::string kRequest =
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}";

const TlsContext& context() {
  static const TlsContext made =
      std::move(*TlsContext::load(files().path("cert.pem"), files().path("key.pem")));
  return made;
}

/// A client and the server's session, with what has been said to whom.
class Talk {
 public:
  explicit Talk(int version_max = TLS1_3_VERSION)
      : contexts_(SSL_CTX_new(TLS_client_method())), session_(context().accept()) {
    SSL_CTX_set_max_proto_version(contexts_.get(), version_max);
    client_.reset(SSL_new(contexts_.get()));
    SSL_set_bio(client_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_connect_state(client_.get());
  }

  SSL* client() { return client_.get(); }
  TlsSession& session() { return *session_; }
  const std::string& plain() const { return plain_; }

  /// What the client has for the server.
  std::string said() {
    char* data = nullptr;
    const long size = BIO_get_mem_data(SSL_get_wbio(client_.get()), &data);
    std::string bytes(data, static_cast<std::size_t>(size));
    BIO_reset(SSL_get_wbio(client_.get()));
    return bytes;
  }
  /// Gives the server `bytes` in pieces. False: it ended the session.
  bool deliver(std::string_view bytes, std::size_t piece = ~std::size_t{0}) {
    for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size())))
      if (!session_->receive(bytes.substr(0, piece), plain_)) return false;
    return true;
  }
  /// Gives the client what the server said.
  void answer() {
    std::string& bytes = session_->ciphertext();
    if (!bytes.empty())
      BIO_write(SSL_get_rbio(client_.get()), bytes.data(), static_cast<int>(bytes.size()));
    bytes.clear();
  }
  bool shake_hands(std::size_t piece = ~std::size_t{0}) {
    for (int round = 0; round < 6; ++round) {
      const bool done = SSL_do_handshake(client_.get()) == 1;
      if (!deliver(said(), piece)) return false;
      if (done && session_->established()) return true;
      answer();
    }
    return false;
  }
  /// The records of `text`, each with at most `record` bytes of it.
  std::string records(std::string_view text, std::size_t record) {
    for (; !text.empty(); text.remove_prefix(std::min(record, text.size())))
      SSL_write(client_.get(), text.data(), static_cast<int>(std::min(record, text.size())));
    return said();
  }

 private:
  Context contexts_;
  Ssl client_;
  std::unique_ptr<TlsSession> session_;
  std::string plain_;
};

TEST(TlsRecords, ARequestArrivesHoweverItIsCut) {
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    for (const std::size_t piece : {1U, 2U, 3U, 5U, 64U, 100'000U}) {
      for (const std::size_t record : {1U, 2U, 17U, 16'384U}) {
        SCOPED_TRACE(testing::Message()
                     << version << " in pieces of " << piece << ", records of " << record);
        Talk talk(version);
        ASSERT_TRUE(talk.shake_hands(piece));
        ASSERT_TRUE(talk.deliver(talk.records(kRequest, record), piece));
        EXPECT_EQ(talk.plain(), kRequest);
      }
    }
  }
}

TEST(TlsRecords, ACutAtEveryByteMakesNoDifference) {
  Talk talk;
  ASSERT_TRUE(talk.shake_hands());
  std::string all;
  for (int i = 0; i < 2; ++i) {
    const std::string bytes = talk.records(kRequest, 16'384);
    for (std::size_t cut = 0; i == 0 && cut < bytes.size(); ++cut) {
      // What is not whole is not told.
      Talk half;
      ASSERT_TRUE(half.shake_hands());
      const std::string own = half.records(kRequest, 16'384);
      ASSERT_TRUE(half.deliver(std::string_view(own).substr(0, cut)));
      EXPECT_EQ(half.plain(), "") << cut;
      ASSERT_TRUE(half.deliver(std::string_view(own).substr(cut)));
      EXPECT_EQ(half.plain(), kRequest) << cut;
    }
    all += bytes;
  }
  // Two requests at once, and the half of a third.
  all += talk.records(kRequest, 16'384);
  ASSERT_TRUE(talk.deliver(std::string_view(all).substr(0, all.size() - 9)));
  EXPECT_EQ(talk.plain(), kRequest + kRequest);
}

std::string record_of(unsigned char type, std::string_view version, std::string_view content) {
  std::string made(1, static_cast<char>(type));
  made += version;
  made += static_cast<char>(content.size() >> 8U);
  made += static_cast<char>(content.size() & 0xFFU);
  return made + std::string(content);
}

/// Bytes instead of a request, after the handshake or before it.
struct Case {
  const char* name;
  bool established;
  std::function<std::string(Talk&)> bytes;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

std::vector<Case> broken() {
  const std::string_view v12("\x03\x03", 2);
  const auto fixed = [](std::string bytes) { return [bytes](Talk&) { return bytes; }; };
  const auto changed = [](std::size_t from_end) {
    return [from_end](Talk& talk) {
      std::string bytes = talk.records(kRequest, 16'384);
      bytes[bytes.size() - from_end] ^= 1;
      return bytes;
    };
  };
  return {
      {"http_instead_of_tls", false, fixed(kRequest)},
      {"application_data_first", false, fixed(record_of(23, v12, "GET / HTTP/1.1\r\n\r\n"))},
      {"alert_first", false, fixed(record_of(21, v12, std::string("\x02\x28", 2)))},
      {"heartbeat_first", false, fixed(record_of(24, v12, std::string("\x01\xff\xff", 3)))},
      {"hello_of_ssl_2", false, fixed(std::string("\x80\x2e\x01\x00\x02", 5) + std::string(60, 0))},
      {"hello_of_length_0", false, fixed(record_of(22, v12, std::string("\x01\0\0\0", 4)))},
      {"hello_of_16_mb", false,
       fixed(record_of(22, v12, "\x01\xff\xff\xff" + std::string(200, 0)))},
      {"server_hello_of_a_client", false,
       fixed(record_of(22, v12, std::string("\x02\0\0\x26", 4) + std::string(38, 3)))},
      {"hello_twice", false,
       [](Talk& talk) {
         SSL_do_handshake(talk.client());
         const std::string hello = talk.said();
         return hello + hello;
       }},
      {"plain_text", true, fixed(kRequest)},
      {"record_of_no_key", true, fixed(record_of(23, v12, std::string(64, 'x')))},
      {"record_without_content", true, fixed(record_of(23, v12, ""))},
      {"record_of_18_kb", true, fixed(record_of(23, v12, std::string(18'500, 'x')))},
      {"record_of_an_unknown_type", true, fixed(record_of(99, v12, std::string(64, 'x')))},
      {"handshake_in_plain_text", true, fixed(record_of(22, v12, std::string(64, 1)))},
      {"last_bit_changed", true, changed(1)},
      {"a_bit_in_the_middle_changed", true, changed(40)},
      {"record_twice", true,
       [](Talk& talk) {
         const std::string bytes = talk.records(kRequest, 16'384);
         return bytes + bytes;
       }},
      {"record_left_out", true,
       [](Talk& talk) {
         talk.records("GET ", 16'384);
         return talk.records("/ HTTP/1.1\r\n\r\n", 16'384);
       }},
      {"records_exchanged", true,
       [](Talk& talk) {
         const std::string first = talk.records("GET ", 16'384);
         return talk.records("/ HTTP/1.1\r\n\r\n", 16'384) + first;
       }},
      {"keys_updated_10000_times", true,
       [](Talk& talk) {
         std::string all;
         for (int i = 0; i < 10'000; ++i) {
           SSL_key_update(talk.client(), SSL_KEY_UPDATE_REQUESTED);
           SSL_do_handshake(talk.client());
           all += talk.said();
         }
         return all;
       }},
  };
}

class BrokenTls : public testing::TestWithParam<Case> {};

TEST_P(BrokenTls, EndsTheSession) {
  for (const std::size_t piece : {std::size_t{1}, std::size_t{100'000'000}}) {
    Talk talk;
    if (GetParam().established) {
      ASSERT_TRUE(talk.shake_hands());
      talk.answer();
    }
    const std::string bytes = GetParam().bytes(talk);
    EXPECT_FALSE(talk.deliver(bytes, piece));
    // Nothing of it was taken for a request, and no more than an alert or one flight is said.
    EXPECT_TRUE(talk.plain().empty() || talk.plain() == kRequest) << talk.plain();
    EXPECT_LT(talk.session().ciphertext().size(), 8000U);
    // What comes later is not read.
    EXPECT_FALSE(talk.deliver(GetParam().established ? talk.records(kRequest, 16'384) : kRequest));
  }
}

INSTANTIATE_TEST_SUITE_P(TlsRecords,
                         BrokenTls,
                         testing::ValuesIn(broken()),
                         [](const testing::TestParamInfo<Case>& one) { return one.param.name; });

TEST(TlsRecords, ANewHandshakeInTls12IsRefusedAndTheOldOneStays) {
  Talk talk(TLS1_2_VERSION);
  ASSERT_TRUE(talk.shake_hands());
  talk.answer();
  SSL_renegotiate(talk.client());
  SSL_do_handshake(talk.client());
  EXPECT_TRUE(talk.deliver(talk.said()));
  EXPECT_LT(talk.session().ciphertext().size(), 200U) << "an alert";
  EXPECT_EQ(talk.plain(), "");
  // Nor again and again.
  bool taken = true;
  for (int i = 0; i < 1000 && taken; ++i) {
    talk.answer();
    SSL_renegotiate(talk.client());
    SSL_do_handshake(talk.client());
    taken = talk.deliver(talk.said());
  }
  EXPECT_LT(talk.session().ciphertext().size(), 8000U);
}

TEST(TlsRecords, KeysMayBeUpdatedNowAndThen) {
  Talk talk;
  ASSERT_TRUE(talk.shake_hands());
  for (int i = 0; i < 40; ++i) {
    SSL_key_update(talk.client(), SSL_KEY_UPDATE_REQUESTED);
    SSL_do_handshake(talk.client());
    ASSERT_TRUE(talk.deliver(talk.records(kRequest, 16'384))) << i;
    talk.answer();
  }
  EXPECT_EQ(talk.plain().size(), 40 * kRequest.size());
}

TEST(TlsRecords, AnEndSaidByTheClientIsHeard) {
  Talk talk;
  ASSERT_TRUE(talk.shake_hands());
  std::string bytes = talk.records(kRequest, 16'384);
  SSL_shutdown(talk.client());
  bytes += talk.said();
  EXPECT_TRUE(talk.deliver(bytes, 1));
  EXPECT_EQ(talk.plain(), kRequest);
  EXPECT_TRUE(talk.session().send("HTTP/1.1 200 OK\r\n\r\n"));
}

}  // namespace
}  // namespace koho::server
