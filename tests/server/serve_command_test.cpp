// SPDX-License-Identifier: Apache-2.0
// `koho serve` as a process: flags, the way to readiness, the drain, exit codes, its documentation.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "client.h"
#include "notify_socket.h"

namespace koho::server {
namespace {

const std::string kTiny = std::string(KOHO_SOURCE_DIR) + "/models/tiny";

/// A run of `koho serve`, its output in a file. `prepare` runs in the new process before it.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments, void (*prepare)() = nullptr)
      : output_(std::tmpfile()) {
    arguments.insert(arguments.begin(), "serve");
    arguments.insert(arguments.begin(), KOHO_BINARY);
    process_ = fork();
    if (process_ != 0) return;
    if (prepare != nullptr) prepare();
    dup2(fileno(output_), STDOUT_FILENO);
    dup2(fileno(output_), STDERR_FILENO);
    std::vector<char*> raw;
    for (std::string& argument : arguments) raw.push_back(argument.data());
    raw.push_back(nullptr);
    execv(KOHO_BINARY, raw.data());
    _exit(127);
  }
  ~Process() {
    if (process_ > 0) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
    }
    std::fclose(output_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) { kill(process_, number); }
  /// Seconds of processor time so far, all threads together.
  double cpu_s() const {
    clockid_t clock = 0;
    timespec time{};
    if (clock_getcpuclockid(process_, &clock) != 0 || clock_gettime(clock, &time) != 0) return -1.0;
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
  }
  /// Its exit code; minus the signal that ended it.
  int wait() {
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string output() {
    std::string text;
    char buffer[4096];
    long at = 0;
    while (true) {
      const ssize_t bytes = pread(fileno(output_), buffer, sizeof buffer, at);
      if (bytes <= 0) return text;
      text.append(buffer, static_cast<std::size_t>(bytes));
      at += bytes;
    }
  }
  /// The port that "ready: … on 127.0.0.1:PORT" tells; 0 if the process ends before.
  std::uint16_t ready_port() {
    while (true) {
      const std::string text = output();
      const std::size_t ready = text.find("ready: ");
      if (ready != std::string::npos) {
        const std::size_t port = text.find("127.0.0.1:", ready) + 10;
        return static_cast<std::uint16_t>(std::stoi(text.substr(port)));
      }
      if (waitpid(process_, nullptr, WNOHANG) != 0) return 0;
      usleep(2000);
    }
  }

 private:
  std::FILE* output_;
  pid_t process_ = -1;
};

std::vector<std::string> serving(std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--model", kTiny, "--host=127.0.0.1", "--port", "0", "--threads", "1",
                           "--max_model_len", "2k", "--log-format", "json"});
  return more;
}

constexpr const char* kEndless =
    R"({"model":"tiny","prompt":"a","max_tokens":2000,"ignore_eos":true,"stream":true})";

TEST(ServeCommand, ServesAndDrains) {
  Process process(serving({"--shutdown-timeout", "60"}));
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  EXPECT_EQ(get(port, "/readyz").status, 200);
  EXPECT_EQ(text_at(get(port, "/v1/models").json(), "data.0.max_model_len"), "2048");
  Client client(port);
  const std::string body =
      R"({"model":"tiny","prompt":"a","max_tokens":100,"ignore_eos":true,"stream":true})";
  ASSERT_TRUE(client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                          std::to_string(body.size()) + "\r\n\r\n" + body));
  ASSERT_TRUE(client.read_until("data: "));
  process.signal(SIGTERM);
  const std::optional<Reply> reply = client.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->events().back(), "[DONE]");
  EXPECT_EQ(reply->body.find("error"), std::string::npos) << reply->body;
  EXPECT_EQ(process.wait(), 0) << process.output();
  // One JSON line a request, without its text.
  const std::string output = process.output();
  EXPECT_NE(output.find(R"("message":"request","request_id":)"), std::string::npos) << output;
  EXPECT_NE(output.find(R"("completion_tokens":100)"), std::string::npos) << output;
}

