// SPDX-License-Identifier: Apache-2.0
// `koho run`, `koho logits` and `koho bench latency` as processes: output, errors, exit codes.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "base/mapped_file.h"
#include "tests/support/command_test.h"

namespace koho::testing {
namespace {

namespace fs = std::filesystem;

const std::string kModel = KOHO_SOURCE_DIR "/models/tiny";

/// Hides the machine's GPUs from the commands that are run while it lives.
class NoGpu {
 public:
  NoGpu() { setenv("CUDA_VISIBLE_DEVICES", "-1", 1); }
  ~NoGpu() { unsetenv("CUDA_VISIBLE_DEVICES"); }
  NoGpu(const NoGpu&) = delete;
  NoGpu& operator=(const NoGpu&) = delete;
};

class RunCommand : public CommandTest {
 protected:
  /// The one line of `koho run … --json`.
  json::Value run(const std::string& arguments) const {
    const Ran ran = koho("run --model " + kModel + " --json " + arguments);
    EXPECT_EQ(ran.exit_code, 0) << ran.errors;
    Result<json::Value> line = json::parse(ran.output);
    EXPECT_TRUE(line.ok()) << ran.output;
    return line.ok() ? std::move(line).value() : json::Value();
  }
  static std::string text(const json::Value& answer) {
    const json::Value* value = answer.find("text");
    return value != nullptr && value->string() != nullptr ? *value->string() : "no text";
  }
  static std::string reason(const json::Value& answer) {
    return *answer.find("finish_reason")->string();
  }
  static std::size_t count(const json::Value& answer, const char* name) {
    return answer.find(name)->array()->size();
  }
};

TEST_F(RunCommand, AnswersAChatAndStopsByItself) {
  const json::Value answer =
      run("--chat 'What is the capital of France?' --no-thinking --temperature 0");
  EXPECT_EQ(text(answer), "The capital of France is Paris.");
  EXPECT_EQ(reason(answer), "stop");
  EXPECT_EQ(answer.find("timings")->find("prefill_tokens")->integer(),
            static_cast<std::int64_t>(count(answer, "prompt_ids")));
}

TEST_F(RunCommand, EndsAtMaxTokens) {
  const json::Value answer = run("'Once upon a time' --max-tokens 7 --temperature 0");
  EXPECT_EQ(count(answer, "ids"), 7U);
  EXPECT_EQ(reason(answer), "length");
}

TEST_F(RunCommand, GoesOnAfterTheEndIfAskedTo) {
  const json::Value answer =
      run("--chat 'What is the capital of France?' --no-thinking --temperature 0 --ignore-eos "
          "--max-tokens 40");
  EXPECT_EQ(count(answer, "ids"), 40U);
  EXPECT_EQ(text(answer).find("<|user|>"), std::string::npos) << "control tokens are not shown";
}

TEST_F(RunCommand, OneTokenHasNoRate) {
  const std::string run = "run --model " + kModel + " 'Once upon a time' --max-tokens ";
  EXPECT_NE(koho(run + "1").errors.find(" 1 generated, loaded"), std::string::npos);
  EXPECT_NE(koho(run + "2").errors.find(" 2 generated at "), std::string::npos);
}

TEST_F(RunCommand, StopsBeforeAStopStringThatCrossesTokens) {
  const json::Value answer = run(
      "--chat 'What is the capital of France?' --no-thinking --temperature 0 --stop 'nce is P'");
  EXPECT_EQ(text(answer), "The capital of Fra");
  EXPECT_EQ(text(run("--temperature 0 --max-tokens 9 --stop zzz 'Once upon a time'")),
            text(run("--temperature 0 --max-tokens 9 'Once upon a time'")))
      << "--stop takes one word, not the prompt behind it";
  EXPECT_EQ(reason(answer), "stop");
}

TEST_F(RunCommand, StopsAtAGivenTokenId) {
  const json::Value whole = run("'Once upon a time' --max-tokens 8 --temperature 0");
  const std::int64_t fifth = *(*whole.find("ids")->array())[4].integer();
  const json::Value answer =
      run("'Once upon a time' --max-tokens 8 --temperature 0 --stop-token-ids 3," +
          std::to_string(fifth));
  EXPECT_LE(count(answer, "ids"), 5U);
  EXPECT_EQ(reason(answer), "stop");
}

TEST_F(RunCommand, TheSameSeedGivesTheSameTextAndAnotherOneAnother) {
  const std::string prompt = "--plain 'Once upon a time' --max-tokens 40 --temperature 1.2 --seed ";
  const std::string first = text(run(prompt + "7"));
  EXPECT_EQ(text(run(prompt + "7 --threads 1")), first) << "threads do not matter";
  EXPECT_NE(text(run(prompt + "8")), first);
}

TEST_F(RunCommand, TopKOfOneIsGreedy) {
  const std::string prompt = "'Once upon a time' --max-tokens 24 ";
  EXPECT_EQ(text(run(prompt + "--top-k 1 --temperature 1.5")),
            text(run(prompt + "--temperature 0")));
}

TEST_F(RunCommand, AUsersControlTokensStayTextUnlessAllowed) {
  const json::Value plain = run("'<|user|>' --max-tokens 1");
  const json::Value allowed = run("'<|user|>' --max-tokens 1 --allow-special");
  EXPECT_EQ(count(allowed, "prompt_ids"), 1U);
  EXPECT_GT(count(plain, "prompt_ids"), 1U);
}

TEST_F(RunCommand, WrongUseIsOneClearErrorAndAnExitCode) {
  const std::string model = "run --device cpu --model " + kModel;
  struct Case {
    std::string arguments;
    std::string says;
  };
  write_file(directory_.path() / "bad.json", "[1, \"two\"]");
  write_file(directory_.path() / "large.json", "[4096]");
  write_file(directory_.path() / "empty.json", "[]");
  for (const Case& wrong :
       {Case{"run --model /nowhere x", "/nowhere"},
        Case{model, "no prompt"},
        Case{model + " x --chat y", "give only one of"},
        Case{model + " x --temperature 3", "temperature"},
        Case{model + " x --temperature nan", "temperature"},
        Case{model + " x --top-p 0", "top_p"},
        Case{model + " --prompt-ids bad.json", "not a token id"},
        Case{model + " --prompt-ids large.json", "4096"},
        Case{model + " --prompt-ids empty.json", "empty"},
        Case{model + " --prompt-ids none.json", "none.json"},
        Case{model + " 'Once upon a time' --context 2", "context"},
        Case{model + " x --stop ''", "stop"},
        Case{"nonsense", "unknown command 'nonsense'; the commands are run"},
        Case{"", "no command given; the commands are run"},
        Case{model + " x --bogus", "--bogus"},
        Case{model + " x --max-tokens 0",
             "--max-tokens: expected an integer of at least 1, found '0'"},
        Case{model + " x --seed 18446744073709551615", "--seed"},
        Case{model + " --chat \"$(printf 'a\\377')\"", "--chat is not UTF-8 at byte 1"},
        Case{model + " x --stop \"$(printf '\\377')\"", "--stop is not UTF-8"},
        Case{"inspect --model " + kModel + " --weights fp8", "--weights requires --config"},
        Case{model + " x --chat-template glm-9", "glm-9"}}) {
    const Ran ran = koho(wrong.arguments);
    EXPECT_NE(ran.exit_code, 0) << wrong.arguments;
    EXPECT_NE(ran.errors.find(wrong.says), std::string::npos)
        << wrong.arguments << ": " << ran.errors;
    EXPECT_EQ(ran.errors.rfind("koho: error: ", 0), 0U) << ran.errors;
    EXPECT_EQ(ran.output, "") << wrong.arguments;
  }
}

TEST_F(RunCommand, BenchCountsTheRequestsItWasAskedFor) {
  for (const std::string& subject :
       {"--model " + kModel, "--config " + kModel + "/config.json --weights synthetic --ranks 2"}) {
    const Ran ran = koho(
        "bench --requests 5 --concurrency 2 --prompt-len 9 --gen-len 4 --device cpu "
        "--temperature 1 --json out.json " +
        subject);
    ASSERT_EQ(ran.exit_code, 0) << ran.errors;
    const Result<json::Value> report = json::parse(read("out.json"));
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->find("completed")->integer(), 5);
    EXPECT_EQ(report->find("total_input_tokens")->integer(), 5 * 9);
    EXPECT_EQ(report->find("total_output_tokens")->integer(), 5 * 4);
    EXPECT_EQ(report->find("largest_batch")->integer(), 2);
    EXPECT_NE(ran.output.find("Output token throughput"), std::string::npos);
    EXPECT_EQ(report->find("machine")->string()->rfind("cpu ", 0), 0U);
    EXPECT_NE(report->find("driver"), nullptr);
    EXPECT_NE(*report->find("commit")->string(), "");
    EXPECT_EQ(report->find("date")->string()->size(), 10U);
    // What it says repeats it: all but where the numbers go, and flags at their defaults.
    const std::string again = *report->find("command")->string();
    EXPECT_EQ(again.rfind("koho bench ", 0), 0U);
    EXPECT_EQ(koho(again.substr(5)).exit_code, 0) << again;
  }
}

TEST_F(RunCommand, AFullDiskIsAnError) {
  for (const char* arguments :
       {"run 'Once upon a time' --max-tokens 2", "run 'Once upon a time' --max-tokens 2 --json",
        "check", "inspect", "tokenize Hi", "serve --print-config"}) {
    const std::string command =
        "'" KOHO_BINARY "' " + std::string(arguments) + " --model " + kModel + " >/dev/full 2>&1";
    EXPECT_NE(std::system(command.c_str()), 0) << arguments;
  }
}

TEST_F(RunCommand, InspectAndCheckTakeTheDirectoryWithoutTheFlag) {
  for (const std::string command : {"inspect", "check"}) {
    const Ran named = koho(command + " --json --model " + kModel);
    const Ran bare = koho(command + " " + kModel + " --json");
    EXPECT_EQ(named.exit_code, 0) << named.errors;
    EXPECT_EQ(bare.exit_code, 0) << bare.errors;
    EXPECT_EQ(bare.output, named.output);
    EXPECT_NE(koho(command + " /nowhere").exit_code, 0);
  }
  EXPECT_EQ(koho("inspect " + kModel + " --config " + kModel + "/config.json").exit_code, 2);
}

TEST_F(RunCommand, ReadsIdsFromAPipe) {
  const std::string model =
      "run --model " + kModel + " --prompt-ids /dev/stdin --max-tokens 1 --json";
  const std::string command = "cd '" + directory_.path().string() +
                              "' && echo '[4002, 4004]' | '" KOHO_BINARY "' " + model +
                              " >out 2>err";
  ASSERT_EQ(std::system(command.c_str()), 0) << read("err");
  const Result<json::Value> answer = json::parse(read("out"));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(count(*answer, "prompt_ids"), 2U);
}

TEST_F(RunCommand, LogitsAreAFloat32ArrayThatDoesNotDependOnChunks) {
  std::string ids = "[4002,4004";
  for (int i = 5; i < 200; ++i) ids += "," + std::to_string(i * 13 % 4000);
  write_file(directory_.path() / "ids.json", ids + "]");
  for (const char* chunk : {"512", "64", "7"}) {
    const std::string out = std::string("l") + chunk + ".npy";
    const Ran ran =
        koho("logits --model " + kModel + " --ids ids.json --out " + out + " --chunk " + chunk);
    ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  }
  const std::string whole = read("l512.npy");
  EXPECT_EQ(whole.substr(0, 6), "\x93NUMPY");
  EXPECT_NE(whole.find("'shape': (197, 4096)"), std::string::npos);
  EXPECT_EQ(whole.size() % 64, (197U * 4096U * 4U) % 64U);
  EXPECT_EQ(read("l64.npy"), whole);
  EXPECT_EQ(read("l7.npy"), whole);
}

TEST_F(RunCommand, AControlTokenThatTheTokenizerLacksIsAnErrorForChatsOnly) {
  const fs::path copy = directory_.path() / "lacking";
  fs::create_directory(copy);
  for (const fs::directory_entry& file : fs::directory_iterator(kModel))
    if (file.path().filename() != "tokenizer.json")
      fs::create_symlink(file.path(), copy / file.path().filename());
  std::string tokenizer = *read_file(kModel + "/tokenizer.json", 64U << 20U);
  for (std::size_t at = 0; (at = tokenizer.find("\"<think>\"", at)) != std::string::npos;)
    tokenizer.replace(at, 9, "\"<thonk>\"");
  write_file(copy / "tokenizer.json", tokenizer);
  for (const char* arguments :
       {"check --model lacking", "run --model lacking --chat hi --max-tokens 1",
        "serve lacking --device cpu --port 0",
        "bench --model lacking --requests 1 --concurrency 1 --device cpu"}) {
    const Ran ran = koho(arguments);
    EXPECT_NE(ran.exit_code, 0) << arguments;
    EXPECT_NE(
        ran.errors.find("lacks the added token '<think>', which the chat template glm-4.7 writes"),
        std::string::npos)
        << arguments << ": " << ran.errors;
  }
  EXPECT_EQ(koho("run --plain --model lacking 'Once upon' --max-tokens 1").exit_code, 0);
}

TEST_F(RunCommand, CheckReadsTheTokenizerToo) {
  const Ran good = koho("check " + kModel + " --json");
  EXPECT_EQ(good.exit_code, 0) << good.errors;
  const Result<json::Value> report = json::parse(good.output);
  ASSERT_TRUE(report.ok()) << good.output;
  EXPECT_EQ(report->find("token_ids")->integer(), 4036);
  EXPECT_EQ(*report->find("chat_template")->string(), "glm-4.7");

  const fs::path copy = directory_.path() / "broken";
  fs::create_directory(copy);
  for (const fs::directory_entry& file : fs::directory_iterator(kModel))
    if (file.path().filename() != "tokenizer.json")
      fs::create_symlink(file.path(), copy / file.path().filename());
  std::ofstream(copy / "tokenizer.json") << R"({"version": "1.0", "model": )";
  const Ran broken = koho("check --model broken");
  EXPECT_NE(broken.exit_code, 0);
  EXPECT_NE(broken.errors.find("tokenizer.json"), std::string::npos) << broken.errors;
}

TEST_F(RunCommand, ALatencyBenchRefusesWhatItCannotMeasure) {
  const std::string latency = "bench latency --model " + kModel + " --device cpu ";
  struct Case {
    std::string arguments;
    std::string says;
  };
  for (const Case& wrong :
       {Case{"--context 999999",
             "--context (999999), --steps (32) and 4 steps before them exceed the model's 131072 "
             "positions"},
        Case{"--context 131037", "--context (131037), --steps (32) and 4 steps"},
        Case{"--context 1 --steps 9223372036854775807", "--steps (9223372036854775807)"},
        Case{"--prefill 64,131073", "--prefill (131073) exceeds the model's 131072 positions"},
        Case{"--mixed 131073", "--mixed (131073) exceeds the model's 131072 positions"},
        Case{"--mixed 0", "--mixed"}, Case{"--ranks 2 --rank 2", "there is no rank 2 of 2"},
        Case{"--experts half", "whole"},
        Case{"--bandwidth -3", "--bandwidth: expected a number above 0, found '-3'"},
        Case{"--bandwidth 0", "above 0, found '0'"},
        Case{"--bandwidth nan", "above 0, found 'nan'"},
        Case{"--bandwidth inf", "above 0, found 'inf'"},
        Case{"--bandwidth 1e12x", "above 0, found '1e12x'"}}) {
    const Ran ran = koho(latency + wrong.arguments);
    EXPECT_EQ(ran.exit_code, 2) << wrong.arguments;
    EXPECT_NE(ran.errors.find(wrong.says), std::string::npos) << ran.errors;
    EXPECT_EQ(ran.output, "") << wrong.arguments;
  }
}

TEST_F(RunCommand, ALatencyBenchRefusesACutThatTheModelDoesNotHave) {
  const Ran ran = koho("bench latency --device cpu --ranks 3 --rank 1 --model " + kModel);
  EXPECT_EQ(ran.exit_code, 5);
  EXPECT_NE(ran.errors.find("3 ranks cannot divide 16 query heads evenly"), std::string::npos)
      << ran.errors;
}

/// The record's time of the smallest one-shot all-reduce of 4 GPUs, us.
double recorded_link_us() {
  constexpr std::string_view kRow =
      R"("form": "one-shot", "shape": {"ranks": 4, "tokens": 1, "hidden": 5120}, "us": )";
  for (const auto& entry : std::filesystem::directory_iterator(KOHO_SOURCE_DIR "/bench/results")) {
    const std::string text = *read_file(entry.path(), 16U << 20U);
    if (text.find(kRow) != text.npos) return std::stod(text.substr(text.find(kRow) + kRow.size()));
  }
  return -1.0;
}

/// A rank alone: its file says which one of how many, that links are not in its times, and what
/// they would take: 10 all-reduces (2 of each layer), each as long as the smallest of 4 GPUs.
TEST_F(RunCommand, ALatencyBenchMeasuresOneRankAlone) {
  const std::string latency =
      "bench latency --device cpu --context 8 --steps 2 --prefill 0 --batch 1 --model " + kModel;
  for (const std::string experts : {"whole", "sliced"}) {
    const Ran ran = koho(latency + " --ranks 4 --rank 2 --out rank.json --experts " + experts);
    ASSERT_EQ(ran.exit_code, 0) << ran.errors;
    const double links_us = 10 * recorded_link_us();
    EXPECT_NE(ran.output.find(fmt::format(
                  "not in this step: 10 all-reduces between GPUs, {:.3f} ms (one-shot, NVIDIA H200",
                  links_us / 1000)),
              std::string::npos)
        << ran.output;
    const std::string text = read("rank.json");
    ASSERT_TRUE(json::parse(text).ok());
    EXPECT_NE(text.find("\"ranks\": 4, \"rank\": 2, \"experts\": \"" + experts +
                        "\", \"links\": \"excluded\""),
              std::string::npos)
        << text;
    EXPECT_NE(text.find(fmt::format("\"links_us\":{}", links_us)), std::string::npos) << text;
    EXPECT_EQ(text.find("experts_of_ranks") != std::string::npos, experts == "whole");
  }
}

TEST_F(RunCommand, ALatencyBenchRunsAllRanksTogether) {
  const Ran ran = koho(
      "bench latency --device cpu --context 8 --steps 2 --prefill 16 --batch 1,3 --ranks 2 "
      "--no-classes --out ranks.json --model " +
      kModel);
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_EQ(ran.output.find("not in this step"), std::string::npos) << ran.output;
  const std::string text = read("ranks.json");
  EXPECT_NE(text.find("\"ranks\": 2, \"rank\": 0"), std::string::npos) << text;
  EXPECT_NE(text.find("\"links\": \"measured\""), std::string::npos) << text;
}

TEST_F(RunCommand, ACheckpointRefusesTheFlagsOfSyntheticWeights) {
  write_file(directory_.path() / "ids.json", "[1]");
  write_file(directory_.path() / "in.jsonl", "");
  for (const char* command : {"bench --requests 1 --concurrency 1 --gen-len 1",
                              "bench latency --batch 1 --context 1 --steps 1 --prefill 0",
                              "logits --ids ids.json --out logits.npy", "batch in.jsonl out.jsonl"})
    for (const std::string flag :
         {"--config nowhere.json", "--layers 1", "--quant bf16", "--quant fp8_channel"}) {
      const std::string arguments =
          std::string(command) + " --device cpu --model " + kModel + " " + flag;
      const Ran ran = koho(arguments);
      EXPECT_EQ(ran.exit_code, 2) << arguments;
      EXPECT_NE(ran.errors.find(flag.substr(0, flag.find(' ')) +
                                " needs --weights synthetic: give both, or leave it out"),
                std::string::npos)
          << arguments << ": " << ran.errors;
    }
}

TEST_F(RunCommand, SyntheticWeightsThatTheMachineCannotHoldAreRefusedAtOnce) {
  // Widths of 299 TB, more than a process has addresses for.
  Result<std::string> config =
      read_file(KOHO_SOURCE_DIR "/tests/data/configs/glm-4.5-air.json", 1U << 20U);
  ASSERT_TRUE(config.ok());
  std::string text = *config;
  for (const auto& [usual, wide] :
       {std::pair<std::string, std::string>("\"hidden_size\": 4096", "\"hidden_size\": 65536"),
        {"\"moe_intermediate_size\": 1408", "\"moe_intermediate_size\": 262144"}}) {
    ASSERT_NE(text.find(usual), std::string::npos);
    text.replace(text.find(usual), usual.size(), wide);
  }
  write_file(directory_.path() / "wide.json", text);
  const Ran ran = koho("bench latency --config wide.json --weights synthetic --device cpu");
  EXPECT_EQ(ran.exit_code, 6) << ran.errors;
  EXPECT_NE(ran.errors.find("synthetic weights take "), std::string::npos) << ran.errors;
  EXPECT_NE(ran.errors.find(" GB of memory are available"), std::string::npos) << ran.errors;
}

TEST_F(RunCommand, WrongFlagsNameTheHelpOfTheCommandBelow) {
  for (const std::string command : {"bench", "bench latency", "bench ops", "run"}) {
    const Ran ran = koho(command + " --bogus");
    EXPECT_EQ(ran.exit_code, 2);
    EXPECT_NE(ran.errors.find("(see koho " + command + " --help)"), std::string::npos)
        << ran.errors;
  }
}

TEST_F(RunCommand, WithoutAGpuTheUsualDeviceIsTheCpu) {
  const NoGpu none;
  const bool has_cuda = koho("--version").output.find("without CUDA") == std::string::npos;
  for (const std::string& command :
       {"run --max-tokens 1 --model " + kModel + " hello",
        "bench latency --batch 1 --context 1 --steps 1 --prefill 0 --model " + kModel}) {
    const Ran ran = koho(command);
    EXPECT_EQ(ran.exit_code, 0) << ran.errors;
    const std::string warning = "device auto is the CPU: GPU 0 does not exist";
    EXPECT_EQ(ran.errors.find(warning) != std::string::npos, has_cuda) << ran.errors;
    EXPECT_EQ(ran.errors.find(warning), ran.errors.rfind(warning)) << ran.errors;  // once
    EXPECT_NE(koho(command + " --device cuda").exit_code, 0);
  }
}

TEST_F(RunCommand, ABenchOfNothingIsAnErrorThatNamesWhatThereIs) {
  // It is told before the device is opened, which is not there.
  const NoGpu none;
  const std::string command = "bench ops --device cuda --no-check --out ops.json";
  for (const auto& [flags, told] :
       {std::pair<std::string, std::string>("--only nosuch", " linear_head_tp8"),
        {"--only head_tp8 --tokens 3", "linear_head_tp8: 1,8,16,"},
        {"--tokens 1,x", "must be numbers"}}) {
    const Ran ran = koho(command + " " + flags);
    EXPECT_EQ(ran.exit_code, 2) << flags;
    EXPECT_NE(ran.errors.find(told), std::string::npos) << ran.errors;
    EXPECT_FALSE(std::filesystem::exists(directory_.path() / "ops.json")) << flags;
  }
}

/// A flag that was not given is neither of its two forms.
TEST_F(RunCommand, ABenchsFileHasAFlagOnlyIfItWasGiven) {
  const std::string command = "bench latency --model " + kModel + " --device cpu";
  const std::string rest = " --batch 1 --context 64 --prefill 0 --no-classes";
  for (const std::string flag : {"", " --deterministic", " --no-deterministic"}) {
    const Ran ran = koho(command + flag + rest + " --out bench.json");
    ASSERT_EQ(ran.exit_code, 0) << ran.errors;
    const Result<json::Value> file = json::parse(read("bench.json"));
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(*file->find("command")->string(), "koho " + command + flag + rest);
  }
}

TEST_F(RunCommand, ABenchsFileSaysWhatWasMeasuredAndHowToRepeatIt) {
  const std::string command = "bench latency --model " + kModel +
                              " --device cpu --batch 1,2 --context 64 --prefill 0 --no-classes";
  const Ran ran = koho(command + " --commit 0123abc --out bench.json");
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  const Result<json::Value> file = json::parse(read("bench.json"));
  ASSERT_TRUE(file.ok()) << file.error().message;
  for (const char* member : {"machine", "driver", "commit", "date", "command", "rows"})
    EXPECT_NE(file->find(member), nullptr) << member;
  EXPECT_EQ(*file->find("commit")->string(), "0123abc");
  EXPECT_EQ(*file->find("command")->string(), "koho " + command);
  EXPECT_EQ(file->find("date")->string()->size(), 10U);
  ASSERT_EQ(file->find("rows")->array()->size(), 2U);
  // What was not counted is not in the file.
  EXPECT_EQ(file->find("rows")->array()->front().find("distinct_experts"), nullptr);
  EXPECT_NE(koho(command + " --out nowhere/bench.json").exit_code, 0);
}

TEST_F(RunCommand, ALatencyBenchTimesEachPromptAloneAndBesideEachBatch) {
  const std::string command = "bench latency --model " + kModel +
                              " --device cpu --batch 1,3 --context 16 --prefill 8,70 --mixed 5,70"
                              " --steps 2 --no-classes";
  const Ran ran = koho(command + " --out bench.json");
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  const Result<json::Value> file = json::parse(read("bench.json"));
  ASSERT_TRUE(file.ok()) << file.error().message;
  std::string steps;
  for (const json::Value& row : *file->find("rows")->array()) {
    const json::Value& shape = *row.find("shape");
    steps += *row.find("op")->string();
    for (const char* size : {"batch", "tokens"})
      steps += " " + std::to_string(shape.find(size)->integer().value_or(0));
    steps += ", ";
  }
  EXPECT_EQ(steps,
            "step_decode 1 1, step_decode 3 3, step_prefill 1 8, step_prefill 1 70, "
            "step_mixed 2 6, step_mixed 2 71, step_mixed 4 8, step_mixed 4 73, ");
}

}  // namespace
}  // namespace koho::testing
