// SPDX-License-Identifier: Apache-2.0
// `koho serve` as a process: readiness, signals, keys, the service manager, the drain, exit codes.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "client.h"
#include "notify_socket.h"
#include "serve_process.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_directory.h"
#include "tokenizer/utf8.h"

namespace koho::server {
namespace {

using koho::testing::comes_true;

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
  ASSERT_TRUE(
      client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                  "application/json\r\nContent-Length: " +
                  std::to_string(body.size()) + "\r\n\r\n" + body));
  ASSERT_TRUE(client.read_until("data: "));
  process.signal(SIGTERM);
  const std::optional<Reply> reply = client.read_reply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->events().back(), "[DONE]");
  EXPECT_EQ(reply->body.find("error"), std::string::npos) << reply->body;
  EXPECT_EQ(process.wait(), 0) << process.output();
  // The log has one JSON line per request, without its text.
  const std::string output = process.output();
  EXPECT_NE(output.find(R"("message":"request","request_id":)"), std::string::npos) << output;
  EXPECT_NE(output.find(R"("completion_tokens":100)"), std::string::npos) << output;
}

TEST(ServeCommand, TellsItsAddressesAndALineToTry) {
  std::vector<std::string> flags = serving();
  flags.insert(flags.end(), {"--log-format", "text"});  // over serving()'s
  Process process(flags);
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  const std::string url = "http://127.0.0.1:" + std::to_string(port);
  EXPECT_TRUE(process.says("\n  try "));
  const std::string output = process.output();
  EXPECT_NE(output.find("  API   " + url + "/v1"), std::string::npos) << output;
  EXPECT_NE(output.find("  page  " + url + "/ui\n"), std::string::npos) << output;
  // The line to try works as it stands.
  const std::size_t curl = output.find("curl ");
  ASSERT_NE(curl, std::string::npos) << output;
  const std::string line = output.substr(curl, output.find('\n', curl) - curl);
  EXPECT_NE(line.find(url + "/v1/chat/completions "), std::string::npos) << line;
  const std::size_t body = line.find("-d '") + 4;
  const Reply reply =
      post(port, "/v1/chat/completions", line.substr(body, line.rfind('\'') - body));
  EXPECT_EQ(reply.status, 200) << reply.body;
}

TEST(ServeCommand, AnswersToAllOfItsNamesWithTheFirst) {
  Process process(serving({"--served-model-name", "alpha", "beta"}));
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  const chat::Json models = get(port, "/v1/models").json();
  EXPECT_EQ(text_at(models, "data.0.id") + text_at(models, "data.1.id"), "alphabeta");
  const auto ask = [port](const std::string& path, const std::string& said, const char* name) {
    return post(port, path, "{" + said + R"(,"model":")" + name + "\"}");
  };
  const std::string messages = R"("max_tokens":1,"messages":[{"role":"user","content":"a"}])";
  for (const auto& [path, said] :
       {std::pair<std::string, std::string>("/v1/chat/completions", messages),
        {"/v1/messages", messages},
        {"/v1/responses", R"("max_output_tokens":1,"input":"a")"},
        {"/v1/completions", R"("max_tokens":1,"prompt":"a")"}}) {
    for (const char* name : {"alpha", "beta"})
      EXPECT_EQ(text_at(ask(path, said, name).json(), "model"), "alpha") << path << name;
    EXPECT_EQ(ask(path, said, "gamma").status, 404) << path;
  }
  EXPECT_NE(
      ask("/v1/completions", R"("prompt":"a")", "gamma").body.find(R"(serves \"alpha\", \"beta\")"),
      std::string::npos);
  EXPECT_NE(post(port, "/v1/completions", R"({"prompt":"a","max_tokens":-5})")
                .body.find("or -1 for as many as fit, found -5"),
            std::string::npos);
}