/// The line of the log about the request with that name, once there is one.
std::string line_of(Process& process, const std::string& name) {
  for (int i = 0; i < 30'000; ++i) {
    std::istringstream lines(process.output());
    for (std::string line; std::getline(lines, line);)
      if (line.find(R"("request_id":")" + name + '"') != std::string::npos) return line;
    usleep(2000);
  }
  return {};
}

TEST(ServeCommand, ItsLogTellsHowRequestsEnded) {
  Process process(serving({"--shutdown-timeout", "0"}));
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  const std::string endless =
      R"({"model":"tiny","prompt":"a","max_tokens":2000,"ignore_eos":true,"stream":true,"user":"u7",)";
  const auto send = [&](Client& client, const std::string& name) {
    const std::string body = endless + R"("request_id":")" + name + "\"}";
    return client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                       std::to_string(body.size()) + "\r\n\r\n" + body) &&
           client.read_until("data: ", 2);
  };
  const auto expect = [&](const std::string& name, std::initializer_list<const char*> parts) {
    const std::string line = line_of(process, name);
    for (const char* part : parts)
      EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
    return line;
  };
  const auto expect_broken = [&](const std::string& name, const char* finish) {
    const std::string line = expect(
        name, {finish, R"("status":200)", R"("user":"u7")", R"("prompt_tokens":1,)", "\"tps\":"});
    EXPECT_EQ(line.find(R"("completion_tokens":0)"), std::string::npos) << line;
    EXPECT_EQ(line.find(R"("ttft_ms":0.0)"), std::string::npos) << line;
    EXPECT_EQ(line.find(R"("ttft_ms":null)"), std::string::npos) << line;
  };
  {
    Client leaves(port);
    ASSERT_TRUE(send(leaves, "left"));
  }
  expect_broken("left", R"("finish":"abort")");
  Client withdrawn(port);
  ASSERT_TRUE(send(withdrawn, "withdrawn"));
  EXPECT_EQ(post(port, "/abort_request", R"({"request_id":"withdrawn"})").status, 200);
  expect_broken("withdrawn", R"("finish":"cancelled")");
  EXPECT_EQ(post(port, "/v1/completions",
                 R"({"model":"tiny","prompt":"a","request_id":"wrong","temperature":9})")
                .status,
            400);
  expect("wrong", {R"("status":400)", R"("param":"temperature")", R"("code":null)",
                   R"("prompt_tokens":null,)"});
  EXPECT_EQ(
      post(port, "/v1/completions", R"({"model":"none","prompt":"a","request_id":"lost"})").status,
      404);
  expect("lost", {R"("status":404)", R"("param":"model")", R"("code":"model_not_found")"});
  // Refused behind the encoding: the prompt's length is known.
  EXPECT_EQ(post(port, "/v1/completions",
                 R"({"model":"tiny","prompt":[5,6,7],"request_id":"long","max_tokens":2048})")
                .status,
            400);
  expect("long", {R"("code":"context_length_exceeded")", R"("prompt_tokens":3,)"});
  EXPECT_EQ(post(port, "/v1/completions",
                 R"({"model":"tiny","prompt":[5,6,7,8],"request_id":"grammar",)"
                 R"("structured_outputs":{"regex":"("}})")
                .status,
            400);
  expect("grammar", {R"("code":"invalid_grammar")", R"("prompt_tokens":4,)"});
  // Refused at the first of two prompts: the second was not encoded.
  EXPECT_EQ(post(port, "/v1/completions",
                 R"({"model":"tiny","prompt":[[5],[6,7]],"request_id":"two","max_tokens":2048})")
                .status,
            400);
  expect("two", {R"("prompt_tokens":null,)"});
  // One token has no pace.
  EXPECT_EQ(post(port, "/v1/completions",
                 R"({"model":"tiny","prompt":"a","request_id":"one","max_tokens":1})")
                .status,
            200);
  expect("one", {R"("completion_tokens":1,)", R"("tps":null)"});
  Client drained(port);
  ASSERT_TRUE(send(drained, "drained"));
  process.signal(SIGTERM);
  const std::optional<Reply> reply = drained.read_reply();
  ASSERT_TRUE(reply);
  process.wait();
  expect_broken("drained", R"("finish":"server_shutting_down")");
}

