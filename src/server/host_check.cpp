// SPDX-License-Identifier: Apache-2.0
#include "server/host_check.h"

#include <algorithm>
#include <array>

#include <arpa/inet.h>

#include "base/text.h"

namespace koho::server {
namespace {

bool is_ipv4(const std::string& host) {
  in_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1;
}

bool is_ipv6(const std::string& host) {
  in6_addr address{};
  return inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

/// The host of "HOST", "HOST:PORT" or "[ADDRESS]:PORT", in lower case; an IPv6 address without
/// brackets, a name without the dot of the root. "" if it is written in no such way.
std::string host_of(std::string_view written) {
  std::string host = lower_case(written);
  if (is_ipv6(host)) return host;
  const std::size_t bracket = host.starts_with('[') ? host.find(']') : 0;
  if (bracket == std::string::npos) return {};
  const std::size_t colon = std::min(host.find(':', bracket), host.size());
  if (host.find_first_not_of("0123456789", std::min(colon + 1, host.size())) != host.npos)
    return {};
  host.resize(colon);
  if (bracket > 0) return host.ends_with(']') ? host.substr(1, bracket - 1) : std::string();
  if (host.ends_with('.')) host.pop_back();
  return host;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host.ends_with(".localhost") || host == "::1" ||
         (is_ipv4(host) && host.starts_with("127."));
}

bool is_listed(const std::vector<std::string>& hosts, const std::string& host) {
  return std::ranges::any_of(
      hosts, [&](const std::string& one) { return one == "*" || host_of(one) == host; });
}

/// Whether a page from `host` is one of this machine, as far as the server can know.
bool is_this_machine(const ServerSettings& settings, const std::string& host) {
  return !host.empty() && (is_loopback(host) || host == host_of(settings.host) ||
                           is_listed(settings.allowed_hosts, host));
}

bool checks_host(const ServerSettings& settings, bool keyless) {
  return !settings.allowed_hosts.empty() || (keyless && is_loopback(settings.host));
}

}  // namespace

bool origin_allowed(const ServerSettings& settings, std::string_view origin) {
  return std::ranges::any_of(settings.allowed_origins,
                             [&](const std::string& one) { return one == "*" || one == origin; });
}

std::optional<std::string> refuse_host(const ServerSettings& settings,
                                       bool keyless,
                                       const RequestHead& head) {
  if (checks_host(settings, keyless) && head.has("host")) {
    const std::string host = host_of(head.field("host"));
    if (!is_ipv4(host) && !is_ipv6(host) && !is_this_machine(settings, host))
      return "Host names another machine: allow it with --allowed-hosts";
  }
  if (!keyless || !head.has("origin")) return {};
  const std::string_view origin = head.field("origin");
  if (origin_allowed(settings, origin)) return {};
  const std::size_t scheme = origin.find("://");
  if (scheme != std::string_view::npos &&
      is_this_machine(settings, host_of(origin.substr(scheme + 3))))
    return {};
  return "Origin names another machine: start the server with an API key, or allow the web page "
         "with --allowed-origins";
}

std::string host_warning(const ServerSettings& settings) {
  if (!settings.api_keys.empty() || !settings.allowed_hosts.empty() || is_loopback(settings.host))
    return {};
  return "no API key: everyone who reaches this port can use the server, and a web page in their "
         "browsers can read from it under a name of its own (DNS rebinding); give --api-key-file, "
         "or the server's names with --allowed-hosts";
}

}  // namespace koho::server
