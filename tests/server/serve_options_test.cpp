// SPDX-License-Identifier: Apache-2.0
// The options of `koho serve`: flags, config file, environment, --check, and their documentation.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <tuple>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "client.h"
#include "serve_process.h"
#include "tests/support/temporary_directory.h"

namespace koho::server {
namespace {

TEST(ServeCommand, SaysWhatIsWrongWithItsFlags) {
  const auto run = [](std::vector<std::string> arguments, const std::string& expected) {
    Process process(std::move(arguments));
    const int code = process.wait();
    EXPECT_NE(process.output().find(expected), std::string::npos) << process.output();
    return code;
  };
  EXPECT_EQ(run({"--model", kTiny, "--max-model-length", "7"}, "did you mean --max-model-len?"), 2);
  EXPECT_EQ(run({"--model", kTiny, "--port", "70000"}, "--port: expected an integer"), 2);
  EXPECT_EQ(run({}, "give its directory first, or with -m"), 2);
  EXPECT_EQ(run({"--model"}, "--model needs a value"), 2);
  EXPECT_EQ(run({"--model", "/nowhere/model", "--port", "0"}, "/nowhere/model"), 3);
  EXPECT_EQ(run({"--model", kTiny, "--host", "not an address"}, "not an address"), 2);
  EXPECT_EQ(run({kTiny, "--api-key", "--check"}, "--api-key needs a value"), 2);
  EXPECT_EQ(run({kTiny, "--api-key", "--max_model_len=7"}, "--api-key=--max_model_len=7"), 2);
  EXPECT_EQ(run({kTiny, "--served-model-name=", "--check"}, "expected a name"), 2);
  EXPECT_EQ(run({kTiny, "--api-key=--check", "--check"}, "are valid"), 0);
  EXPECT_EQ(run({"--help"}, "KOHO_SOME_NAME"), 0);
  EXPECT_EQ(run({"--check", kTiny}, "are valid"), 0);
  EXPECT_EQ(run({kTiny, "--no-enable-log-requests", "--print-config"}, "log-requests: false"), 0);
  EXPECT_EQ(run({kTiny, "--no-port", "--print-config"}, "unknown flag --no-port"), 2);
  EXPECT_EQ(run({kTiny, "--print-config"}, "tensor-parallel-size: auto"), 0);
}

TEST(ServeCommand, AFileThatIsNoListOfKeysGivesNone) {
  using namespace std::string_literals;
  const std::string path = ::testing::TempDir() + "koho_key_file_" + std::to_string(getpid());
  const std::string json = "{\n\"keys\": [\n{\"key\": \"secret\"}\n]\n}\n";
  for (const auto& [text, code, told] : {
           std::tuple{"# mine\nsecret\n\n"s, 0, "are valid"s},
           {json, 0, "are valid"},
           {"\xef\xbb\xbf" + json, 0, "are valid"},
           {"\xef\xbb\xbfsecret\n", 0, "are valid"},
           {"# mine\n" + json, 2, ", line 2: a key has"},
           {"secret\n}\n", 2, ", line 2: a key has"},
           {"\xff\xfes\0e\0c\0"s, 2, ", line 1: a key has"},
           {"two words\n", 2, ", line 1: a key has"},
           {std::string(1025, 'k'), 2, ", line 1: a key has"},
       }) {
    std::ofstream(path) << text;
    Process process(std::vector<std::string>{kTiny, "--api-key-file", path, "--check"});
    EXPECT_EQ(process.wait(), code) << text;
    EXPECT_NE(process.output().find(told), std::string::npos) << process.output();
  }
  unlink(path.c_str());
}

TEST(ServeCommand, TakesListsAsVllmHasThemAndOneModel) {
  const auto run = [](std::vector<std::string> arguments, const std::string& expected) {
    arguments.emplace_back("--print-config");
    Process process(arguments);
    const int code = process.wait();
    EXPECT_NE(process.output().find(expected), std::string::npos) << process.output();
    return code;
  };
  const std::string names = "served-model-name:\n  - a\n  - b\nload";
  EXPECT_EQ(run({kTiny, "--served-model-name", "a", "b"}, names), 0);
  EXPECT_EQ(run({"--served-model-name", "a", "b", "-m", kTiny}, names), 0);
  EXPECT_EQ(run({"--served-model-name", "a", "b", "--port", "1", kTiny}, names), 0);
  EXPECT_EQ(run({"--served-model-name", "a", "b", kTiny}, names), 0) << "the last is the model";
  EXPECT_EQ(run({kTiny, "-a", "a", "-a", "b", "--api-key", "k", "l", "--port", "1"}, names), 0);
  setenv("KOHO_MODEL", kTiny.c_str(), 1);
  EXPECT_EQ(run({"--served-model-name", "a", "b"}, names), 0);
  unsetenv("KOHO_MODEL");
  EXPECT_EQ(run({kTiny, "other"}, "'other' is one word too many: the model is " + kTiny), 2);
  EXPECT_EQ(run({"other", "-m", kTiny}, "'other' is one word too many"), 2);
  EXPECT_EQ(run({kTiny, "--cuda-graph-bs", "1", "2", "4"}, "model: " + kTiny), 0);
  EXPECT_EQ(run({kTiny, "--max-model-len", "auto"}, "max-model-len: 0\n"), 0);
  EXPECT_EQ(run({kTiny, "--max-model-len", "-1"}, "max-model-len: 0\n"), 0);
}

TEST(ServeCommand, ACheckRefusesWhatTheStartRefuses) {
  Process version(std::vector<std::string>{"--version"});
  version.wait();
  std::vector<std::vector<std::string>> wrong{
      {"--max-model-len", "9999999"},
      {"--tensor-parallel-size", "3"},
      {"--chat-template", "foo"},
      {"--host", "999.1.1.1"},
      {"--host", "192.0.2.1"},  // not an address of this machine
      {"--tls-cert", "/nowhere/cert.pem"},
      {"--kv-cache-memory", "1K"},
      {"--gpu-memory-utilization", "0.000001"},
      {"--load-format=dummy", "--max-model-len=9999999"},
      {"--model", "/nowhere/model"}};
  if (version.output().find("without CUDA") != std::string::npos) {
    wrong.push_back({"--device", "cuda"});
    wrong.push_back({"--device", "cuda", "--kv-pages", "64"});
  } else {
    wrong.push_back(
        {"--device", "cuda", "--tensor-parallel-size", "64"});  // more GPUs than any machine has
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
      EXPECT_EQ(checked[0], '3') << checked;
    }
  }
  // --check of a running configuration: a port that is taken is no error.
  Process server(serving());
  const std::uint16_t port = server.ready_port();
  ASSERT_NE(port, 0) << server.output();
  std::vector<std::string> flags = serving({"--check"});
  flags.push_back("--port=" + std::to_string(port));
  Process check(std::move(flags));
  EXPECT_EQ(check.wait(), 0) << check.output();
  EXPECT_NE(check.output().find("max_model_len 2048 tokens (--max-model-len)"), std::string::npos)
      << check.output();
  EXPECT_NE(check.output().find("the server starts once the port is free"), std::string::npos)
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
         {"0\n", "seed: 7\n", "--enforce-eager has no effect: ", "log-stats-interval: 0\n",
          "--jinja has no effect: "});
  expect({"--temp", "0.6", "--top-p=0.9", "--min-p", "0.01", "--top-k", "40"},
         {"0\n", "temperature: 0.6\n", "top-p: 0.9\n", "min-p: 0.01\n", "top-k: 40\n"});
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
  expect_rejected({"--temperature=2.5"}, "expected a number in [0, 2], found '2.5'");
  expect_rejected({"--gpu-memory-utilization=1.5"}, "above 0 and at most 1");
  expect_rejected({"--gpu-memory-utilization=nan"}, "above 0 and at most 1");
  expect_rejected({"--kv-cache-memory=4GB"}, "64GiB");
  expect_rejected({"--kv-cache-memory=4iB"}, "64GiB");
  expect_rejected({"--kv-cache-memory=99999999T"}, "64GiB");
  expect_rejected({"--kv-cache-memory=1G", "--kv-pages=9"}, "each sets the size of the KV cache");
  expect_rejected({"--ep-size=3", "--tp=2"}, "the number of ranks, 2,");
  expect_rejected({"--data-parallel-size=2"}, "start several servers");
  expect_rejected({"--max-num-queued-tokens=9"}, "--max-num-queued-reqs");
  expect_rejected({"--speculative-config.method=mtp"}, "no speculative decoding");
  expect_rejected({"--load-format=gguf"}, "safetensors");
  const std::string path = ::testing::TempDir() + "koho_serve_refused.yaml";
  std::ofstream(path) << "speculative_algorithm: EAGLE\n";
  expect_rejected({"--config", path}, "no speculative decoding");
  unlink(path.c_str());
}