TEST(ServeCommand, SignalsThatAskForNoEnd) {
  Process process(serving());
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  const std::string body = R"({"model":"tiny","prompt":"a","max_tokens":4,"ignore_eos":true})";
  EXPECT_EQ(post(port, "/v1/completions", body).status, 200);
  for (const auto& [number, told] : {std::pair{SIGHUP, "SIGHUP: there is no --api-key-file"},
                                     std::pair{SIGUSR1, "pages free"}}) {
    process.signal(number);
    while (process.output().find(told) == std::string::npos) usleep(1000);
  }
  EXPECT_EQ(post(port, "/v1/completions", body).status, 200);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 0) << process.output();
  // The flight recorder tells of the first request's steps.
  EXPECT_NE(process.output().find("step"), std::string::npos) << process.output();
}

TEST(ServeCommand, ReadsItsKeysAgainAtSighup) {
  const std::string path = testing::TempDir() + "koho_serve_keys_" + std::to_string(getpid());
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  write("# of last year\nold-key\nboth\n");
  Process process(serving({"--api-key-file", path, "--api-key", "given"}));
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  const auto status = [port](const std::string& key) {
    Client client(port);
    if (!client.send("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + key +
                     "\r\n\r\n"))
      return 0;
    const std::optional<Reply> reply = client.read_reply();
    return reply ? reply->status : 0;
  };
  const auto reload = [&](const std::string& told) {
    process.signal(SIGHUP);
    while (process.output().find(told) == std::string::npos) usleep(1000);
  };
  EXPECT_EQ(status("old-key"), 200);
  EXPECT_EQ(status("new-key"), 401);
  write("both\n \t new-key \r\n");
  EXPECT_EQ(status("new-key"), 401);  // not before it is asked for
  reload("SIGHUP: 3 API keys from now on");
  EXPECT_EQ(status("new-key"), 200);
  EXPECT_EQ(status("both"), 200);
  EXPECT_EQ(status("given"), 200);
  EXPECT_EQ(status("old-key"), 401);
  // A file that says nothing opens no door, and closes none.
  write("# all gone\n");
  reload("SIGHUP: the API keys stay as they were: " + path + " holds no key");
  unlink(path.c_str());
  reload("SIGHUP: the API keys stay as they were: cannot open " + path);
  EXPECT_EQ(status("new-key"), 200);
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(process.output().find("new-key"), std::string::npos);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 0) << process.output();
  // Nor is it served without the key that was meant to be asked for.
  write("\n");
  Process without(serving({"--api-key-file", path}));
  EXPECT_EQ(without.wait(), 2);
  EXPECT_NE(without.output().find("holds no key"), std::string::npos) << without.output();
  unlink(path.c_str());
}