TEST(ServeCommand, LogsItsThroughputWhileItIsBusy) {
  Process process(serving({"--log-stats-interval", "1"}));
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  // The addresses come a line after the one that ready_port() waits for.
  EXPECT_TRUE(process.says(R"("page":"http://127.0.0.1:)")) << process.output();
  Client client(port);
  const std::string body = R"({"prompt":"a","max_tokens":2000,"ignore_eos":true})";
  for (int i = 0; i < 5; ++i)  // one after another
    ASSERT_TRUE(
        client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                    "application/json\r\nContent-Length: " +
                    std::to_string(body.size()) + "\r\n\r\n" + body));
  // The first line may come before the first token.
  std::string line;
  EXPECT_TRUE(comes_true([&] {
    const std::string output = process.output();
    for (std::size_t at = 0;
         (at = output.find("running 1, waiting 0; prefill ", at)) != std::string::npos;
         at += line.size()) {
      line = output.substr(at, output.find('"', at) - at);
      if (line.find("decode 0 tok/s") == std::string::npos) return true;
    }
    return false;
  })) << process.output();
  for (const char* part : {" tok/s, decode ", "cache hits ", "KV cache "})
    EXPECT_NE(line.find(part), std::string::npos) << line;
}

TEST(ServeCommand, LogsHowRequestsEnded) {
  Process process(serving({"--shutdown-timeout", "0"}));
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  const std::string endless =
      R"({"model":"tiny","prompt":"a","max_tokens":2000,"ignore_eos":true,"stream":true,"user":"u7",)";
  const auto send = [&](Client& client, const std::string& name) {
    const std::string body = endless + R"("request_id":")" + name + "\"}";
    return client.send(
               "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
               "application/json\r\nContent-Length: " +
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
  // Refused after tokenisation: the log has the prompt's length.
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
  // Refused at the first of two prompts: the total length is unknown.
  EXPECT_EQ(post(port, "/v1/completions",
                 R"({"model":"tiny","prompt":[[5],[6,7]],"request_id":"two","max_tokens":2048})")
                .status,
            400);
  expect("two", {R"("prompt_tokens":null,)"});
  // One token has no rate.
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

TEST(ServeCommand, LogsWhatClientsNameAsWholeCharactersWithoutControls) {
  Process process(serving());
  std::string body =
      R"({"prompt":"a","max_tokens":1,"request_id":"odd","user":"u\u009b2J\u007f\u2028\u202e","u)";
  while (body.size() < 250) body += "\u00e9";  // the log has the field's beginning
  EXPECT_EQ(post(process.ready_port(), "/v1/completions", body + R"(":1})").status, 200);
  EXPECT_NE(line_of(process, "odd").find(R"("user":"u\u009b2J\u007f\u2028\u202e")"),
            std::string::npos);
  const std::string output = process.output();
  EXPECT_EQ(utf8_valid_bytes(output), output.size());
}

TEST(ServeCommand, KeepsServingAtSighupAndSigusr1) {
  Process process(serving());
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  const std::string body = R"({"model":"tiny","prompt":"a","max_tokens":4,"ignore_eos":true})";
  EXPECT_EQ(post(port, "/v1/completions", body).status, 200);
  for (const auto& [number, told] : {std::pair{SIGHUP, "SIGHUP: no --api-key-file to read again"},
                                     std::pair{SIGUSR1, "pages free"}}) {
    process.signal(number);
    EXPECT_TRUE(process.says(told)) << process.output();
  }
  EXPECT_EQ(post(port, "/v1/completions", body).status, 200);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 0) << process.output();
  // SIGUSR1 logged the steps of the first request.
  EXPECT_NE(process.output().find("step"), std::string::npos) << process.output();
}

TEST(ServeCommand, ReadsItsKeysAgainAtSighup) {
  const std::string path = ::testing::TempDir() + "koho_serve_keys_" + std::to_string(getpid());
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
    EXPECT_TRUE(process.says(told)) << process.output();
  };
  EXPECT_EQ(status("old-key"), 200);
  EXPECT_EQ(status("new-key"), 401);
  write("both\n \t new-key \r\n");
  EXPECT_EQ(status("new-key"), 401);  // not before SIGHUP
  reload("SIGHUP: 3 API keys are in use now");
  EXPECT_EQ(status("new-key"), 200);
  EXPECT_EQ(status("both"), 200);
  EXPECT_EQ(status("given"), 200);
  EXPECT_EQ(status("old-key"), 401);
  // A file without keys changes nothing.
  write("# all gone\n");
  reload("SIGHUP: the API keys are unchanged: " + path + " has no API key");
  unlink(path.c_str());
  reload("SIGHUP: the API keys are unchanged: cannot open " + path);
  EXPECT_EQ(status("new-key"), 200);
  EXPECT_EQ(status(""), 401);
  // The same file with limits.
  write(R"({"keys": [{"key": "new-key", "tokens_per_minute": 7}, {"key": "both", "limit": 1}]})");
  reload("SIGHUP: the API keys are unchanged: " + path + ": keys[1].limit is unknown");
  write(R"({"keys": [{"key": "new-key", "tokens_per_minute": 7}]})");
  reload("SIGHUP: 2 API keys are in use now");
  EXPECT_EQ(status("both"), 401);
  const Reply limited = post(port, "/v1/completions", R"({"model":"tiny","prompt":[5,6]})",
                             "Authorization: Bearer new-key\r\n");
  EXPECT_EQ(limited.status, 200);
  EXPECT_EQ(limited.fields.at("x-ratelimit-limit-tokens"), "7");
  EXPECT_EQ(process.output().find("new-key"), std::string::npos);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 0) << process.output();
  // The server does not start without a key if the key file has none.
  write("\n");
  Process without(serving({"--api-key-file", path}));
  EXPECT_EQ(without.wait(), 2);
  EXPECT_NE(without.output().find("has no API key"), std::string::npos) << without.output();
  unlink(path.c_str());
}

