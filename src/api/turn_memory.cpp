// SPDX-License-Identifier: Apache-2.0
#include "api/turn_memory.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <xxhash.h>

#include "chat/prompt_tokens.h"
#include "chat/python_text.h"

namespace koho::api {
namespace {

using chat::Json;

constexpr std::string_view kAssistant = "<|assistant|>";
constexpr std::string_view kTurnTokens[] = {kAssistant, "<|user|>", "<|observation|>",
                                            "<|system|>"};

/// An incremental hash whose value can be read at every position.
class RunningHash {
 public:
  RunningHash() : state_(XXH3_createState()) { XXH3_128bits_reset(state_.get()); }
  void add(const void* data, std::size_t bytes) { XXH3_128bits_update(state_.get(), data, bytes); }
  void add(std::string_view text) {
    const std::uint64_t size = text.size();
    add(&size, sizeof(size));
    add(text.data(), text.size());
  }
  void add(std::span<const Token> ids) { add(ids.data(), ids.size_bytes()); }
  void add(const TurnKey& key) { add(&key, sizeof(key)); }
  TurnKey value() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return {.low = hash.low64, .high = hash.high64};
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

/// Adds a value in a canonical form, with sorted keys and numbers by value: clients re-serialise
/// arguments. Not through a text, which would take several times the memory of the value.
void add_canonical(RunningHash& hash, const Json& value) {
  const std::uint64_t head[] = {static_cast<std::uint64_t>(value.kind), value.items.size()};
  hash.add(head, sizeof(head));
  switch (value.kind) {
    case Json::Kind::null:
      return;
    case Json::Kind::boolean:
      return hash.add(value.boolean ? "true" : "false");
    case Json::Kind::number: {
      const std::optional<double> number = value.as_number();
      constexpr double kExact = 9007199254740992.0;  // 2^53
      const bool whole = number && std::trunc(*number) == *number && std::abs(*number) < kExact;
      return hash.add(whole ? std::to_string(static_cast<std::int64_t>(*number)) : value.text);
    }
    case Json::Kind::string:
    case Json::Kind::token_ids:
      return hash.add(value.text);
    case Json::Kind::array:
      for (const Json& item : value.items) add_canonical(hash, item);
      return;
    case Json::Kind::object: {
      std::vector<std::size_t> order(value.keys.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::ranges::sort(order, {}, [&value](std::size_t i) { return value.keys[i]; });
      for (const std::size_t i : order) {
        hash.add(value.keys[i]);
        add_canonical(hash, value.items[i]);
      }
      return;
    }
  }
}

struct Call {
  std::string_view name;
  const Json& arguments;
};

TurnKey key_of(const TurnKey& before,
               std::string_view reasoning,
               std::string_view content,
               const std::vector<Call>& calls) {
  RunningHash hash;
  hash.add(before);
  hash.add(chat::python_strip(reasoning));
  hash.add(chat::python_strip(content));
  for (const Call& call : calls) {
    hash.add(call.name);
    add_canonical(hash, call.arguments);
  }
  return hash.value();
}

TurnKey key_of(const TurnKey& before, const chat::Message& message, bool with_reasoning) {
  std::vector<Call> calls;
  for (const chat::ToolCall& call : message.tool_calls)
    calls.push_back({call.name, call.arguments});
  return key_of(before, with_reasoning ? message.reasoning_content.value_or("") : "",
                chat::visible_text(message.content), calls);
}

bool is_turn_token(const chat::Segment& segment) {
  return segment.kind == chat::Segment::Kind::control &&
         std::ranges::find(kTurnTokens, segment.text) != std::end(kTurnTokens);
}

}  // namespace

Result<EncodedTurns> TurnMemory::encode(const chat::Conversation& conversation,
                                        const chat::Prompt& prompt,
                                        chat::TemplateStyle style,
                                        const TurnScope& scope,
                                        const Tokenizer& tokenizer,
                                        std::size_t ids_max) {
  const std::vector<chat::Message>& messages = conversation.messages;
  std::size_t last_user = 0;
  std::vector<std::size_t> answers;  // messages of the assistant
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == "user") last_user = i;
    if (messages[i].role == "assistant") answers.push_back(i);
  }
  const bool keeps_all =
      style == chat::TemplateStyle::glm_4_7 && conversation.clear_thinking == false;

