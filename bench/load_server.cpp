// SPDX-License-Identifier: Apache-2.0
#include "bench/load_server.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <netinet/in.h>

#include "base/clock.h"
#include "tests/processes/process_list.h"

namespace koho::bench {
namespace {

std::int64_t cpu_us_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  std::getline(file, line);
  // The fields after the name in brackets: state is the first, user and system time 12 and 13.
  std::size_t at = line.rfind(')') + 2;
  for (int field = 0; field < 11; ++field) at = line.find(' ', at) + 1;
  char* rest = nullptr;
  const std::int64_t user = std::strtoll(line.c_str() + at, &rest, 10);
  const std::int64_t system = std::strtoll(rest, nullptr, 10);
  return (user + system) * 1'000'000 / sysconf(_SC_CLK_TCK);
}

/// Of a folder of /proc/N, "fd" or "task", the entries that `counts` says count.
template <typename Counts>
std::int64_t entries(pid_t process, std::string_view folder, Counts counts) {
  std::int64_t count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at(fmt::format("/proc/{}/{}", process, folder), error),
       end;
       !error && at != end; at.increment(error))
    count += counts(at->path()) ? 1 : 0;
  return count;
}

/// A thread of the CPU backend opens a file of /proc about itself when it first asks how long it
/// waited, which may be late. How many threads there are is counted for itself.
bool tells_of_a_thread(const std::filesystem::path& descriptor) {
  std::error_code error;
  return std::filesystem::read_symlink(descriptor, error).native().starts_with("/proc/");
}

std::vector<pid_t> with_children(pid_t process) {
  std::vector<pid_t> processes = testing::children_of(process);
  std::ranges::sort(processes);
  processes.insert(processes.begin(), process);
  return processes;
}

}  // namespace

std::vector<server::ApiKeySettings> soak_keys(std::int64_t reloads) {
  std::vector<server::ApiKeySettings> keys;
  for (const std::string_view key : kSoakKeys) keys.emplace_back(std::string(key));
  keys[1].priority = static_cast<std::int32_t>(reloads % kPriorities);
  keys[2].requests_at_once = 8 + reloads % 3;
  keys[2].cache_salt = reloads % 2 == 0 ? "third" : "";
  keys[3].tokens_per_minute = 2'000'000 + reloads;
  keys[3].name = fmt::format("fourth-{}", reloads);
  keys[4].requests_per_minute = 60'000;
  if (reloads % 2 == 1) keys.push_back(server::ApiKeySettings("sk-now-and-then"));
  return keys;
}

LoadServer::~LoadServer() {
  if (process_ <= 0) return;
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
}

std::int64_t LoadServer::cpu_us() const {
  std::int64_t sum = 0;
  for (const pid_t process : processes_) sum += cpu_us_of(process);
  return sum;
}

std::int64_t LoadServer::resident_bytes() const {
  std::int64_t sum = 0;
  for (const pid_t process : processes_) sum += resident_bytes_of(process);
  return sum;
}

std::int64_t LoadServer::descriptors() const {
  std::int64_t sum = 0;
  for (const pid_t process : processes_)
    sum += entries(process, "fd", [](const auto& path) { return !tells_of_a_thread(path); });
  return sum;
}

std::int64_t LoadServer::threads() const {
  std::int64_t sum = 0;
  for (const pid_t process : processes_)
    sum += entries(process, "task", [](const auto&) { return true; });
  return sum;
}

std::int64_t LoadServer::resident_bytes_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/statm", process));
  std::int64_t total = 0;
  std::int64_t resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

Status LoadServer::look() {
  processes_ = with_children(process_);
  if (answer_to("/metrics", &descriptors_idle_).empty())
    return make_error(ErrorCode::io_error, "the server does not answer");
  return {};
}

std::string LoadServer::answer_to(std::string_view path, std::int64_t* descriptors) const {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port_);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  const std::string ask = fmt::format(
      "GET {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n"
      "Connection: close\r\n\r\n",
      path, kSoakKeys[0]);
  if (connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      send(socket, ask.data(), ask.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(ask.size())) {
    std::array<char, 65536> buffer;
    ssize_t bytes = 0;
    while ((bytes = recv(socket, buffer.data(), buffer.size(), 0)) > 0)
      answer.append(buffer.data(), static_cast<std::size_t>(bytes));
  }
  // The server's end stays open until it sees ours close.
  if (descriptors != nullptr) *descriptors = this->descriptors();
  close(socket);
  return answer;
}

double LoadServer::metric(std::string_view name) const {
  return metric_in(metrics_page(), name);
}

std::string LoadServer::metrics_page() const {
  return answer_to("/metrics");
}

double LoadServer::metric_in(std::string_view page, std::string_view name) {
  double sum = 0.0;
  bool found = false;
  while (!page.empty()) {
    const std::size_t end = std::min(page.find('\n'), page.size());
    const std::string_view line = page.substr(0, end);
    page.remove_prefix(std::min(end + 1, page.size()));
    if (!line.starts_with(name) || line.size() == name.size() || line[name.size()] != '{') continue;
    sum += std::strtod(std::string(line.substr(line.rfind(' ') + 1)).c_str(), nullptr);
    found = true;
  }
  return found ? sum : -1.0;
}

std::string LoadServer::leftovers(std::int64_t timeout_us) const {
  const SteadyClock clock;
  const std::int64_t until = clock.now_us() + timeout_us;
  while (true) {
    std::int64_t descriptors = 0;
    const std::string page = answer_to("/metrics", &descriptors);
    std::string left;
    const auto tell = [&left](const std::string& what) {
      left += (left.empty() ? "" : ", ") + what;
    };
    const auto expect = [&](std::string_view name, double found, double wanted) {
      if (found != wanted) tell(fmt::format("{} {} for {}", name, found, wanted));
    };
    for (const char* name : {"koho_pages_used", "koho_engine_requests_live", "koho_requests_live"})
      expect(name, metric_in(page, name), 0);
    // A key learns of a request's end last.
    if (const double live = metric_in(page, "koho_key_requests_live"); live >= 0)
      expect("koho_key_requests_live", live, 0);
    expect("koho_connections_live", metric_in(page, "koho_connections_live"), 1);
    expect("descriptors", static_cast<double>(descriptors), static_cast<double>(descriptors_idle_));
    if (const std::vector<pid_t> now = with_children(process_); now != processes_)
      tell(fmt::format("processes {} for {}", fmt::join(now, " "), fmt::join(processes_, " ")));
    if (reloads_ > 0 && page.find(fmt::format("\"fourth-{}\"", reloads_)) == std::string::npos)
      tell(fmt::format("the keys are not those of reload {}", reloads_));
    if (left.empty() || clock.now_us() >= until) return left;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace koho::bench
