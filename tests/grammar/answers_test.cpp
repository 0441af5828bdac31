// SPDX-License-Identifier: Apache-2.0
// Constrained answers of the model in models/tiny, through the engine, at temperature 1. By default
// runs 10 of the 200 schemas; KOHO_GRAMMAR=all runs all of them, with up to 1,024 tokens each, and
// prints how many answers ended. KOHO_GRAMMAR_ANSWERS=FILE writes the answers for make_schemas.py
// --check.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/json_writer.h"
#include "base/mapped_file.h"
#include "chat/json.h"
#include "chat/output_parser.h"
#include "runtime/runtime.h"
#include "validator.h"

namespace koho {
namespace {

const std::string kRoot = KOHO_SOURCE_DIR;

struct Answer {
  std::vector<Token> ids;
  std::vector<std::string> pieces;
  std::string text;
  FinishReason finish = FinishReason::none;
  Summary summary;
};

Answer read(OutputStream& stream) {
  Answer answer;
  OutputEvent event;
  while (true) {
    const OutputStream::Read read = stream.wait(event, 1'000'000);
    if (read == OutputStream::Read::done) break;
    if (read == OutputStream::Read::nothing) continue;
    if (event.token >= 0) answer.ids.push_back(event.token);
    answer.pieces.push_back(event.text);
    answer.text += event.text;
    if (event.finish != FinishReason::none) answer.finish = event.finish;
  }
  answer.summary = stream.summary();
  return answer;
}

/// An answer as a client sees it, and its deviations from the format.
struct Parsed {
  chat::ParsedOutput output;
  chat::OutputParser::Counts counts;
};

Parsed parse(const Answer& answer,
             const std::shared_ptr<const chat::ToolSchemas>& tools,
             bool thinking,
             const Tokenizer& tokenizer) {
  chat::OutputParserOptions options;
  options.starts_in_reasoning = thinking;
  options.tools = tools;
  for (std::size_t tag = 0; tag < options.tag_ids.size(); ++tag)
    options.tag_ids[tag] = tokenizer.id_of(tag_text(static_cast<chat::Tag>(tag))).value_or(-1);
  chat::OutputParser parser(options);
  std::vector<chat::OutputEvent> events;
  for (std::size_t t = 0; t < answer.ids.size(); ++t)
    parser.feed_token(answer.ids[t], answer.pieces[t], events);
  parser.finish(chat::AnswerEnd::finished, events);
  Parsed parsed;
  for (const chat::OutputEvent& event : events) parsed.output.add(event);
  parsed.counts = parser.counts();
  return parsed;
}

std::shared_ptr<const chat::ToolSchemas> schemas_of(const std::vector<ToolGrammar>& tools) {
  std::vector<chat::Json> declared;
  for (const ToolGrammar& tool : tools)
    declared.push_back(*chat::parse_json(
        R"({"type":"function","function":{"name":")" + tool.name + R"(","parameters":)" +
        (tool.parameters.empty() ? "{}" : tool.parameters) + "}}"));
  return std::make_shared<const chat::ToolSchemas>(declared);
}

class ConstrainedAnswers : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    RuntimeOptions options;
    options.sequences_max = 16;
    options.context_max = 2048;
    options.grammars.compile_us_max = 60'000'000;
    options.grammars.step_us_max = 10'000'000;  // the machine may be busy
    Result<std::unique_ptr<Runtime>> started = Runtime::start(kRoot + "/models/tiny", options);
    ASSERT_TRUE(started.ok()) << started.error().message;
    runtime_ = std::move(started).value().release();
  }
  static void TearDownTestSuite() {
    delete runtime_;
    runtime_ = nullptr;
  }

