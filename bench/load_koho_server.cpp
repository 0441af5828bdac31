// SPDX-License-Identifier: Apache-2.0
#include "bench/load_koho_server.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "tests/processes/process_list.h"

namespace koho::bench {
namespace {

constexpr std::int64_t kReadyUs = 600'000'000;
constexpr std::int64_t kEndUs = 120'000'000;
constexpr std::int64_t kWorkersEndUs = 60'000'000;
constexpr std::size_t kLogShown = 2000;
constexpr auto kLook = std::chrono::milliseconds(20);

/// As --api-key-file takes them.
std::string keys_json(const std::vector<server::ApiKeySettings>& keys) {
  std::string rows;
  for (const server::ApiKeySettings& key : keys) {
    rows += fmt::format(R"({}{{"key":{})", rows.empty() ? "" : ",\n", log::quoted(key.secret));
    const auto number = [&rows](std::string_view name, std::int64_t value) {
      if (value != 0) rows += fmt::format(R"(,"{}":{})", name, value);
    };
    const auto text = [&rows](std::string_view name, const std::string& value) {
      if (!value.empty()) rows += fmt::format(R"(,"{}":{})", name, log::quoted(value));
    };
    text("name", key.name);
    number("requests_at_once", key.requests_at_once);
    number("requests_per_minute", key.requests_per_minute);
    number("tokens_per_minute", key.tokens_per_minute);
    number("priority", key.priority);
    text("cache_salt", key.cache_salt);
    rows += '}';
  }
  return fmt::format("{{\"keys\": [\n{}\n]}}\n", rows);
}

/// Of memory that processes share, the names that koho, CUDA or NCCL may have given it.
std::vector<std::string> shared_names() {
  std::vector<std::string> names = testing::names_in("/dev/shm");
  std::erase_if(names, [](const std::string& name) {
    return !name.starts_with("koho") && !name.starts_with("cuda") && !name.starts_with("nccl");
  });
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> command_line(const KohoProgram& program,
                                      const LoadServerOptions& options,
                                      const std::filesystem::path& keys) {
  std::vector<std::string> words{program.path, "serve"};
  words.insert(words.end(), program.arguments.begin(), program.arguments.end());
  const auto add = [&words](std::string flag, std::string value) {
    words.push_back(std::move(flag));
    words.push_back(std::move(value));
  };
  add("--served-model-name", "load");
  add("--host", "127.0.0.1");
  add("--port", "0");
  add("--io-threads", "2");
  add("--max-num-seqs", fmt::to_string(options.sequences));
  add("--max-num-queued-reqs", fmt::to_string(options.waiting));
  add("--max-model-len", fmt::to_string(options.context));
  add("--log-format", "json");
  words.emplace_back("--disable-log-requests");
  if (options.keys) add("--api-key-file", keys);
  return words;
}

[[noreturn]] void become(const std::vector<std::string>& words, const std::filesystem::path& log) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int output = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  fmt::print(stderr, "{}: {}\n", words[0], std::strerror(errno));
  _exit(127);
}

/// Of a JSON object, the text that `name` has; without escapes.
std::string text_member(std::string_view json, std::string_view name) {
  const std::string key = fmt::format(R"("{}":")", name);
  const std::size_t at = json.find(key);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = json.substr(at + key.size());
  return std::string(rest.substr(0, rest.find('"')));
}

}  // namespace

Result<std::unique_ptr<LoadServer>> KohoLoadServer::start(const KohoProgram& program,
                                                          const LoadServerOptions& options) {
  std::unique_ptr<KohoLoadServer> server(new KohoLoadServer);
  std::error_code error;
  std::string folder = std::filesystem::temp_directory_path(error) / "koho-load-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr)
    return make_error(ErrorCode::io_error, "no folder {}: {}", folder, std::strerror(errno));
  server->folder_ = folder;
  KOHO_TRY(server->write_keys(0));
  server->shared_before_ = shared_names();
  const std::vector<std::string> words =
      command_line(program, options, server->folder_ / "keys.json");
  server->process_ = fork();
  if (server->process_ == 0) become(words, server->folder_ / "log");
  if (server->process_ < 0)
    return make_error(ErrorCode::io_error, "no process: {}", std::strerror(errno));
  KOHO_TRY(server->wait_until_ready());
  KOHO_TRY(server->look());
  server->device_ = text_member(server->answer_to("/server_info"), "device");
  return std::unique_ptr<LoadServer>(std::move(server));
}

KohoLoadServer::~KohoLoadServer() {
  std::error_code error;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, error);
}