TEST(ServeCommand, TellsSystemdHowItIs) {
  static NotifySocket* socket = nullptr;
  NotifySocket mine;
  socket = &mine;
  Process process(serving(), [] {
    setenv("NOTIFY_SOCKET", socket->path().c_str(), 1);
    setenv("WATCHDOG_USEC", "400000", 1);
  });
  ASSERT_NE(process.ready_port(), 0) << process.output();
  std::vector<std::string> told;
  const auto count = [&told](const std::string& one) {
    return std::count(told.begin(), told.end(), one);
  };
  const auto wait_for = [&](const std::string& one, int times) {
    while (count(one) < times) {
      for (std::string& more : mine.take()) told.push_back(std::move(more));
      usleep(1000);
    }
  };
  wait_for("READY=1\nSTATUS=serving", 1);
  EXPECT_EQ(told.front(), "STATUS=loading");
  wait_for("WATCHDOG=1", 5);
  process.signal(SIGTERM);
  wait_for("STOPPING=1", 1);
  EXPECT_EQ(process.wait(), 0) << process.output();
  // The watchdog of another process is not fed.
  Process child(serving(), [] {
    setenv("NOTIFY_SOCKET", socket->path().c_str(), 1);
    setenv("WATCHDOG_USEC", "8000", 1);
    setenv("WATCHDOG_PID", "1", 1);
  });
  ASSERT_NE(child.ready_port(), 0) << child.output();
  usleep(100'000);
  told = mine.take();
  EXPECT_EQ(count("WATCHDOG=1"), 0);
  EXPECT_EQ(count("READY=1\nSTATUS=serving"), 1);
}

TEST(ServeCommand, ASecondSignalEndsItAtOnce) {
  Process process(serving({"--shutdown-timeout", "3600", "--max-num-seqs", "1"}));
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  Client client(port);
  const std::string body = kEndless;
  ASSERT_TRUE(client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                          std::to_string(body.size()) + "\r\n\r\n" + body));
  ASSERT_TRUE(client.read_until("data: "));
  process.signal(SIGTERM);
  while (get(port, "/readyz").status != 503) usleep(1000);
  process.signal(SIGTERM);
  const int code = process.wait();
  // All 2000 tokens may have come first.
  EXPECT_TRUE(code == 128 + SIGTERM || code == 0) << code << process.output();
}

TEST(ServeCommand, SaysWhatIsWrong) {
  const auto run = [](std::vector<std::string> arguments, const std::string& expected) {
    Process process(std::move(arguments));
    const int code = process.wait();
    EXPECT_NE(process.output().find(expected), std::string::npos) << process.output();
    return code;
  };
  EXPECT_EQ(run({"--model", kTiny, "--max-model-length", "7"}, "did you mean --max-model-len?"), 2);
  EXPECT_EQ(run({"--model", kTiny, "--port", "70000"}, "--port: expected an integer"), 2);
  EXPECT_EQ(run({}, "--model DIR is needed"), 2);
  EXPECT_EQ(run({"--model"}, "--model needs a value"), 2);
  EXPECT_EQ(run({"--model", "/nowhere/model", "--port", "0"}, "/nowhere/model"), 3);
  EXPECT_EQ(run({"--model", kTiny, "--host", "not an address"}, "not an address"), 2);
  EXPECT_EQ(run({kTiny, "--api-key", "--check"}, "--api-key needs a value"), 2);
  EXPECT_EQ(run({kTiny, "--api-key", "--max_model_len=7"}, "--api-key=--max_model_len=7"), 2);
  EXPECT_EQ(run({kTiny, "--served-model-name=", "--check"}, "expected a name"), 2);
  EXPECT_EQ(run({kTiny, "--api-key=--check", "--check"}, "are good"), 0);
  EXPECT_EQ(run({"--help"}, "KOHO_SOME_NAME"), 0);
  EXPECT_EQ(run({"--check", kTiny}, "are good"), 0);
}