  static Request request(const std::string& question, bool thinking, int tokens_max) {
    chat::Conversation conversation;
    conversation.add_generation_prompt = true;
    conversation.enable_thinking = thinking;
    chat::Message message;
    message.role = "user";
    message.content = chat::Json::string(question);
    conversation.messages.push_back(message);
    Request made = runtime_->default_request();
    made.prompt = *runtime_->text()->encode(conversation);
    made.starts_in_reasoning = made.prompt.back() == made.reasoning_begin;
    made.sampling.temperature = 1.0;
    made.sampling.top_p = 1.0;
    made.sampling.top_k = 0;
    made.max_tokens = tokens_max;
    return made;
  }

  static Result<std::shared_ptr<OutputStream>> submit(Request made, Constraint constraint) {
    KOHO_TRY_ASSIGN(made.grammar, runtime_->grammars().compile(std::move(constraint)));
    return runtime_->engine().submit(std::move(made));
  }

  static Runtime* runtime_;
};
Runtime* ConstrainedAnswers::runtime_ = nullptr;

TEST_F(ConstrainedAnswers, AreValidWheneverTheyEndByThemselves) {
  const bool all = std::getenv("KOHO_GRAMMAR") != nullptr;
  const Result<std::string> file = read_file(kRoot + "/tests/grammar/data/schemas.json", 1U << 24U);
  ASSERT_TRUE(file.ok());
  const Result<json::Value> schemas = json::parse(*file);
  ASSERT_TRUE(schemas.ok());
  std::vector<std::string> lines;
  for (std::size_t at = file->find('\n') + 1; at < file->size(); at = file->find('\n', at) + 1) {
    std::string line = file->substr(at, file->find('\n', at) - at);
    if (line.ends_with(',')) line.pop_back();
    if (line != "]") lines.push_back(line);
  }
  ASSERT_EQ(lines.size(), 200U);
  std::ofstream kept;
  if (const char* path = std::getenv("KOHO_GRAMMAR_ANSWERS")) kept.open(path);

  const std::size_t step = all ? 1 : 20;
  std::vector<std::pair<std::size_t, std::shared_ptr<OutputStream>>> streams;
  for (std::size_t i = 0; i < lines.size(); i += step) {
    Request made =
        request("Answer in JSON, please: tell me about a city.", false, all ? 1024 : 192);
    made.sampling.seed = static_cast<std::int64_t>(i);
    auto stream = submit(std::move(made), Constraint::json_schema(lines[i]));
    ASSERT_TRUE(stream.ok()) << i << ": " << stream.error().message;
    streams.emplace_back(i, *stream);
  }
  int stopped = 0;
  std::size_t tokens = 0;
  for (const auto& [i, stream] : streams) {
    const Answer answer = read(*stream);
    ASSERT_EQ(answer.summary.ending, Ending::completed) << answer.summary.error.message;
    tokens += answer.ids.size();
    if (answer.finish != FinishReason::stop) continue;
    ++stopped;
    const Result<json::Value> value = json::parse(answer.text);
    // Valid JSON that the parser refuses: an integer beyond 64 bits.
    if (!value.ok() && value.error().reason == ErrorReason::beyond_64_bits) continue;
    ASSERT_TRUE(value.ok()) << i << ": " << value.error().message << "\n" << answer.text;
    EXPECT_EQ(testing::validate_json((*schemas->array())[i], *value), "")
        << i << ": " << lines[i] << "\n"
        << answer.text;
    if (kept.is_open()) {
      std::string text;
      append_json_string(text, answer.text);
      kept << "{\"schema\":" << i << ",\"text\":" << text << "}\n";
    }
  }
  std::printf("%zu schemas: %d answers ended by themselves, %zu tokens\n", streams.size(), stopped,
              tokens);
  EXPECT_GE(stopped * 10, static_cast<int>(streams.size()) * (all ? 9 : 5));
}

