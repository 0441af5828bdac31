// SPDX-License-Identifier: Apache-2.0
// The requests are made from a seed; answers are compared bit for bit.
#include "tests/batch_invariance/requests.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "chat/json.h"
#include "chat/message.h"

namespace koho::testing {
namespace {

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : engine_(seed) {}
  std::int32_t in(std::int32_t low, std::int32_t high) {
    const auto span = static_cast<std::uint64_t>(high - low) + 1;
    return low + static_cast<std::int32_t>(engine_() % span);
  }
  bool chance(std::int32_t percent) { return in(0, 99) < percent; }

 private:
  std::mt19937_64 engine_;
};

/// The demonstration chats of the model.
std::vector<std::vector<Token>> chats(const Runtime& runtime) {
  const Result<std::string> file =
      read_file(KOHO_SOURCE_DIR "/models/tiny/prompts.json", std::size_t{1} << 20U);
  const Result<chat::Json> json = chat::parse_json(*file);
  std::vector<std::vector<Token>> prompts;
  for (const chat::Json& entry : json->find("prompts")->items) {
    const chat::Json* request = entry.find("request");
    if (request == nullptr || request->find("messages") == nullptr) continue;
    chat::Conversation conversation = *chat::read_conversation(*request);
    conversation.add_generation_prompt = true;
    prompts.push_back(*runtime.text()->encode(conversation));
  }
  return prompts;
}

std::vector<Token> random_ids(Draws& draw, std::int32_t count) {
  constexpr std::int32_t kTextTokens = 4000;  // the model's special tokens come after them
  std::vector<Token> ids;
  for (std::int32_t i = 0; i < count; ++i) ids.push_back(draw.in(0, kTextTokens - 1));
  return ids;
}

void draw_sampling(Draws& draw, Request& request) {
  SamplingParameters& sampling = request.sampling;
  sampling.seed = draw.in(0, 1 << 30);
  sampling.temperature = draw.chance(40) ? 0.0 : 0.1 * draw.in(5, 15);
  if (draw.chance(30)) sampling.top_p = 0.01 * draw.in(50, 99);
  if (draw.chance(30)) sampling.top_k = draw.in(1, 200);
  if (draw.chance(20)) sampling.min_p = 0.01 * draw.in(1, 20);
  if (draw.chance(30)) sampling.repetition_penalty = 1.0 + 0.1 * draw.in(1, 5);
  if (draw.chance(20)) sampling.frequency_penalty = 0.1 * draw.in(-5, 10);
  if (draw.chance(20)) sampling.presence_penalty = 0.1 * draw.in(-5, 10);
  if (draw.chance(90)) sampling.logprobs = draw.in(0, 20);
  if (draw.chance(15))
    sampling.logit_bias = {{draw.in(0, 3999), 4.0F}, {draw.in(0, 3999), -100.0F}};
}

std::uint32_t bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

/// One submitted request and what came of it so far.
struct Reading {
  std::shared_ptr<OutputStream> stream;
  Seen* seen = nullptr;  // null: a duplicate that will be cancelled
  std::size_t events = 0;
};

void note(Seen& seen, const OutputEvent& event) {
  ChoiceSeen& choice = seen[static_cast<std::size_t>(event.choice)];
  if (event.token >= 0) choice.ids.push_back(event.token);
  choice.logprobs.push_back(bits(event.logprob));
  for (const TokenLogprob& top : event.top)
    choice.alternatives.emplace_back(top.token, bits(top.logprob));
  choice.text += event.text;
  choice.finish = event.finish;
  choice.stop_token = event.stop_token;
  choice.stop_string = event.stop_string;
}

/// True once the stream is done.
bool read_all(Engine& engine, Reading& reading, OutputEvent& event) {
  constexpr std::size_t kDuplicateEvents = 3;
  while (true) {
    const OutputStream::Read read = reading.stream->poll(event);
    if (read == OutputStream::Read::nothing) return false;
    if (read == OutputStream::Read::done) break;
    ++reading.events;
    if (reading.seen != nullptr) note(*reading.seen, event);
    if (reading.seen == nullptr && reading.events == kDuplicateEvents)
      engine.cancel(reading.stream);
  }
  if (reading.seen == nullptr) return true;
  EXPECT_EQ(reading.stream->summary().ending, Ending::completed)
      << reading.stream->summary().error.message;
  return true;
}

}  // namespace

std::vector<Request> make_requests(const Runtime& runtime, std::size_t count, std::uint64_t seed) {
  Draws draw(seed);
  const std::vector<std::vector<Token>> chat_prompts = chats(runtime);
  EXPECT_GT(chat_prompts.size(), 8U);
  std::vector<std::vector<Token>> beginnings;
  for (const std::int32_t length : {63, 64, 65, 200, 400})
    beginnings.push_back(random_ids(draw, length));
  std::vector<Request> requests;
  for (std::size_t i = 0; i < count; ++i) {
    Request request = runtime.default_request();
    switch (i % 4) {
      case 0:
        request.prompt = chat_prompts[i / 4 % chat_prompts.size()];
        break;
      case 1: {
        const auto& beginning = beginnings[static_cast<std::size_t>(draw.in(0, 4))];
        request.prompt = beginning;
        for (const Token token : random_ids(draw, draw.in(0, 80))) request.prompt.push_back(token);
        break;
      }
      default:
        request.prompt = random_ids(draw, draw.chance(50) ? draw.in(1, 80) : draw.in(80, 600));
    }
    request.max_tokens = draw.chance(35) ? draw.in(100, 200) : draw.in(1, 30);
    if (draw.chance(40)) request.stop_tokens.clear();
    if (draw.chance(20)) request.min_tokens = draw.in(0, request.max_tokens);
    if (draw.chance(20)) request.stop_strings = {"the", " a b"};
    draw_sampling(draw, request);
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<Seen> answers(Runtime& runtime,
                          const std::vector<Request>& requests,
                          const ConcurrentLoad& load) {
  Engine& engine = runtime.engine();
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), 0U);
  Draws draw(99);
  if (load.shuffled)
    for (std::size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1],
                order[static_cast<std::size_t>(draw.in(0, static_cast<std::int32_t>(i) - 1))]);

  std::vector<Seen> seen(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i)
    seen[i].resize(static_cast<std::size_t>(requests[i].choices));
  std::vector<Reading> readings;
  const auto submit = [&](Request request, Seen* target) {
    Result<std::shared_ptr<OutputStream>> stream = engine.submit(std::move(request));
    ASSERT_TRUE(stream.ok()) << stream.error().message;
    readings.push_back({*stream, target, 0});
  };
  OutputEvent event;
  std::size_t next = 0;
  while (next < order.size() || !readings.empty()) {
    while (next < order.size() && readings.size() < load.in_flight) {
      const std::size_t index = order[next++];
      if (load.cancelled_duplicates && index % 3 == 0) {
        Request duplicate = requests[index];
        duplicate.sampling.seed = *duplicate.sampling.seed + 1;
        submit(std::move(duplicate), nullptr);
      }
      submit(requests[index], &seen[index]);
    }
    std::erase_if(readings, [&](Reading& reading) { return read_all(engine, reading, event); });
    if (::testing::Test::HasFatalFailure()) return seen;
    if (readings.empty()) continue;
    // Not to poll all the time.
    Reading& first = readings.front();
    if (first.stream->wait(event, 1000) == OutputStream::Read::event) {
      ++first.events;
      if (first.seen != nullptr) note(*first.seen, event);
    }
  }
  return seen;
}

}  // namespace koho::testing