TEST(ServeCommand, ACheckRefusesWhatTheStartRefuses) {
  Process version(std::vector<std::string>{"--version"});
  version.wait();
  std::vector<std::vector<std::string>> wrong{{"--max-model-len", "9999999"},
                                              {"--tensor-parallel-size", "3"},
                                              {"--chat-template", "foo"},
                                              {"--host", "999.1.1.1"},
                                              {"--host", "192.0.2.1"},  // of no machine
                                              {"--tls-cert", "/nowhere/cert.pem"},
                                              {"--kv-cache-memory", "1K"},
                                              {"--gpu-memory-utilization", "0.000001"},
                                              {"--load-format=dummy", "--max-model-len=9999999"},
                                              {"--model", "/nowhere/model"}};
  if (version.output().find("without CUDA") != std::string::npos) {
    wrong.push_back({"--device", "cuda"});
    wrong.push_back({"--device", "cuda", "--kv-pages", "64"});
  } else {
    wrong.push_back({"--device", "cuda", "--tensor-parallel-size", "64"});  // GPUs of no machine
  }
  const auto run = [](const std::vector<std::string>& flags, bool check) {
    std::vector<std::string> arguments{"--model",   kTiny,       "--port",       "0",
                                       "--threads", "1",         "--device",     "cpu",
                                       "--host",    "127.0.0.1", "--log-format", "json"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    if (check) arguments.push_back("--check");
    Process process(std::move(arguments));
    const int code = process.wait();
    const std::string output = process.output();
    const std::size_t error = output.rfind("koho: error: ");
    EXPECT_NE(error, std::string::npos) << output;
    return std::to_string(code) + ' ' + output.substr(std::min(error, output.size()));
  };
  for (const std::vector<std::string>& flags : wrong) {
    const std::string checked = run(flags, true);
    EXPECT_NE(checked[0], '0') << checked;
    EXPECT_EQ(checked, run(flags, false));
    if (checked.find("does not exist") != std::string::npos) {
      EXPECT_EQ(checked[0], '4') << checked;
    }
  }
  // What runs may be checked: its port is not asked for.
  Process server(serving());
  const std::uint16_t port = server.ready_port();
  ASSERT_NE(port, 0) << server.output();
  std::vector<std::string> flags = serving({"--check"});
  flags.push_back("--port=" + std::to_string(port));
  Process check(std::move(flags));
  EXPECT_EQ(check.wait(), 0) << check.output();
  EXPECT_NE(check.output().find("a request has at most 2048 tokens, as asked"), std::string::npos)
      << check.output();
}

TEST(ServeCommand, RefusesBadTlsFiles) {
  for (const auto& [arguments, told] :
       {std::pair{std::vector<std::string>{"--tls-cert", "/nowhere/cert.pem"}, "/nowhere/cert.pem"},
        std::pair{std::vector<std::string>{"--tls-cert", kTiny + "/config.json"}, "config.json"},
        std::pair{std::vector<std::string>{"--tls-key", "/nowhere/key.pem"}, "needs --tls-cert"}}) {
    Process process(serving(arguments));
    EXPECT_EQ(process.wait(), 2) << process.output();
    EXPECT_NE(process.output().find(told), std::string::npos) << process.output();
  }
}

TEST(ServeCommand, TakesTheFlagsOfOtherEnginesGuides) {
  const auto printed = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--model", kTiny, "--print-config"});
    Process process(std::move(flags));
    const int code = process.wait();
    return std::to_string(code) + '\n' + process.output();
  };
  const auto expect = [&](const std::vector<std::string>& flags,
                          std::initializer_list<const char*> parts) {
    const std::string told = printed(flags);
    for (const char* part : parts) EXPECT_NE(told.find(part), std::string::npos) << part << told;
  };
  expect({"--random-seed", "7", "--enforce-eager", "--disable-log-stats", "--jinja"},
         {"0\n", "seed: 7\n", "--enforce-eager has no effect: ",
          "--disable-log-stats has no effect: ", "--jinja has no effect: "});
  expect({"--gpu-memory-utilization", "0.9"}, {"0\n", "gpu-memory-utilization: 0.9\n"});
  expect({"--mem-fraction-static=0.85"}, {"gpu-memory-utilization: 0.85\n"});
  expect({"--kv-cache-memory", "400GiB"}, {"kv-cache-memory: 429496729600\n"});
  expect({"--kv_cache_memory_bytes=3m"}, {"kv-cache-memory: 3145728\n"});
  expect({"--load-format", "dummy"}, {"0\n", "load-format: dummy\n"});
  expect({"-tp", "2", "--ep-size", "1"}, {"0\n", "experts: sliced\n"});
  expect({"-tp", "2", "--experts=sliced", "--enable-expert-parallel"}, {"experts: whole\n"});
  expect({"--tp=2", "--dp=2", "--enable-dp-attention"}, {"0\n", "attention: dp\n"});
  expect({"--max_seq_len", "4k", "--max_batch_size", "9"},
         {"max-model-len: 4096\n", "max-num-seqs: 9\n"});
  const auto expect_rejected = [&](const std::vector<std::string>& flags, const char* told) {
    const std::string refused = printed(flags);
    EXPECT_TRUE(refused.starts_with("2\n")) << refused;
    EXPECT_NE(refused.find(told), std::string::npos) << told << refused;
  };
  expect_rejected({"--gpu-memory-utilization=1.5"}, "above 0 and at most 1");
  expect_rejected({"--gpu-memory-utilization=nan"}, "above 0 and at most 1");
  expect_rejected({"--kv-cache-memory=4GB"}, "64GiB");
  expect_rejected({"--kv-cache-memory=4iB"}, "64GiB");
  expect_rejected({"--kv-cache-memory=99999999T"}, "64GiB");
  expect_rejected({"--kv-cache-memory=1G", "--kv-pages=9"}, "one says the cache's size");
  expect_rejected({"--ep-size=3", "--tp=2"}, "among all 2 ranks");
  expect_rejected({"--data-parallel-size=2"}, "several servers");
  expect_rejected({"--max-num-queued-tokens=9"}, "--max-num-queued-reqs");
  expect_rejected({"--speculative-config.method=mtp"}, "no speculative decoding");
  expect_rejected({"--load-format=gguf"}, "safetensors");
  const std::string path = testing::TempDir() + "koho_serve_refused.yaml";
  std::ofstream(path) << "speculative_algorithm: EAGLE\n";
  expect_rejected({"--config", path}, "no speculative decoding");
  unlink(path.c_str());
}