TEST_F(ConstrainedAnswers, BeginAfterTheReasoning) {
  for (const bool thinking : {true, false}) {
    Request made = request("What is 2 + 3?", thinking, 256);
    made.sampling.seed = 7;
    const Token end = made.reasoning_end;
    auto stream = submit(std::move(made), Constraint::regex("\\{[0-9]{4}\\}"));
    ASSERT_TRUE(stream.ok()) << stream.error().message;
    const Answer answer = read(**stream);
    ASSERT_EQ(answer.summary.ending, Ending::completed) << answer.summary.error.message;
    ASSERT_EQ(answer.finish, FinishReason::stop) << answer.text;
    const auto closing = std::ranges::find(answer.ids, end);
    EXPECT_EQ(closing != answer.ids.end(), thinking);
    EXPECT_EQ(answer.summary.usage.reasoning_tokens > 0, thinking);
    const std::string rest =
        thinking ? answer.text.substr(answer.text.find("</think>") + 8) : answer.text;
    EXPECT_EQ(rest.size(), 6U) << answer.text;
    EXPECT_TRUE(rest.starts_with("{") && rest.ends_with("}")) << answer.text;
  }
}

TEST_F(ConstrainedAnswers, EachChoiceFollowsTheGrammarOnItsOwn) {
  Request made = request("Yes or no?", false, 64);
  made.choices = 5;
  auto stream = submit(std::move(made), Constraint::choice({"yes indeed", "no thanks"}));
  ASSERT_TRUE(stream.ok());
  std::vector<std::string> texts(5);
  OutputEvent event;
  while (true) {
    const OutputStream::Read read = (*stream)->wait(event, 1'000'000);
    if (read == OutputStream::Read::done) break;
    if (read == OutputStream::Read::event)
      texts[static_cast<std::size_t>(event.choice)] += event.text;
  }
  for (const std::string& text : texts)
    EXPECT_TRUE(text == "yes indeed" || text == "no thanks") << text;
}

TEST_F(ConstrainedAnswers, EndWithoutAStopTokenWhereNothingMayFollow) {
  Request made = request("Yes or no?", false, 64);
  made.stop_tokens.clear();
  auto stream = submit(std::move(made), Constraint::choice({"yes indeed"}));
  ASSERT_TRUE(stream.ok());
  const Answer answer = read(**stream);
  EXPECT_EQ(answer.text, "yes indeed");
  EXPECT_EQ(answer.finish, FinishReason::stop);
}

TEST_F(ConstrainedAnswers, ForcedToolCallsParseWithValidArguments) {
  const std::string weather =
      R"({"type":"object","properties":{"city":{"type":"string","maxLength":20},"days":{"type":"integer","minimum":1,"maximum":9},)"
      R"("unit":{"enum":["celsius","fahrenheit"]},"where":{"type":"object","properties":{"lat":{"type":"number","minimum":-90,"maximum":90}},)"
      R"("required":["lat"]}},"required":["city","days"]})";
  const std::vector<ToolGrammar> tools{{"get_weather", weather, true}, {"get_time", "", true}};
  const auto schemas = schemas_of(tools);
  const Result<json::Value> schema = json::parse(weather);
  int with_arguments = 0;
  for (int i = 0; i < 12; ++i) {
    const bool named = i % 2 == 0;
    const bool thinking = i % 3 == 0;
    Constraint constraint = Constraint::tool_calls(
        named ? std::vector<ToolGrammar>{tools[0]} : tools,
        named ? Constraint::Calls::exactly_one : Constraint::Calls::at_least_one);
    constraint.one_call = i % 4 == 1;
    Request made = request("What is the weather in Paris?", thinking, 400);
    made.sampling.seed = i;
    auto stream = submit(std::move(made), constraint);
    ASSERT_TRUE(stream.ok()) << stream.error().message;
    const Answer answer = read(**stream);
    ASSERT_EQ(answer.summary.ending, Ending::completed) << answer.summary.error.message;
    if (answer.finish != FinishReason::stop) continue;  // the tiny model may ramble

    const auto [output, counts] = parse(answer, schemas, thinking, runtime_->text()->tokenizer);
    EXPECT_EQ(output.content, "");
    ASSERT_GE(output.calls.size(), 1U) << answer.text;
    if (named || constraint.one_call) {
      EXPECT_EQ(output.calls.size(), 1U) << answer.text;
    }
    for (const chat::ParsedOutput::Call& call : output.calls) {
      EXPECT_TRUE(call.complete);
      const Result<json::Value> arguments = json::parse(call.arguments);
      ASSERT_TRUE(arguments.ok()) << call.arguments;
      if (call.name != "get_weather") {
        EXPECT_EQ(call.arguments, "{}");
        continue;
      }
      ++with_arguments;
      EXPECT_EQ(testing::validate_json(*schema, *arguments), "") << call.arguments;
    }
    EXPECT_EQ(counts.unknown_tools + counts.malformed_calls + counts.mended_calls, 0U)
        << answer.text;
  }
  EXPECT_GE(with_arguments, 4);
}

