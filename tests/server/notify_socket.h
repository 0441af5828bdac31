// SPDX-License-Identifier: Apache-2.0
// The other end of sd_notify: a datagram socket with a name in a temporary directory.
#pragma once

#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <vector>

namespace koho::server {

class NotifySocket {
 public:
  NotifySocket() {
    char directory[] = "/tmp/koho_notify_XXXXXX";
    if (mkdtemp(directory) == nullptr) std::abort();
    directory_ = directory;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string name = path();
    std::memcpy(address.sun_path, name.c_str(), name.size() + 1);
    socket_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      std::abort();
  }
  ~NotifySocket() {
    close(socket_);
    unlink(path().c_str());
    rmdir(directory_.c_str());
  }
  NotifySocket(const NotifySocket&) = delete;
  NotifySocket& operator=(const NotifySocket&) = delete;

  std::string path() const { return directory_ + "/notify"; }

  /// What came since the last call.
  std::vector<std::string> take() {
    std::vector<std::string> all;
    char buffer[256];
    while (true) {
      const ssize_t bytes = recv(socket_, buffer, sizeof buffer, 0);
      if (bytes < 0) return all;
      all.emplace_back(buffer, static_cast<std::size_t>(bytes));
    }
  }

 private:
  std::string directory_;
  int socket_ = -1;
};

}  // namespace koho::server