TEST(ServeCommand, SaysWhatItWasBuiltFrom) {
  Process version(std::vector<std::string>{"--version"});
  EXPECT_EQ(version.wait(), 0);
  const std::string line = version.output();
  // "koho 0.1.0 (commit 0123456789ab, without CUDA)\n"
  ASSERT_TRUE(line.starts_with("koho ")) << line;
  const std::size_t commit_at = line.find(" (commit ") + 9;
  const std::string number = line.substr(5, commit_at - 14);
  const std::string commit = line.substr(commit_at, line.find(", ", commit_at) - commit_at);
  const bool cuda = line.find(", CUDA ") != std::string::npos;
  EXPECT_NE(cuda, line.ends_with(", without CUDA)\n")) << line;
  if (std::filesystem::exists(KOHO_SOURCE_DIR "/.git")) {
    const std::string digits = commit.substr(0, commit.find('-'));
    EXPECT_EQ(digits.size(), 12U) << line;
    EXPECT_EQ(digits.find_first_not_of("0123456789abcdef"), std::string::npos) << line;
  }
  Process process(serving());
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  for (const char* path : {"/version", "/server_info"}) {
    const Reply reply = get(port, path);
    EXPECT_EQ(text_at(reply.json(), "version"), number) << reply.body;
    EXPECT_EQ(text_at(reply.json(), "commit"), commit) << reply.body;
    EXPECT_NE(cuda,
              reply.body.find(R"("cuda":null,"cuda_architectures":null)") != std::string::npos)
        << reply.body;
  }
  const Reply info = get(port, "/server_info");
  EXPECT_EQ(text_at(info.json(), "chat_template"), "glm-4.7");
  EXPECT_EQ(text_at(info.json(), "chat_template_xxh3_128"), "36c6cca0b2be3bd19908ff553a4cc3df");
}

