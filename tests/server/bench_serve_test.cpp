// SPDX-License-Identifier: Apache-2.0
// `koho bench serve` against `koho serve`, and its arithmetic on times that are written down here;
// what server_load reads of nvidia-smi's answers.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "bench/load_gpu_memory.h"
#include "bench/serve_report.h"
#include "client.h"
#include "serve_process.h"
#include "tests/support/command_test.h"

namespace koho::server {
namespace {

bench::ServedRequest request(double start_s,
                             double ttft_s,
                             const std::vector<double>& itl_s,
                             std::int64_t output) {
  bench::ServedRequest one{.success = true, .start_s = start_s, .ttft_s = ttft_s, .itl_s = itl_s};
  one.latency_s = ttft_s;
  for (const double gap : itl_s) one.latency_s += gap;
  one.prompt_tokens = 10;
  one.output_tokens = output;
  return one;
}

TEST(LoadGpuMemory, IsThatOfItsProcessesOnAllGpus) {
  const std::vector<pid_t> processes{70, 71};
  EXPECT_EQ(bench::mib_of(processes, "70, 518\n7, 30000\n71, 4210\n71, 10\n"), 4738);
  EXPECT_EQ(bench::mib_of(processes, "7, 30000\n"), std::nullopt);
  EXPECT_EQ(bench::mib_of(processes, "70, [N/A]\n"), std::nullopt);
  EXPECT_EQ(bench::mib_of(processes, ""), std::nullopt);
}

TEST(ServeReport, ComputesAsVllmDoes) {
  bench::ServedRun run;
  run.duration_s = 4.0;
  run.requests = {request(0.0, 0.1, {0.02, 0.04}, 3), request(0.5, 0.3, {0.1}, 2),
                  request(1.0, 0.2, {}, 1)};
  run.requests.push_back({.start_s = 2.0, .error = "HTTP 500"});
  run.goodput = {{"ttft", 250.0}, {"tpot", 50.0}};
  run.percentiles = {50.0, 99.0};
  const nlohmann::ordered_json report = bench::served_json(run, true);
  EXPECT_EQ(report["completed"], 3);
  EXPECT_EQ(report["failed"], 1);
  EXPECT_EQ(report["total_input_tokens"], 30);
  EXPECT_EQ(report["total_output_tokens"], 6);
  EXPECT_DOUBLE_EQ(report["request_throughput"], 0.75);
  EXPECT_DOUBLE_EQ(report["output_throughput"], 1.5);
  EXPECT_DOUBLE_EQ(report["total_token_throughput"], 9.0);
  EXPECT_DOUBLE_EQ(report["request_goodput"], 0.5) << "the first and the third";
  EXPECT_NEAR(report["mean_ttft_ms"], 200.0, 1e-9);
  EXPECT_NEAR(report["std_ttft_ms"], 81.649658, 1e-6);
  EXPECT_NEAR(report["p99_ttft_ms"], 298.0, 1e-9);
  // Of the request with one token there is none.
  EXPECT_NEAR(report["mean_tpot_ms"], (30.0 + 100.0) / 2, 1e-9);
  EXPECT_NEAR(report["median_itl_ms"], 40.0, 1e-9) << "all gaps together";
  EXPECT_NEAR(report["p50_e2el_ms"], 200.0, 1e-9);
  EXPECT_EQ(report["max_concurrent_requests"], 2);
  EXPECT_EQ(report["errors"][3], "HTTP 500");
  EXPECT_FALSE(bench::served_json(run, false).contains("ttfts"));
  run.requests.clear();
  EXPECT_EQ(bench::served_json(run, false)["mean_ttft_ms"], 0.0);
}

class BenchServe : public koho::testing::CommandTest {
 protected:
  int bench(const std::string& flags) const { return koho("bench serve " + flags).exit_code; }
  chat::Json json(const char* name) const {
    const Result<chat::Json> parsed = chat::parse_json(read(name));
    EXPECT_TRUE(parsed.ok()) << read(name);
    return parsed.ok() ? *parsed : chat::Json();
  }
  /// The result of a run that must succeed.
  chat::Json result_of(const std::string& flags) const {
    const int code = bench(flags + " --save-result --result-filename result.json");
    EXPECT_EQ(code, 0) << read("err");
    return code == 0 ? json("result.json") : chat::Json();
  }
};

TEST_F(BenchServe, MeasuresAServer) {
  Process process(serving());
  const std::uint16_t port = process.ready_port();
  ASSERT_NE(port, 0) << process.output();
  const std::string url = "http://127.0.0.1:" + std::to_string(port) + "/v1";

  // Random prompts of exact lengths, at a rate.
  chat::Json result =
      result_of(url + " --tokenizer " + kTiny +
                " --num-prompts 12 --random-input-len 30 --random-output-len 5 --ignore-eos "
                "--request-rate 40 --burstiness 2 --goodput ttft:60000 e2el:60000 "
                "--save-detailed --metadata run=1 --plot p.svg");
  EXPECT_EQ(text_at(result, "completed"), "12");
  EXPECT_EQ(text_at(result, "failed"), "0");
  EXPECT_EQ(text_at(result, "total_input_tokens"), "360");
  EXPECT_EQ(text_at(result, "total_output_tokens"), "60");
  EXPECT_EQ(text_at(result, "backend"), "openai");
  EXPECT_EQ(text_at(result, "run"), "1");
  EXPECT_EQ(text_at(result, "itls.0.3").empty(), false);
  EXPECT_EQ(text_at(result, "request_goodput"), text_at(result, "request_throughput"));
  // 12 requests at 40 a second, brought to the rate's mean: the last one is due after 0.3 s.
  EXPECT_GE(std::stod(text_at(result, "start_times.11")), 0.299);
  for (const char* name : {"mean_ttft_ms", "median_tpot_ms", "p99_itl_ms", "std_e2el_ms"})
    EXPECT_GT(std::stod(text_at(result, name)), 0.0) << name;
  EXPECT_NE(read("out").find("Mean TTFT (ms):"), std::string::npos) << read("out");
  EXPECT_EQ(read("p.svg").rfind("<svg", 0), 0U);

  // A closed loop of chats; then sessions, whose turns have the answers before them.
  result = result_of(url +
                     " --backend openai-chat --num-prompts 6 --random-input-len 8 "
                     "--random-output-len 4 --max-concurrency 2 "
                     "--extra-body '{\"enable_thinking\":false}'");
  EXPECT_EQ(text_at(result, "completed"), "6");
  EXPECT_EQ(text_at(result, "max_concurrency"), "2");
  EXPECT_EQ(result.find("ttfts"), nullptr) << "only with --save-detailed";
  write("share.json",
        R"([{"conversations":[{"from":"human","value":"What is the capital of France?"},)"
        R"({"from":"gpt","value":"Paris it is."},{"from":"human","value":"And of Spain?"},)"
        R"({"from":"gpt","value":"That is Madrid."}]}])");
  result = result_of(url +
                     " --backend openai-chat --dataset-name sessions --dataset-path "
                     "share.json --num-prompts 2 --output-len 12 --save-detailed "
                     "--extra-body '{\"enable_thinking\":false}'");
  EXPECT_EQ(text_at(result, "completed"), "2");
  EXPECT_NE(text_at(result, "generated_texts.0").find("Paris"), std::string::npos);
  EXPECT_GT(std::stoi(text_at(result, "input_lens.1")), std::stoi(text_at(result, "input_lens.0")));
  EXPECT_GE(std::stod(text_at(result, "start_times.1")), std::stod(text_at(result, "latencies.0")));
  result = result_of(url +
                     " --dataset-name sharegpt --dataset-path share.json --num-prompts 3 "
                     "--tokenizer " +
                     kTiny);
  EXPECT_EQ(text_at(result, "completed"), "3") << "the one conversation again";

  // Lines of their own lengths, or all of one.
  write("lines.jsonl",
        "{\"prompt\":\"Hi\",\"output_tokens\":3}\n{\"prompt\":\"Hello\",\"output_tokens\":5}\n");
  const std::string lines =
      url + " --dataset-name custom --dataset-path lines.jsonl --num-prompts 2 --ignore-eos" +
      " --skip-chat-template --model " + kTiny + " --served-model-name tiny --custom-output-len ";
  result = result_of(lines + "-1");
  EXPECT_EQ(text_at(result, "total_output_tokens"), "8");
  EXPECT_EQ(text_at(result, "model_id"), kTiny);
  EXPECT_EQ(text_at(result, "tokenizer_id"), kTiny);
  EXPECT_EQ(text_at(result_of(lines + "7"), "total_output_tokens"), "14");
  ASSERT_EQ(sh("mkfifo pipe && (timeout 30 sh -c 'cat lines.jsonl >pipe' &)"), 0);
  result = result_of(url + " --dataset-name custom --dataset-path pipe --custom-output-len -1" +
                     " --num-prompts 2 --ignore-eos");
  EXPECT_EQ(text_at(result, "total_output_tokens"), "8") << "the same lines through a pipe";

  // Requests that the server refuses.
  EXPECT_EQ(bench(url + " --num-prompts 2 --random-input-len 4 --top-p 7"), 7) << read("err");
  EXPECT_NE(read("err").find("HTTP 400"), std::string::npos) << read("err");
}

TEST_F(BenchServe, WrongUseIsOneClearError) {
  write("no_length.jsonl", "{\"prompt\":\"Hi\"}\n");
  const std::pair<const char*, const char*> cases[] = {
      {"http://127.0.0.1:1 --num-prompts 1", "no server answers"},
      {"http://127.0.0.1:1 --num-prompts 1 --model m", "no server answers"},
      {"https://example.org", "http only"},
      {"ftp://x y", ""},
      {"localhost:99999", "port"},
      {"localhost:1 --request-rate 0", "--request-rate"},
      {"localhost:1 --goodput itl:5", "--goodput"},
      {"localhost:1 --percentile-metrics speed", "--percentile-metrics"},
      {"localhost:1 --dataset-name sessions", "openai-chat"},
      {"localhost:1 --extra-body [1]", "--extra-body"},
      {"localhost:1 --tokenizer nowhere", "nowhere"},
      {"localhost:1 --model m --dataset-name custom --dataset-path no_length.jsonl "
       "--custom-output-len "
       "-1",
       "line 1: expected \"output_tokens\""},
  };
  for (const auto& [flags, says] : cases) {
    const int code = bench(flags);
    EXPECT_GT(code, 0) << flags;
    EXPECT_NE(read("err").find("koho: error: "), std::string::npos) << flags << read("err");
    EXPECT_NE(read("err").find(says), std::string::npos) << flags << ": " << read("err");
  }
}

}  // namespace
}  // namespace koho::server