TEST(ServeCommand, SaysWhichCommitItWasBuiltFrom) {
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

TEST(ServeCommand, TheKvCacheHasTheSizeOfItsFlag) {
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
        "max_model_len 1024 tokens (the KV cache's limit); KV cache 16 pages"});
  told({"--max-num-seqs=2"},
       {R"("max_model_len":131072,)", "max_model_len 131072 tokens (the model's limit)"});
  told({"--max-num-seqs=20"}, {R"("max_model_len":131072,)", R"("num_gpu_blocks":2048,)"});
  told({"--max-num-seqs=20", "--max-model-len=8192"}, {R"("num_gpu_blocks":2560,)"});
}

TEST(ServeCommand, TheSeedIsForRequestsWithoutOne) {
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
  const std::string path = ::testing::TempDir() + "koho_serve_config.yaml";
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
  // The printed options are a valid config file.
  std::ofstream(path) << output;
  Process again(std::vector<std::string>{"--config", path, "--print-config"});
  EXPECT_EQ(again.wait(), 0);
  EXPECT_EQ(again.output(), output);
  unlink(path.c_str());
}

TEST(ServeCommand, ASignalEndsItWhileItLoads) {
  const testing::TemporaryDirectory directory;
  std::stringstream config;
  config << std::ifstream(kTiny + "/config.json").rdbuf();
  const std::string layers = "\"num_hidden_layers\": 5,";
  std::string text = config.str();
  ASSERT_NE(text.find(layers), std::string::npos);
  // Random weights of so many take seconds.
  std::ofstream(directory.path() / "config.json")
      << text.replace(text.find(layers), layers.size(), "\"num_hidden_layers\": 250,");
  bool before_it_was_ready = false;
  for (int round = 0; round < 10 && !before_it_was_ready; ++round) {
    Process process({directory.path().string(), "--load-format=dummy", "--host=127.0.0.1",
                     "--port=0", "--threads=1", "--kv-pages=4", "--log-format=json"});
    ASSERT_TRUE(process.says("the weights are random")) << process.output();
    process.signal(round % 2 == 0 ? SIGTERM : SIGINT);
    EXPECT_EQ(process.wait(), 0) << process.output();
    // Else the machine had much else to do.
    before_it_was_ready = process.output().find("ready: ") == std::string::npos;
  }
  EXPECT_TRUE(before_it_was_ready);
}

TEST(ServeCommand, ItsDocumentationHasEveryField) {
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
  EXPECT_GT(count, 40);
}

}  // namespace
}  // namespace koho::server