TEST(ServeCommand, TheCacheIsAsLargeAsItsFlagSays) {
  const auto told = [](std::vector<std::string> flags, std::initializer_list<const char*> parts) {
    flags.insert(flags.end(), {"--model", kTiny, "--host=127.0.0.1", "--port=0", "--threads=1",
                               "--log-format=json"});
    Process process(std::move(flags));
    const std::uint16_t port = process.ready_port();
    ASSERT_NE(port, 0) << process.output();
    const std::string info = get(port, "/server_info").body;
    for (const char* part : parts)
      EXPECT_NE((info + process.output()).find(part), std::string::npos) << part << info;
  };
  // A page of models/tiny takes 1,310,720 bytes.
  told({"--kv-cache-memory=20M", "--max-num-seqs=3"},
       {R"("num_gpu_blocks":16,)", R"("max_model_len":1024,)",
        "a request has at most 1024 tokens, all that the cache holds; the cache has 16 pages"});
  told({"--max-num-seqs=2"}, {R"("max_model_len":131072,)", "131072 tokens, all that the model"});
  told({"--max-num-seqs=20"}, {R"("max_model_len":131072,)", R"("num_gpu_blocks":2560,)"});
}

TEST(ServeCommand, ADirectoryWithoutWeightsCanBeServedWithRandomOnes) {
  const std::filesystem::path directory = testing::TempDir() + "koho_serve_dummy";
  std::filesystem::create_directory(directory);
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                           "tokenizer_config.json", "chat_template.jinja"})
    std::filesystem::copy_file(kTiny + "/" + name, directory / name,
                               std::filesystem::copy_options::overwrite_existing);
  const auto flags = [&](const char* format) {
    return std::vector<std::string>{"--model",  directory.string(),  "--host=127.0.0.1",
                                    "--port=0", "--threads=1",       "--load-format",
                                    format,     "--max-model-len=1k"};
  };
  {
    Process process(flags("auto"));
    EXPECT_EQ(process.wait(), 3) << process.output();
  }
  const auto text = [&] {
    Process process(flags("dummy"));
    const std::uint16_t port = process.ready_port();
    EXPECT_NE(port, 0) << process.output();
    EXPECT_NE(process.output().find("the weights are random"), std::string::npos);
    return text_at(post(port, "/v1/completions",
                        R"({"model":"koho_serve_dummy","prompt":"Once","temperature":0,)"
                        R"("max_tokens":8,"ignore_eos":true})")
                       .json(),
                   "choices.0.text");
  };
  const std::string first = text();
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(text(), first);
  std::vector<std::string> checks = flags("dummy");
  checks.push_back("--check");
  Process check(checks);
  EXPECT_EQ(check.wait(), 0) << check.output();
  std::filesystem::remove_all(directory);
}

TEST(ServeCommand, TheSeedIsOfRequestsThatNameNone) {
  Process process(serving({"--seed", "7"}));
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  const auto text = [port](const std::string& more) {
    return text_at(
        post(port, "/v1/completions",
             R"({"model":"tiny","prompt":"Once","temperature":1.5,"max_tokens":24)" + more + "}")
            .json(),
        "choices.0.text");
  };
  const std::string first = text("");
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(text(""), first);
  EXPECT_EQ(text(R"(,"seed":7)"), first);
  EXPECT_NE(text(R"(,"seed":8)"), first);
}

TEST(ServeCommand, ReadsAConfigFileAndTheEnvironment) {
  const std::string path = testing::TempDir() + "koho_serve_config.yaml";
  std::ofstream(path) << "# a comment\nmodel: " << kTiny
                      << "\nmax_num_seqs: 7\nserved-model-name:\n  - one\n  - two\nport: 1\n";
  setenv("KOHO_MAX_NUM_SEQS", "5", 1);
  setenv("KOHO_OVERLOAD_STATUS", "503", 1);
  Process process(std::vector<std::string>{"--config", path, "--port", "2", "--print-config"});
  EXPECT_EQ(process.wait(), 0);
  unsetenv("KOHO_MAX_NUM_SEQS");
  unsetenv("KOHO_OVERLOAD_STATUS");
  const std::string output = process.output();
  EXPECT_NE(output.find("max-num-seqs: 7\n"), std::string::npos) << output;
  EXPECT_NE(output.find("overload-status: 503\n"), std::string::npos) << output;
  EXPECT_NE(output.find("port: 2\n"), std::string::npos) << output;
  EXPECT_NE(output.find("  - one\n  - two\n"), std::string::npos) << output;
  // What is printed can be read again.
  std::ofstream(path) << output;
  Process again(std::vector<std::string>{"--config", path, "--print-config"});
  EXPECT_EQ(again.wait(), 0);
  EXPECT_EQ(again.output(), output);
  unlink(path.c_str());
}

