// SPDX-License-Identifier: Apache-2.0
// What a new user types, as processes: models named in every way, flags of other engines, prompts
// from a pipe, answers that were cut, exit codes.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/json.h"
#include "tests/support/command_test.h"

namespace koho::testing {
namespace {

namespace fs = std::filesystem;

const std::string kModel = KOHO_SOURCE_DIR "/models/tiny";
const std::string kFrance = "'What is the capital of France?' --device cpu --temperature 0";

class FirstHour : public CommandTest {
 protected:
  void SetUp() override { setenv("HF_HOME", (directory_.path() / "hf").c_str(), 1); }

  void expect(const std::string& arguments, int exit_code, const std::string& told) const {
    const Ran ran = koho(arguments);
    EXPECT_EQ(ran.exit_code, exit_code) << arguments << ": " << ran.errors;
    EXPECT_NE((ran.output + ran.errors).find(told), std::string::npos)
        << arguments << " does not say '" << told << "': " << ran.output << ran.errors;
  }
};

TEST_F(FirstHour, AModelIsNamedByAWordOrByAFlagInEveryCommand) {
  write_file(directory_.path() / "ids.json", "[300]");
  write_file(directory_.path() / "in.jsonl", R"({"id":1,"prompt":"Once","max_tokens":2})"
                                             "\n");
  const std::string bench = " --device cpu --requests 1 --concurrency 1 --prompt-len 4 --gen-len 2";
  for (const std::string& model : {kModel, "-m " + kModel, "--model " + kModel}) {
    expect("run " + model + " " + kFrance, 0, "The capital of France is Paris.");
    expect("bench " + model + bench, 0, "Output token throughput");
    expect("bench latency " + model + " --device cpu --batch 1 --context 1 --steps 1 --prefill 0",
           0, "decode");
    expect("batch " + model + " --restart --device cpu in.jsonl out.jsonl", 0, "1 answered");
    expect("logits " + model + " --device cpu --ids ids.json --out l.npy", 0, "");
    expect("check " + model, 0, "good");
    expect("inspect " + model, 0, "where it fits");
    expect("serve " + model + " --device cpu --check", 0, "are valid");
    EXPECT_EQ(koho("tokenize --jsonl " + model, "\"a\"\n").exit_code, 0);
    EXPECT_EQ(koho("render " + model, R"({"messages":[{"role":"user","content":"a"}]})").exit_code,
              0);
    EXPECT_EQ(koho("chat --device cpu " + model, "/exit\n").exit_code, 0);
  }
}

TEST_F(FirstHour, AModelThatIsNotThereSaysWhatToDo) {
  for (const std::string command : {"run", "chat", "bench", "check", "inspect", "serve"}) {
    expect(command + " zai-org/GLM-4.7-FP8", 3,
           "pip install -U huggingface_hub && hf download zai-org/GLM-4.7-FP8\n");
    expect(command + " " + KOHO_SOURCE_DIR "/models/tinny", 3, "models/tiny?");
    expect(command + " " + kModel + "/config.json", 2, "give the model's directory: " + kModel);
    expect(command + " nowhere/model.gguf", 5, "GGUF, which koho does not read");
  }
  expect("serve GLM-4.5-Air-FP8", 3, "hf download zai-org/GLM-4.5-Air-FP8");
  expect("serve glm-4.7-fp8", 3, "hf download zai-org/GLM-4.7-FP8\n");
  expect("run zai-org/glm-4.5@v1 hi", 3, "hf download zai-org/GLM-4.5 --revision v1\n");
  expect("run some-org/Llama hi", 3, "koho runs GLM-4.5, 4.6 and 4.7");
  EXPECT_EQ(koho("run some-org/My-GLM hi").errors.find("koho runs"), std::string::npos);
  for (const std::string name : {"zai-org/GLM-4.7-FP8", "GLM-4.7-FP8"})
    expect("inspect " + name, 3, "inspect --config config/config.json");
  const std::string config = KOHO_SOURCE_DIR "/tests/data/configs/glm-4.7.json";
  expect("inspect " + config, 2, "or --config " + config);
  fs::create_directory(directory_.path() / "pickles");
  write_file(directory_.path() / "pickles/config.json", "{}");
  write_file(directory_.path() / "pickles/pytorch_model.bin", "");
  expect("run pickles hi", 5, "PyTorch pickles, which koho does not read");
  write_file(directory_.path() / "m.Q4_K_M.gguf", "GGUF");
  expect("run m.Q4_K_M.gguf hi", 5, "*.safetensors");
  expect("run . hi", 5, "GGUF");
}

TEST_F(FirstHour, WordsInTheWrongPlaceSayWhereTheyBelong) {
  expect("run " + kModel + " What is 2", 2, "'is 2' is one word too many: put a prompt in quotes");
  expect("run 'What is 2 + 3?'", 3, "the model comes first: koho run MODEL PROMPT");
  expect("batch " + kModel + " a b c", 2, "'c' is one word too many");
  expect("batch " + kModel + " a -i b -o c", 2, "'a' is one word too many");
  expect("batch " + kModel + " -i b", 2, "the output is missing");
  write_file(directory_.path() / "in.jsonl", R"({"id":1,"prompt":"Once","max_tokens":2})");
  expect("batch -i in.jsonl -o out.jsonl --model " + kModel + " --device cpu", 0, "1 answered");
}

TEST_F(FirstHour, WordsOfOtherEnginesNameKohos) {
  for (const auto& [given, own] :
       {std::pair<std::string, std::string>("run-batch -i a", "did you mean batch?"),
        {"complete", "did you mean run --plain?"},
        {"launch_server", "did you mean serve?"},
        {"llama-cli", "did you mean chat?"}})
    expect(given, 2, own);
  const std::string sizes = " --device cpu --num-prompts 2 --input-len 4 --output-len 2";
  expect("bench throughput " + kModel + sizes, 0, "Maximum request concurrency:             2");
  expect(
      "bench latency " + kModel + " --device cpu --batch-size 1 --context 1 --steps 1 --prefill 0",
      0, "batch 1");
  expect("bench latency " + kModel + " --input-len 32", 2, "bench latency times steps");
}

TEST_F(FirstHour, ANameInHuggingFacesCacheIsItsSnapshot) {
  const fs::path model = directory_.path() / "hf/hub/models--some-org--Tiny-1.0";
  fs::create_directories(model / "refs");
  fs::create_directories(model / "snapshots");
  write_file(model / "refs/main", "0123abcd");
  fs::create_directory_symlink(kModel, model / "snapshots/0123abcd");
  expect("run some-org/Tiny-1.0 " + kFrance, 0, "Paris");
}

TEST_F(FirstHour, MistypedFlagsAndCommandsNameTheNearest) {
  for (const auto& [given, nearest] :
       {std::pair<std::string, std::string>("run m --max-tokns 3", "did you mean --max-tokens?"),
        {"bench m --concurency 3", "did you mean --concurrency?"},
        {"bench latency m --prefil 3", "did you mean --prefill?"},
        {"batch m a b --kv-typ fp8", "did you mean --kv-dtype?"},
        {"inspect m --contex 3", "did you mean --context?"},
        {"serve m --prt 3", "did you mean --port?"},
        {"srve m", "did you mean serve?"},
        {"bnech m", "did you mean bench?"}})
    expect(given, 2, nearest);
  EXPECT_EQ(koho("run m --zzzzzzzzzzzz 3").errors.find("did you mean"), std::string::npos);
  // Underscores are hyphens, in names and not in values.
  expect("run " + kModel + " --max_tokens=3 --prompt_ids no_such_file", 3, "no_such_file");
}

TEST_F(FirstHour, HelpAndVersionAreWordsToo) {
  EXPECT_EQ(koho("help").output, koho("--help").output);
  EXPECT_EQ(koho("help run").output, koho("run --help").output);
  EXPECT_EQ(koho("help bench latency").output, koho("bench latency --help").output);
  EXPECT_EQ(koho("help serve").output, koho("serve --help").output);
  EXPECT_EQ(koho("--help serve").output, koho("serve --help").output);
  for (const char* version : {"version", "-v", "-V"})
    EXPECT_EQ(koho(version).output, koho("--version").output);
  EXPECT_NE(koho("help").output.find("Answer one prompt"), std::string::npos);
  expect("help flags", 0, "--trust-remote-code");
  expect("help nonsense", 2, "unknown command 'nonsense'");
}

TEST_F(FirstHour, FlagsOfOtherEnginesAreTakenOrRefusedWithAReason) {
  const std::string run = "run " + kModel + " 'What is 2 + 3?' --device cpu ";
  for (const std::string flag : {"-ngl 99", "--dtype auto", "--trust-remote-code", "--jinja", "-fa",
                                 "-fa on", "--flash-attn auto", "--quantization fp8"})
    for (const std::string& command : {run, "serve " + kModel + " --check --device cpu "})
      expect(command + flag, 0, flag + " has no effect: ");
  for (const std::string flag : {"-ngl 20", "--dtype float16", "--quantization awq", "-fa off",
                                 "--tool-call-parser hermes", "--speculative-config x", "--mlock",
                                 "--generation-config vllm", "--tokenizer-mode mistral"})
    for (const std::string& command : {run, "serve " + kModel + " --check --device cpu "})
      expect(command + flag, 2, flag + " is not supported: ");
  // What run has a flag for and serve leaves to a request; a flag is no value of the one before it.
  const std::string serve = "serve " + kModel + " --check --device cpu ";
  expect(serve + "--repeat-penalty 1.0", 0, "--repeat-penalty 1.0 has no effect: ");
  expect(serve + "--repeat-penalty 1.1", 2, "a request says so: repetition_penalty");
  expect(run + "--repeat-penalty 1.0", 0, "5");
  expect(serve + "-n 100", 2, "a request says so: max_tokens");
  expect(serve + "--attention-backend --port 70000", 2, "--port: expected an integer");
  // Other names of what koho has.
  const Ran renamed = koho(run + "-n 3 --temp 0 -c 512 -t 1 -s 7 --no-thinking");
  EXPECT_EQ(renamed.exit_code, 0) << renamed.errors;
  EXPECT_NE(renamed.errors.find("cut after 3 tokens"), std::string::npos) << renamed.errors;
}

/// Start lines of vLLM's, SGLang's and llama.cpp's own guides to GLM-4.5, 4.6 and 4.7, but for the
/// program's name and the model's.
TEST_F(FirstHour, DocumentedStartLinesStartKohoOrNameTheFlag) {
  const std::string serve = "serve " + kModel + " --check --device cpu ";
  for (
      const std::string line :
      {"--tensor-parallel-size 2 --tool-call-parser glm45 --reasoning-parser glm45 "
       "--enable-auto-tool-choice",
       "--tensor-parallel-size 2 --tool-call-parser glm47 --reasoning-parser glm45 "
       "--enable-auto-tool-choice --served-model-name glm-4.7-fp8",
       "--tensor-parallel-size 2 --enable-expert-parallel --max-model-len=65536 "
       "--max-num-batched-tokens=32768 --gpu-memory-utilization=0.5",
       "--tp-size 2 --tool-call-parser glm47 --reasoning-parser glm45 --mem-fraction-static 0.5 "
       "--served-model-name glm-4.7-fp8 --host 127.0.0.1 --port 8000",
       "--jinja --n-gpu-layers 99 --threads -1 --ctx-size 16384 --flash-attn on --temp 1.0 "
       "--top-p "
       "0.95 --min-p 0.01 --seed 3407 --alias unsloth/GLM-4.7 --port 8001 --fit on",
       "--jinja -ngl 999 -c 32768 -np 4 -fa on",
       "--jinja -ngl 99 --threads -1 --ctx-size 16384 --seed 3407 --prio 3 --temp 1.0 --top-p 0.95 "
       "--min-p 0.01 --repeat-penalty 1.0 --cache-reuse 256 -cram 8192 --poll 50 --numa distribute",
       "--performance-mode throughput --async-scheduling --disable-hybrid-kv-cache-manager",
       "--tp-size 2 --trust-remote-code --enable-ep-moe",
       "--jinja -c 0 -fa on -ub 2048 -b 2048 --no-warmup --no-perf --fit on --fit-target 512"})
    expect(serve + line, 0, "are valid");
  for (const auto& [line, told] :
       {std::pair<std::string, std::string>(
            "--tensor-parallel-size 2 --speculative-config.method mtp "
            "--speculative-config.num_speculative_tokens 1 --tool-call-parser glm47",
            "--speculative-config.method mtp is not supported: koho has no speculative decoding"),
        {"--tp-size 2 --speculative-algorithm EAGLE --speculative-num-steps 3",
         "--speculative-algorithm EAGLE is not supported"},
        {"--jinja -ot '.ffn_.*_exps.=CPU'", "is not supported: all weights are on --device"},
        {"-hf unsloth/GLM-4.7-GGUF:Q4_K_XL --jinja", "reads no GGUF"},
        {"--jinja --rpc 10.0.0.2:50052", "koho runs on one machine"},
        {"--kt-weight-path m --kt-cpuinfer 100", "all weights are on --device"},
        {"--jinja --timeout 600", "--timeout 600 is not supported: a client that is slow"},
        {"--jinja --reasoning-budget 0", "enable_thinking"},
        {"--jinja -dev CUDA0", "--device cuda"},
        {"--revision v1", "the model's name has it: NAME@REVISION"}})
    expect(serve + line, 2, told);
}

TEST_F(FirstHour, APromptComesFromStandardInputToo) {
  const std::string run = "run " + kModel + " --device cpu --temperature 0 ";
  for (const std::string& words : {run, run + "-"}) {
    const Ran ran = koho(words, "What is the capital of France?\n");
    EXPECT_EQ(ran.exit_code, 0) << ran.errors;
    EXPECT_EQ(ran.output, "The capital of France is Paris.\n");
  }
  expect(run, 2, "no prompt");
}

TEST_F(FirstHour, ReasoningStaysOutOfAPipeUnlessAskedFor) {
  const std::string run = "run " + kModel + " " + kFrance;
  EXPECT_EQ(koho(run).output, "The capital of France is Paris.\n");
  EXPECT_EQ(koho(run + " --show-reasoning").output,
            "<think>The capital of France is Paris.</think>\nThe capital of France is Paris.\n");
  const Result<json::Value> answer = json::parse(koho(run + " --json").output);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(*answer->find("text")->string(), "The capital of France is Paris.");
  EXPECT_EQ(*answer->find("reasoning")->string(), "The capital of France is Paris.");
  EXPECT_EQ(answer->find("tool_calls")->array()->size(), 0U);
}

TEST_F(FirstHour, AnAnswerThatWasCutSaysSo) {
  const std::string run = "run " + kModel + " " + kFrance + " --ignore-eos ";
  EXPECT_NE(koho(run + "--max-tokens 5").errors.find("koho: cut after 5 tokens (--max-tokens"),
            std::string::npos);
  EXPECT_NE(koho(run + "--context 64").errors.find("koho: cut: the context of 64 tokens is full"),
            std::string::npos);
  EXPECT_EQ(koho("run " + kModel + " " + kFrance).errors.find("cut"), std::string::npos);
  EXPECT_NE(koho("run " + kModel + " " + kFrance + " --max-tokens 3").errors.find("all reasoning"),
            std::string::npos);
}

TEST_F(FirstHour, ToolCallsAreShownAndKeptApart) {
  write_file(
      directory_.path() / "tools.json",
      R"([{"type":"function","function":{"name":"get_weather","description":"Get the weather )"
      R"(in a city.","parameters":{"type":"object","properties":{"city":{"type":"string",)"
      R"("description":"The city."}},"required":["city"]}}},)"
      R"({"type":"function","function":{"name":"web_search","description":"Search the web.",)"
      R"("parameters":{"type":"object","properties":{"query":{"type":"string"}},)"
      R"("required":["query"]}}}])");
  const std::string run = "run " + kModel +
                          " 'What is the weather in Lisbon?' --device cpu --temperature 0 "
                          "--no-thinking --tools tools.json ";
  const Ran shown = koho(run);
  EXPECT_EQ(shown.exit_code, 0) << shown.errors;
  EXPECT_EQ(shown.output.find("tool call: get_weather({"), 0U) << shown.output;
  const Result<json::Value> answer = json::parse(koho(run + "--json").output);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(*answer->find("text")->string(), "");
  ASSERT_EQ(answer->find("tool_calls")->array()->size(), 1U);
  const json::Value& call = answer->find("tool_calls")->array()->front();
  EXPECT_EQ(*call.find("name")->string(), "get_weather");
  EXPECT_EQ(*call.find("arguments")->find("city")->string(), "Lisbon");
  write_file(directory_.path() / "bad.json", "{}");
  expect("run " + kModel + " hi --tools bad.json", 2, "must have a JSON array of tools");
}

TEST_F(FirstHour, ABatchHasReasoningAndTextApart) {
  write_file(directory_.path() / "in.jsonl",
             R"({"id":1,"messages":[{"role":"user","content":"What is the capital of France?"}]})"
             "\n"
             R"({"id":2,"prompt":"Once upon a time","max_tokens":3})"
             "\n");
  const Ran ran = koho("batch " + kModel + " in.jsonl - --device cpu --temperature 0");
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_NE(ran.output.find(R"("text":"The capital of France is Paris.","reasoning":)"
                            R"("The capital of France is Paris.","tool_calls":[])"),
            std::string::npos)
      << ran.output;
  EXPECT_NE(ran.errors.find("1 answers were cut"), std::string::npos) << ran.errors;
}

TEST_F(FirstHour, AChatFromAPipeTakesCommands) {
  setenv("HOME", directory_.path().c_str(), 1);
  const Ran ran = koho("chat " + kModel + " --device cpu --temperature 0",
                       "What is the capital of France?\n/set temperature 9\n/set max_tokens 3\n"
                       "/nonsense\n/sytem x\n/set temprature 1\n/set\n/regen\n"
                       "/save ~/talk.json\n/clear\n/load ~/talk.json\n/exit\n");
  EXPECT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_EQ(ran.output.substr(0, 32), "The capital of France is Paris.\n");
  for (const char* told :
       {"temperature", "max_tokens is 3", "unknown command /nonsense", "cut after 3 tokens",
        "did you mean /system?", "did you mean temperature?", "top_p 1 (the model's)",
        "temperature 0\n", "2 messages in ~/talk.json", "a new conversation",
        "2 messages from ~/talk.json"})
    EXPECT_NE(ran.errors.find(told), std::string::npos) << told << ": " << ran.errors;
  const Result<json::Value> saved = json::parse(read("talk.json"));
  ASSERT_TRUE(saved.ok());
  EXPECT_EQ(saved->find("messages")->array()->size(), 2U);
  // A block of lines is one message, and so is a line that goes on.
  const Ran lines = koho("chat " + kModel + " --device cpu --max-tokens 1",
                         "\"\"\"\none\ntwo\n\"\"\"\nthree \\\nfour\n/save lines.json\n");
  EXPECT_EQ(lines.exit_code, 0);
  const std::string text = read("lines.json");
  EXPECT_NE(text.find(R"("content":"one\ntwo")"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("content":"three \nfour")"), std::string::npos) << text;
}

TEST_F(FirstHour, OneExitCodeForOneKindOfErrorInEveryCommand) {
  for (const std::string command : {"run", "chat", "bench", "batch", "serve"}) {
    const std::string rest = command == "batch" ? " in.jsonl out.jsonl"
                             : command == "run" ? " hi"
                                                : "";
    write_file(directory_.path() / "in.jsonl", "");
    expect(command + " " + kModel + rest + " --no-such-flag", 2, "--no-such-flag");
    expect(command + " nowhere" + rest, 3, "nowhere is no directory");
    fs::create_directories(directory_.path() / "broken");
    write_file(directory_.path() / "broken/config.json", "{");
    write_file(directory_.path() / "broken/model.safetensors", "");
    write_file(directory_.path() / "broken/tokenizer.json", "{");
    EXPECT_EQ(koho(command + " broken" + rest).exit_code, 4) << command << read("err");
  }
}

TEST_F(FirstHour, ColorsAreOnlyWhereTheyAreWanted) {
  const std::string run = "run " + kModel + " " + kFrance;
  EXPECT_EQ(koho(run).output.find('\x1b'), std::string::npos);
  EXPECT_NE(koho(run + " --color always --show-reasoning").output.find("\x1b[2m"),
            std::string::npos);
  EXPECT_EQ(koho(run + " --color=never --show-reasoning").output.find('\x1b'), std::string::npos);
  expect(run + " --color purple", 2, "--color: expected auto, always or never, found 'purple'");
}

TEST_F(FirstHour, ACheckWarnsOfWhatWillNotWork) {
  const fs::path copy = directory_.path() / "no_text";
  fs::create_directory(copy);
  for (const fs::directory_entry& file : fs::directory_iterator(kModel))
    if (file.path().filename() != "tokenizer.json")
      fs::create_symlink(file.path(), copy / file.path().filename());
  expect("serve no_text --device cpu --check", 0,
         "warning: no tokenizer.json: /v1/chat/completions");
  expect("serve " + kModel + " --device cpu --kv-pages 16 --check", 0,
         "warning: requests above 1024 tokens will be refused");
  expect("serve " + kModel + " --device cpu --kv-pages 16000000 --check", 6, "this machine has");
  EXPECT_EQ(koho("serve " + kModel + " --device cpu --check").output.find("warning"),
            std::string::npos);
}

TEST_F(FirstHour, InspectSaysWhereTheModelFitsAndHowToServeIt) {
  const std::string config = KOHO_SOURCE_DIR "/tests/data/configs/glm-4.7-fp8.json";
  expect("inspect --config " + config, 0, "koho serve DIR --ranks 4\n");
  expect("inspect --config " + config + " --tp 8", 0, "koho serve DIR --ranks 8\n");
  // Four at once have been tried, eight have not.
  const std::string fits = koho("inspect --config " + config + " --gpu h100,h200").output;
  EXPECT_NE(fits.find("8 x H100 (80 GB), 597568 tokens of context in all, not tried on so many"),
            std::string::npos)
      << fits;
  EXPECT_NE(fits.find("4 x H200 (141 GB), 477632 tokens of context in all:\n"), std::string::npos)
      << fits;
  expect("inspect --config " + config + " --experts whole", 0,
         "koho serve DIR --ranks 4 --experts whole\n");
  expect("inspect --config " + config + " --gpu h100", 0, "8 x H100 (80 GB)");
  expect("inspect --config " + config + " --gpu-memory-gb 24", 0, "on none of the GPUs");
  expect("inspect " + kModel, 0, "koho serve " + kModel + " --device cpu");
  expect("inspect " + kModel + " --gpu voodoo", 2, "expected one of H100");
}

TEST_F(FirstHour, NextStepsAreNamedWhereAFirstTryEnds) {
  EXPECT_NE(koho("inspect zai-org/GLM-4.7-FP8").errors.find("inspect --config config/config.json"),
            std::string::npos);
  EXPECT_NE(koho("serve . --rank 2").errors.find("did you mean --ranks?"), std::string::npos);
  const Ran ran = koho("bench serve .");
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_NE(ran.errors.find("koho serve ."), std::string::npos) << ran.errors;
}

/// Whether this machine has the program.
bool has_program(const char* name) {
  return std::system(("command -v " + std::string(name) + " >/dev/null 2>&1").c_str()) == 0;
}

TEST_F(FirstHour, ShellsCompleteCommandsAndFlags) {
  const auto completed = [&](const std::string& words) {
    // The last word is the one that is completed.
    write("try.sh",
          "eval \"$('" KOHO_BINARY "' completion bash)\"\nCOMP_WORDS=(" + words +
              ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_koho\necho \"${COMPREPLY[*]}\"\n");
    EXPECT_EQ(sh("bash try.sh >out 2>err"), 0) << read("err");
    return " " + read("out");
  };
  EXPECT_NE(completed("koho se").find(" serve"), std::string::npos);
  EXPECT_NE(completed("koho serve --max-model").find(" --max-model-len"), std::string::npos);
  EXPECT_NE(completed("koho bench s").find(" serve"), std::string::npos);
  EXPECT_NE(completed("koho bench serve --goo").find(" --goodput"), std::string::npos);
  EXPECT_EQ(completed("koho run --goo").find(" --goodput"), std::string::npos);
  EXPECT_NE(completed("koho batch --kv-dtype f").find(" fp8"), std::string::npos);
  for (const char* shell : {"zsh", "fish"}) {
    const Ran ran = koho(std::string("completion ") + shell);
    ASSERT_EQ(ran.exit_code, 0) << ran.errors;
    EXPECT_NE(ran.output.find("max-model-len"), std::string::npos);
    EXPECT_NE(ran.output.find("goodput"), std::string::npos);
    if (!has_program(shell)) continue;
    EXPECT_EQ(sh(std::string(shell) + " -n out"), 0) << shell;
  }
  EXPECT_EQ(koho("completion tcsh").exit_code, 2);
}

TEST_F(FirstHour, TheManPageHasEveryCommandAndFlag) {
  const Ran ran = koho("help --man");
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_EQ(ran.output.rfind(".TH KOHO 1", 0), 0U);
  for (const char* says : {".SS koho run", ".SS koho serve", ".SS koho bench serve",
                           "\\fB\\-\\-max\\-model\\-len\\fR", "\\fB\\-\\-goodput\\fR"})
    EXPECT_NE(ran.output.find(says), std::string::npos) << says;
  if (!has_program("groff")) return;
  EXPECT_EQ(sh("groff -man -ww -Tutf8 out >shown 2>warned && test ! -s warned"), 0)
      << read("warned");
}

}  // namespace
}  // namespace koho::testing