  EncodedTurns encoded;
  RunningHash hash;
  hash.add(&scope.salt, sizeof(scope.salt));
  hash.add(&scope.key, sizeof(scope.key));
  const std::span<const chat::Segment> all = prompt.segments;
  std::size_t turn = 0;
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = begin + 1;
    while (end < all.size() && !is_turn_token(all[end])) ++end;
    const std::span<const chat::Segment> piece = all.subspan(begin, end - begin);
    begin = end;
    const bool is_answer = is_turn_token(piece.front()) && piece.front().text == kAssistant;
    std::shared_ptr<const Turn> known;
    if (is_answer && turn < answers.size()) {
      const chat::Message& message = messages[answers[turn]];
      const bool keeps = keeps_all || answers[turn] > last_user;
      known = find(key_of(hash.value(), message, keeps));
      if (known && known->has_reasoning && !keeps) known.reset();
    }
    if (known) {
      encoded.ids.insert(encoded.ids.end(), known->ids.begin(), known->ids.end());
      encoded.total += known->ids.size();
      hash.add(known->ids);
      ++encoded.turns_replayed;
      ++turn;
      continue;
    }
    const std::size_t room = ids_max - std::min(encoded.ids.size(), ids_max);
    std::size_t count = 0;
    KOHO_TRY_ASSIGN(const std::vector<Token> ids, chat::encode(piece, tokenizer, room, count));
    encoded.total += count;
    if (is_answer && turn == answers.size())
      encoded.place = {.before = hash.value(), .opening = ids};
    if (is_answer) ++turn;
    hash.add(ids);
    encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
  }
  const std::scoped_lock lock(mutex_);
  replayed_ += static_cast<std::uint64_t>(encoded.turns_replayed);
  return encoded;
}

void TurnMemory::remember(const TurnPlace& place,
                          const chat::ParsedOutput& answer,
                          std::span<const Token> sampled) {
  if (place.opening.empty() || sampled.empty()) return;
  std::vector<Json> arguments;
  arguments.reserve(answer.calls.size());
  std::vector<Call> calls;
  for (const chat::ParsedOutput::Call& call : answer.calls) {
    Result<Json> parsed = chat::parse_json(call.arguments);
    if (!parsed.ok()) return;
    arguments.push_back(std::move(*parsed));
    calls.push_back({call.name, arguments.back()});
  }
  auto turn = std::make_shared<Turn>();
  turn->has_reasoning = !chat::python_strip(answer.reasoning).empty();
  turn->ids = place.opening;
  turn->ids.insert(turn->ids.end(), sampled.begin(), sampled.end());
  const std::scoped_lock lock(mutex_);
  ++remembered_;
  insert(key_of(place.before, answer.reasoning, answer.content, calls), turn, place.client);
  // A second entry for clients that send the answer back without its reasoning.
  if (turn->has_reasoning)
    insert(key_of(place.before, "", answer.content, calls), turn, place.client);
}

TurnMemory::Counts TurnMemory::counts() const {
  const std::scoped_lock lock(mutex_);
  return {.remembered = remembered_, .replayed = replayed_, .tokens = tokens_};
}

std::shared_ptr<const TurnMemory::Turn> TurnMemory::find(const TurnKey& key) {
  const std::scoped_lock lock(mutex_);
  const auto found = index_.find(key);
  if (found == index_.end()) return nullptr;
  std::list<Entry>& entries = clients_[found->second->client].entries;
  entries.splice(entries.begin(), entries, found->second);
  return found->second->turn;
}

std::size_t TurnMemory::cost(const Turn& turn) {
  constexpr std::size_t kEntryTokens = 64;  // an entry's overhead is about that of so many ids
  return turn.ids.size() + kEntryTokens;
}

void TurnMemory::insert(const TurnKey& key,
                        const std::shared_ptr<const Turn>& turn,
                        std::uint64_t client) {
  if (const auto found = index_.find(key); found != index_.end()) erase(found->second);
  Client& own = clients_[client];
  own.entries.push_front({key, turn, client});
  own.tokens += cost(*turn);
  tokens_ += cost(*turn);
  index_.emplace(key, own.entries.begin());
  while (tokens_ > tokens_max_) {
    const auto most =
        std::ranges::max_element(clients_, {}, [](const auto& one) { return one.second.tokens; });
    erase(std::prev(most->second.entries.end()));
  }
}

void TurnMemory::erase(std::list<Entry>::iterator entry) {
  const auto client = clients_.find(entry->client);
  client->second.tokens -= cost(*entry->turn);
  tokens_ -= cost(*entry->turn);
  index_.erase(entry->key);
  client->second.entries.erase(entry);
  if (client->second.entries.empty()) clients_.erase(client);
}

}  // namespace koho::api