TEST(ServeCommand, WaitsForDescriptorsWithoutSpinning) {
  Process process(serving(), [] {
    const rlimit few{.rlim_cur = 64, .rlim_max = 64};
    setrlimit(RLIMIT_NOFILE, &few);
  });
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  {
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 100; ++i) clients.push_back(std::make_unique<Client>(port));
    while (process.output().find("no file descriptors are left") == std::string::npos) usleep(1000);
    const double before = process.cpu_s();
    usleep(500'000);
    const double after = process.cpu_s();
    EXPECT_GE(before, 0.0);
    EXPECT_LT(after - before, 0.25);  // a loop without a pause takes all of the half second
    // Those that are connected are served.
    EXPECT_EQ(clients.front()->get("/livez")->status, 200);
  }
  EXPECT_EQ(get(port, "/livez").status, 200);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 0) << process.output();
}

#ifdef KOHO_WALL_CLOCK_JUMPS
TEST(ServeCommand, AWallClockThatJumpsMovesNoTimer) {
  Process process(serving({"--sse-keep-alive-interval", "1"}),
                  [] { setenv("LD_PRELOAD", KOHO_WALL_CLOCK_JUMPS, 1); });
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  // It does jump: "created" is a day off, once to either side.
  const std::string body =
      R"({"model":"tiny","prompt":"a","max_tokens":8,"ignore_eos":true,"timeout":60})";
  const auto created = [&] {
    const Reply reply = post(port, "/v1/completions", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return std::abs(std::stoll(text_at(reply.json(), "created")) -
                    static_cast<long long>(std::time(nullptr)));
  };
  for (int i = 0; i < 8; ++i) {
    const long long off = created();
    EXPECT_GT(off, 80'000);
    EXPECT_LT(off, 90'000);
  }
  // An idle connection stays, a stream runs to its end, a deadline comes when it is due.
  Client idle(port);
  EXPECT_EQ(idle.get("/livez")->status, 200);
  Client streaming(port);
  const std::optional<Reply> stream = streaming.post(
      "/v1/completions",
      R"({"model":"tiny","prompt":"a","max_tokens":500,"ignore_eos":true,"stream":true,"timeout":60})");
  ASSERT_TRUE(stream);
  EXPECT_EQ(stream->events().back(), "[DONE]");
  EXPECT_EQ(stream->body.find("error"), std::string::npos) << stream->body;
  const Reply late =
      post(port, "/v1/completions",
           R"({"model":"tiny","prompt":"a","max_tokens":2000,"ignore_eos":true,"timeout":0.01})");
  EXPECT_EQ(late.status, 503) << late.body;
  EXPECT_EQ(idle.get("/livez")->status, 200);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 0) << process.output();
}
#endif

TEST(ServeCommand, ItsDocumentationHasEveryFieldAndFlag) {
  Process process(std::vector<std::string>{"--help-markdown"});
  ASSERT_EQ(process.wait(), 0);
  std::ifstream file(std::string(KOHO_SOURCE_DIR) + "/docs/server.md");
  std::stringstream documentation;
  documentation << file.rdbuf();
  std::istringstream rows(process.output());
  std::string row;
  int count = 0;
  while (std::getline(rows, row)) {
    if (row.empty()) continue;
    EXPECT_NE(documentation.str().find(row + "\n"), std::string::npos) << row;
    ++count;
  }
  EXPECT_GT(count, 90);
}

}  // namespace
}  // namespace koho::server
