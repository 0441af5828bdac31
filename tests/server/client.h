// SPDX-License-Identifier: Apache-2.0
// A small blocking HTTP client for tests; it can also send malformed requests.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/json.h"

namespace koho::server {

struct Reply {
  int status = 0;
  std::map<std::string, std::string> fields;  // names in lower case
  std::string body;                           // chunks joined

  chat::Json json() const;
  /// The data of the events of a stream, in order.
  std::vector<std::string> events() const;
};

/// One connection. Every wait has a timeout.
class Client {
 public:
  /// `from`: its own address; "": the system's choice.
  explicit Client(std::uint16_t port, const std::string& from = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return socket_ >= 0; }
  /// False: the peer closed.
  bool send(std::string_view bytes);
  /// The next answer, or nothing if the connection ends or nothing comes for long.
  std::optional<Reply> read_reply(bool without_body = false);
  /// Bytes of the next answer until `text` stood in them that many times.
  bool read_until(std::string_view text, int times = 1);
  /// More bytes of it; false if the connection ends or nothing comes for long.
  bool read_more() { return receive(); }
  /// What came and was not taken by read_reply.
  const std::string& pending() const { return pending_; }
  /// Whether the peer ends the connection.
  bool sees_end();
  /// Ends it with a reset instead of a FIN.
  void reset();
  void close();
  /// Closes its sending side only.
  void finish_sending();
  void set_receive_buffer(int bytes);

  std::optional<Reply> get(std::string_view path, std::string_view fields = {});
  std::optional<Reply> post(std::string_view path,
                            std::string_view body,
                            std::string_view fields = {});

 private:
  bool receive();

  int socket_ = -1;
  std::string pending_;
};

/// On a connection of its own.
Reply get(std::uint16_t port, std::string_view path, std::string_view fields = {});
Reply post(std::uint16_t port,
           std::string_view path,
           std::string_view body,
           std::string_view fields = {});

/// The value at "a.b.0.c", or null.
chat::Json at(const chat::Json& json, std::string_view path);
/// The text of the value there: of a string its value, of anything else its JSON.
std::string text_at(const chat::Json& json, std::string_view path);

}  // namespace koho::server