TEST_F(ConstrainedAnswers, FollowTheFormatOrCallTools) {
  const std::string format =
      R"({"type":"object","properties":{"city":{"type":"string","maxLength":12},"warm":{"type":"boolean"}},"required":["city"]})";
  const std::string weather =
      R"({"type":"object","properties":{"city":{"type":"string","maxLength":12},"days":{"type":"integer","minimum":1,"maximum":9}},)"
      R"("required":["city","days"]})";
  const std::vector<ToolGrammar> tools{
      {"get_weather", weather, true},
      {"get_time", R"({"type":"object","properties":{"zone":{"type":"string"}}})", false}};
  const auto schemas = schemas_of(tools);
  const Result<json::Value> format_schema = json::parse(format);
  const Result<json::Value> weather_schema = json::parse(weather);
  const Constraint constraint =
      Constraint::union_of({Constraint::json_schema(format),
                            Constraint::tool_calls(tools, Constraint::Calls::instead_of_text)});
  std::vector<std::shared_ptr<OutputStream>> streams;
  for (int i = 0; i < 16; ++i) {
    Request made = request(i % 2 == 0 ? "What is the weather in Paris?"
                                      : "Give me a JSON object with name = Anna and city = Rome.",
                           i % 3 == 0, 120);
    made.sampling.seed = i;
    made.reasoning_banned = *runtime_->text()->tokenizer.id_of("<tool_call>");
    auto stream = submit(std::move(made), constraint);
    ASSERT_TRUE(stream.ok()) << stream.error().message;
    streams.push_back(*stream);
  }
  int in_format = 0;
  int calling = 0;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const Answer answer = read(*streams[i]);
    ASSERT_EQ(answer.summary.ending, Ending::completed) << answer.summary.error.message;
    if (answer.finish != FinishReason::stop) continue;
    const auto [output, counts] = parse(answer, schemas, i % 3 == 0, runtime_->text()->tokenizer);
    EXPECT_EQ(counts.unknown_tools + counts.malformed_calls + counts.mended_calls, 0U)
        << answer.text;
    if (output.calls.empty()) {
      ++in_format;
      const Result<json::Value> value = json::parse(output.content);
      ASSERT_TRUE(value.ok()) << answer.text;
      EXPECT_EQ(testing::validate_json(*format_schema, *value), "") << answer.text;
      continue;
    }
    ++calling;
    EXPECT_EQ(output.content, "") << answer.text;
    for (const chat::ParsedOutput::Call& call : output.calls) {
      EXPECT_TRUE(call.complete);
      const Result<json::Value> arguments = json::parse(call.arguments);
      ASSERT_TRUE(arguments.ok()) << call.arguments;
      if (call.name == "get_weather") {
        EXPECT_EQ(testing::validate_json(*weather_schema, *arguments), "") << call.arguments;
      }
    }
  }
  std::printf("%d answers in the format, %d with calls\n", in_format, calling);
  EXPECT_GE(in_format, 3);
  EXPECT_GE(calling, 1);
}

}  // namespace
}  // namespace koho
