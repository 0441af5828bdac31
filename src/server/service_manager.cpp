// SPDX-License-Identifier: Apache-2.0
#include "server/service_manager.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

#include "base/log.h"

namespace koho::server {

ServiceManager::ServiceManager(Settings settings, const Clock& clock)
    : settings_(std::move(settings)), clock_(clock) {}

void ServiceManager::tell(const std::string& state) const {
  const std::string& path = settings_.socket;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (sendto(socket, state.data(), state.size(), MSG_NOSIGNAL,
             reinterpret_cast<const sockaddr*>(&address), length) < 0)
    log::warning("could not send \"{}\" to systemd: {}", state, std::strerror(errno));
  close(socket);
}

void ServiceManager::keep_alive(bool alive) {
  if (!has_watchdog() || !alive) return;
  const std::int64_t now = clock_.now_us();
  if (now < next_us_) return;
  // A quarter of the period, so that two messages per period arrive even if calls are late.
  next_us_ = now + settings_.watchdog_us / 4;
  tell("WATCHDOG=1");
}

std::int64_t ServiceManager::look_every_ms() const {
  constexpr std::int64_t kUsPerMs = 1000;
  if (!has_watchdog()) return std::numeric_limits<std::int64_t>::max();
  return std::max<std::int64_t>(1, settings_.watchdog_us / 8 / kUsPerMs);
}

}  // namespace koho::server