std::string KohoLoadServer::log() const {
  std::ifstream file(folder_ / "log", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Status KohoLoadServer::wait_until_ready() {
  const SteadyClock clock;
  const std::int64_t until = clock.now_us() + kReadyUs;
  constexpr std::string_view kAddress = " on 127.0.0.1:";
  while (clock.now_us() < until) {
    const std::string text = log();
    const std::size_t ready = text.find("\"ready: ");
    if (ready != std::string::npos && text.find('\n', ready) != std::string::npos) {
      const std::size_t port = text.find(kAddress, ready) + kAddress.size();
      port_ = static_cast<std::uint16_t>(std::strtol(text.c_str() + port, nullptr, 10));
      return {};
    }
    if (waitpid(process_, nullptr, WNOHANG) != 0) {
      process_ = -1;
      return make_error(ErrorCode::io_error, "the server did not start: {}", text);
    }
    std::this_thread::sleep_for(kLook);
  }
  return make_error(ErrorCode::io_error, "the server was not ready in time: {}", log());
}

Status KohoLoadServer::write_keys(std::int64_t reloads) const {
  // Renamed, so that no reader sees a part of it.
  const std::filesystem::path next = folder_ / "keys.next";
  std::ofstream file(next);
  file << keys_json(soak_keys(reloads));
  file.close();
  std::error_code error;
  std::filesystem::rename(next, folder_ / "keys.json", error);
  if (file.fail() || error)
    return make_error(ErrorCode::io_error, "cannot write {}", next.string());
  return {};
}

void KohoLoadServer::change_keys(std::int64_t reloads) {
  if (write_keys(reloads).ok()) kill(process_, SIGHUP);  // leftovers() sees whether it was done
}

int KohoLoadServer::wait_for_end(std::int64_t timeout_us) {
  const SteadyClock clock;
  const std::int64_t until = clock.now_us() + timeout_us;
  int status = 0;
  while (waitpid(process_, &status, WNOHANG) == 0) {
    if (clock.now_us() >= until) kill(process_, SIGKILL);
    std::this_thread::sleep_for(kLook);
  }
  process_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::string KohoLoadServer::end() {
  kill(process_, SIGTERM);
  std::string wrong;
  if (const int code = wait_for_end(kEndUs); code != 0)
    wrong += fmt::format("the server ended with {}; ", code);
  const SteadyClock clock;
  const std::int64_t until = clock.now_us() + kWorkersEndUs;
  while (!testing::all_end(processes()) && clock.now_us() < until)
    std::this_thread::sleep_for(kLook);
  for (const pid_t process : processes())
    if (testing::lives(process)) wrong += fmt::format("process {} is left; ", process);
  std::vector<std::string> shared;
  std::ranges::set_difference(shared_names(), shared_before_, std::back_inserter(shared));
  for (const std::string& name : shared) wrong += fmt::format("/dev/shm/{} is left; ", name);
  const std::string text = log();
  if (const std::size_t error = text.find(R"("level":"error")"); error != std::string::npos) {
    const std::size_t line = text.rfind('\n', error) + 1;
    wrong += fmt::format("the log has {}; ", text.substr(line, text.find('\n', line) - line));
  }
  // The sanitizers' reports are no lines of the log.
  if (!wrong.empty() || text.find("Sanitizer") != std::string::npos)
    wrong += "the log ends: " + text.substr(text.size() - std::min(text.size(), kLogShown));
  return wrong;
}

}  // namespace koho::bench
