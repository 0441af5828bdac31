// SPDX-License-Identifier: Apache-2.0
// Which Host and Origin a request may have: keeps web pages in a browser of the machine or the
// network from using a server that asks for no key. No sockets.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/http_message.h"
#include "server/settings.h"

namespace koho::server {

/// Why `head` is refused, or nothing.
///
/// Host: checked where the server listens on a loopback address without keys, and wherever
/// allowed_hosts is given. Allowed are addresses (a page can rebind a name, not an address),
/// localhost, the address that the server listens on, and allowed_hosts.
/// Origin, which only browsers send: checked on every server without keys. Allowed are this machine
/// and allowed_origins.
std::optional<std::string> refuse_host(const ServerSettings& settings,
                                       bool keyless,
                                       const RequestHead& head);

/// Whether `origin` is one of allowed_origins, or these have "*".
bool origin_allowed(const ServerSettings& settings, std::string_view origin);

/// What the log says at the start about a server that every web page could use, or "".
std::string host_warning(const ServerSettings& settings);

}  // namespace koho::server