TEST(ServeCommand, TellsSystemdItsState) {
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
    EXPECT_TRUE(comes_true([&] {
      for (std::string& more : mine.take()) told.push_back(std::move(more));
      return count(one) >= times;
    })) << one;
  };
  wait_for("READY=1\nSTATUS=serving", 1);
  EXPECT_EQ(told.front(), "STATUS=loading");
  wait_for("WATCHDOG=1", 5);
  process.signal(SIGTERM);
  wait_for("STOPPING=1", 1);
  EXPECT_EQ(process.wait(), 0) << process.output();
  // WATCHDOG_PID names another process: no messages.
  Process child(serving(), [] {
    setenv("NOTIFY_SOCKET", socket->path().c_str(), 1);
    setenv("WATCHDOG_USEC", "8000", 1);
    setenv("WATCHDOG_PID", "1", 1);
  });
  ASSERT_NE(child.ready_port(), 0) << child.output();
  told.clear();
  wait_for("READY=1\nSTATUS=serving", 1);
  usleep(100'000);
  for (std::string& more : mine.take()) told.push_back(std::move(more));
  EXPECT_EQ(count("WATCHDOG=1"), 0);
  EXPECT_EQ(count("READY=1\nSTATUS=serving"), 1);
}

TEST(ServeCommand, ASecondSignalEndsItAtOnce) {
  Process process(serving({"--shutdown-timeout", "3600", "--max-num-seqs", "1"}));
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  Client client(port);
  const std::string body = kEndless;
  ASSERT_TRUE(
      client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                  "application/json\r\nContent-Length: " +
                  std::to_string(body.size()) + "\r\n\r\n" + body));
  ASSERT_TRUE(client.read_until("data: "));
  process.signal(SIGTERM);
  // It drains, or has ended: the answer may have been complete before.
  EXPECT_TRUE(comes_true([&] { return get(port, "/readyz").status != 200; }));
  process.signal(SIGTERM);
  const int code = process.wait();
  EXPECT_TRUE(code == 128 + SIGTERM || code == 0) << code << process.output();
}

TEST(ServeCommand, ServesADirectoryWithoutWeightsWithRandomOnes) {
  const koho::testing::TemporaryDirectory own;
  const std::filesystem::path directory = own.path() / "koho_serve_dummy";
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
}

TEST(ServeCommand, ConnectionsLeaveDescriptorsForFilesAndOtherAddresses) {
  const std::filesystem::path directory =
      ::testing::TempDir() + "koho_serve_descriptors_" + std::to_string(getpid());
  Process process(serving({"--files-dir", directory.string()}), [] {
    const rlimit few{.rlim_cur = 64, .rlim_max = 256};
    setrlimit(RLIMIT_NOFILE, &few);
  });
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  EXPECT_TRUE(process.says("ulimit -n is 256: at most 48 connections of one address"));
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 300; ++i) clients.push_back(std::make_unique<Client>(port));
  EXPECT_TRUE(clients.back()->sees_end());
  EXPECT_EQ(clients.front()->get("/livez")->status, 200);
  Client other(port, "127.0.0.2");
  const std::string form =
      "--B\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--B\r\n"
      "Content-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nx\r\n--B--\r\n";
  ASSERT_TRUE(
      other.send("POST /v1/files HTTP/1.1\r\nHost: localhost\r\n"
                 "Content-Type: multipart/form-data; boundary=B\r\nContent-Length: " +
                 std::to_string(form.size()) + "\r\n\r\n" + form));
  const std::optional<Reply> kept = other.read_reply();
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->status, 200) << kept->body;
  clients.clear();
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 0) << process.output();
  std::filesystem::remove_all(directory);
}

TEST(ServeCommand, WaitsForDescriptorsWithoutSpinning) {
  Process process(serving());
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  // Taken away from the server that runs: it leaves some for others of those that it found.
  const rlimit few{.rlim_cur = 64, .rlim_max = 64};
  ASSERT_EQ(prlimit(process.pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  {
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 100; ++i) clients.push_back(std::make_unique<Client>(port));
    EXPECT_TRUE(process.says("no file descriptors left for new connections"));
    // A loop without a pause takes all that it gets, at any time; what came before is over once.
    EXPECT_TRUE(comes_true([&] {
      const auto begin = std::chrono::steady_clock::now();
      const double before = process.cpu_s();
      usleep(500'000);
      const std::chrono::duration<double> lasted = std::chrono::steady_clock::now() - begin;
      EXPECT_GE(before, 0.0);
      return process.cpu_s() - before < 0.1 * lasted.count();
    }));
    // Connected clients are served.
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
  // The clock does jump: "created" is a day off.
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
  // An idle connection stays open, a stream completes, a timeout is on time.
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
  EXPECT_EQ(late.status, 408) << late.body;
  EXPECT_EQ(idle.get("/livez")->status, 200);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 0) << process.output();
}
#endif

}  // namespace
}  // namespace koho::server
