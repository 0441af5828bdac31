// SPDX-License-Identifier: Apache-2.0
// Limits are token buckets that hold a minute's worth: full at first, refilled evenly.
#include "server/api_keys.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <unordered_set>
#include <xxhash.h>

#include <fmt/format.h>

#include "chat/json.h"

namespace koho::server {
namespace {

constexpr std::uint64_t kOwnerSeed = 0x6b6f686f;  // apart from hash() and the client
constexpr double kUsPerMinute = 60e6;

/// Takes the same time wherever the two differ, so that timing tells nothing about the key.
bool equal_in_constant_time(std::string_view given, std::string_view key) {
  bool differs = given.size() != key.size();
  for (std::size_t i = 0; i < given.size(); ++i)
    differs = differs | (key.empty() || given[i] != key[i % key.size()]);
  return !differs;
}

std::uint64_t private_hash(std::string_view secret) {
  static const std::uint64_t seed = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32U) | device();
  }();
  return XXH3_64bits_withSeed(secret.data(), secret.size(), seed);
}

/// As OpenAI writes it: "120ms", "7s", "6m0s".
std::string duration_text(std::int64_t us) {
  const std::int64_t ms = (us + 999) / 1000;
  if (ms < 1000) return fmt::format("{}ms", ms);
  const std::int64_t seconds = (ms + 999) / 1000;
  if (seconds < 60) return fmt::format("{}s", seconds);
  return fmt::format("{}m{}s", seconds / 60, seconds % 60);
}

Status read_limit(const chat::Json& value,
                  const std::string& path,
                  std::int64_t most,
                  std::int64_t& out) {
  const std::optional<std::int64_t> number = value.as_integer();
  if (!number || *number < 0 || *number > most)
    return make_error(ErrorCode::invalid_argument, "{} must be an integer in 0..{}", path, most);
  out = *number;
  return {};
}

Status read_text(const chat::Json& value, const std::string& path, std::string& out) {
  constexpr std::size_t kBytesMax = 1024;
  if (!value.is_string() || value.text.empty() || value.text.size() > kBytesMax)
    return make_error(ErrorCode::invalid_argument, "{} must be a string of 1..{} bytes", path,
                      kBytesMax);
  out = value.text;
  return {};
}

Result<ApiKeySettings> parse_key(const chat::Json& json, const std::string& path) {
  constexpr std::int64_t kMany = std::numeric_limits<std::int32_t>::max();
  if (!json.is_object()) return chat::wrong_kind(path, "an object", &json);
  ApiKeySettings key;
  for (std::size_t i = 0; i < json.keys.size(); ++i) {
    const std::string& name = json.keys[i];
    const chat::Json& value = json.items[i];
    const std::string member = fmt::format("{}.{:.40}", path, name);
    if (name == "key") {
      KOHO_TRY(read_text(value, member, key.secret));
    } else if (name == "name") {
      KOHO_TRY(read_text(value, member, key.name));
    } else if (name == "cache_salt") {
      KOHO_TRY(read_text(value, member, key.cache_salt));
    } else if (name == "requests_at_once") {
      KOHO_TRY(read_limit(value, member, kMany, key.requests_at_once));
    } else if (name == "requests_per_minute") {
      KOHO_TRY(read_limit(value, member, kMany, key.requests_per_minute));
    } else if (name == "tokens_per_minute") {
      KOHO_TRY(read_limit(value, member, kMany * 1000, key.tokens_per_minute));
    } else if (name == "file_bytes") {
      KOHO_TRY(read_limit(value, member, std::numeric_limits<std::int64_t>::max(), key.file_bytes));
    } else if (name == "priority") {
      std::int64_t priority = 0;
      KOHO_TRY(read_limit(value, member, kPriorities - 1, priority));
      key.priority = static_cast<std::int32_t>(priority);
    } else {
      return make_error(ErrorCode::invalid_argument,
                        "{} is unknown: expected key, name, requests_at_once, requests_per_minute, "
                        "tokens_per_minute, file_bytes, priority or cache_salt",
                        member);
    }
  }
  if (key.secret.empty()) return make_error(ErrorCode::invalid_argument, "{}.key is missing", path);
  return key;
}

}  // namespace

Result<std::vector<ApiKeySettings>> parse_api_keys(std::string_view text) {
  KOHO_TRY_ASSIGN(const chat::Json json, chat::parse_json(text));
  const chat::Json* list = json.is_object() ? json.find("keys") : &json;
  if (list == nullptr || !list->is_array() || (json.is_object() && json.keys.size() > 1))
    return make_error(ErrorCode::invalid_argument,
                      "expected {{\"keys\": [...]}} or an array of keys");
  std::vector<ApiKeySettings> keys;
  std::unordered_set<std::string> secrets;
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    const std::string path = fmt::format("keys[{}]", i);
    KOHO_TRY_ASSIGN(ApiKeySettings key, parse_key(list->items[i], path));
    if (!secrets.insert(key.secret).second)
      return make_error(ErrorCode::invalid_argument, "{}.key stands there twice", path);
    keys.push_back(std::move(key));
  }
  return keys;
}

void ApiKey::Allowance::refill(std::int64_t per_minute, std::int64_t now_us) {
  const auto most = static_cast<double>(per_minute);
  const auto passed = static_cast<double>(std::max<std::int64_t>(now_us - at_us, 0));
  left = std::min(most, left + most * passed / kUsPerMinute);
  at_us = std::max(at_us, now_us);
}

std::int64_t ApiKey::Allowance::wait_us(double wanted, std::int64_t per_minute) const {
  if (per_minute == 0 || left >= wanted) return 0;
  return static_cast<std::int64_t>(
      std::ceil((wanted - left) * kUsPerMinute / static_cast<double>(per_minute)));
}

ApiKey::ApiKey(ApiKeySettings settings) : secret_(settings.secret), settings_(std::move(settings)) {
  const std::uint64_t hash = XXH3_64bits(secret_.data(), secret_.size());
  // Half of it: a hash that is not made for secrets must not tell a short one.
  hash_ = fmt::format("{:08x}", hash >> 32U);
  client_ = hash == 0 ? 1 : hash;
  owner_ = fmt::format("{:016x}",
                       XXH3_128bits_withSeed(secret_.data(), secret_.size(), kOwnerSeed).high64);
  requests_.left = static_cast<double>(settings_.requests_per_minute);
  tokens_.left = static_cast<double>(settings_.tokens_per_minute);
}

void ApiKey::refill(std::int64_t now_us) {
  requests_.refill(settings_.requests_per_minute, now_us);
  tokens_.refill(settings_.tokens_per_minute, now_us);
}

api::Refusal ApiKey::refuse(std::string message, std::int64_t wait_us) {
  ++usage_.refused;
  const std::int64_t seconds = std::max<std::int64_t>((wait_us + 999'999) / 1'000'000, 1);
  return api::ApiError{.status = 429,
                       .code = "rate_limit_exceeded",
                       .param = {},
                       .message = std::move(message),
                       .retry_after_s = static_cast<std::int32_t>(std::min<std::int64_t>(
                           seconds, std::numeric_limits<std::int32_t>::max()))};
}

api::Refusal ApiKey::begin(std::int64_t now_us) {
  const std::lock_guard lock(mutex_);
  refill(now_us);
  if (settings_.requests_at_once > 0 && usage_.live >= settings_.requests_at_once)
    return refuse(fmt::format("Rate limit reached for this API key on requests at once: limit {}, "
                              "used {}. Please try again when one has ended.",
                              settings_.requests_at_once, usage_.live),
                  0);
  if (settings_.requests_per_minute > 0) {
    if (const std::int64_t wait = requests_.wait_us(1, settings_.requests_per_minute); wait > 0)
      return refuse(fmt::format("Rate limit reached for this API key on requests per min (RPM): "
                                "limit {}. Please try again in {}.",
                                settings_.requests_per_minute, duration_text(wait)),
                    wait);
    // A key whose minute is used up is refused before its body is read.
    requests_.left -= 1;
  }
  ++usage_.requests;
  ++usage_.live;
  return {};
}

api::Refusal ApiKey::take_tokens(std::int64_t prompt,
                                 std::int64_t answer,
                                 std::int64_t now_us,
                                 bool* limited) {
  const std::lock_guard lock(mutex_);
  refill(now_us);
  if (limited != nullptr) *limited = settings_.tokens_per_minute > 0;
  if (const std::int64_t limit = settings_.tokens_per_minute; limit > 0) {
    const std::int64_t tokens = prompt + answer;
    const auto wanted = static_cast<double>(std::min(tokens, limit));
    if (const std::int64_t wait = tokens_.wait_us(wanted, limit); wait > 0)
      return refuse(
          fmt::format(
              "Rate limit reached for this API key on tokens per min (TPM): limit {}, used "
              "{}, requested {}. Please try again in {}.",
              limit,
              static_cast<std::int64_t>(std::ceil(static_cast<double>(limit) - tokens_.left)),
              tokens, duration_text(wait)),
          wait);
    tokens_.left -= static_cast<double>(tokens);
  }
  usage_.prompt_tokens += static_cast<std::uint64_t>(prompt);
  return {};
}

void ApiKey::give_back(std::int64_t tokens, bool limited) {
  const std::lock_guard lock(mutex_);
  if (limited && settings_.tokens_per_minute > 0) tokens_.left += static_cast<double>(tokens);
  usage_.prompt_tokens -= static_cast<std::uint64_t>(tokens);
}

void ApiKey::forgive(std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  if (settings_.requests_per_minute > 0) requests_.left += 1;
  if (settings_.tokens_per_minute > 0) tokens_.left += static_cast<double>(tokens);
}

void ApiKey::add_generated(bool taken, std::int64_t now_us) {
  const std::lock_guard lock(mutex_);
  refill(now_us);
  if (settings_.tokens_per_minute > 0 && !taken) tokens_.left -= 1;
  ++usage_.generated_tokens;
}

void ApiKey::end(std::int64_t unused) {
  const std::lock_guard lock(mutex_);
  if (settings_.tokens_per_minute > 0) tokens_.left += static_cast<double>(unused);
  --usage_.live;
}

void ApiKey::apply(api::GenerationRequest& whole) const {
  const std::lock_guard lock(mutex_);
  whole.key = client_;
  Request& request = whole.base;
  request.client = client_;
  request.priority = std::max(request.priority, settings_.priority);
  if (settings_.cache_salt.empty()) return;
  // Behind the key's salt, the request's own separates further.
  std::string both = settings_.cache_salt;
  both.append(reinterpret_cast<const char*>(&request.salt), sizeof request.salt);
  const XXH128_hash_t hash = XXH3_128bits(both.data(), both.size());
  request.salt = {.low = hash.low64, .high = hash.high64};
}

bool ApiKey::has_limits() const {
  const std::lock_guard lock(mutex_);
  return settings_.requests_at_once > 0 || settings_.requests_per_minute > 0 ||
         settings_.tokens_per_minute > 0;
}

std::vector<std::pair<std::string_view, std::string>> ApiKey::fields(std::int64_t now_us) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::string_view, std::string>> fields;
  const auto add = [&fields](std::string_view name, std::string value) {
    fields.emplace_back(name, std::move(value));
  };
  using Names = std::array<std::string_view, 3>;  // limit, remaining, reset
  const auto add_minute = [&](const Names& names, Allowance allowance, std::int64_t limit) {
    allowance.refill(limit, now_us);
    const auto left = static_cast<std::int64_t>(std::floor(allowance.left + 1e-6));
    add(names[0], fmt::to_string(limit));
    add(names[1], fmt::to_string(std::max<std::int64_t>(0, left)));
    add(names[2], duration_text(allowance.wait_us(static_cast<double>(limit), limit)));
  };
  constexpr Names kRequests = {"x-ratelimit-limit-requests", "x-ratelimit-remaining-requests",
                               "x-ratelimit-reset-requests"};
  constexpr Names kTokens = {"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens",
                             "x-ratelimit-reset-tokens"};
  if (settings_.requests_per_minute > 0) {
    add_minute(kRequests, requests_, settings_.requests_per_minute);
  } else if (settings_.requests_at_once > 0) {
    add(kRequests[0], fmt::to_string(settings_.requests_at_once));
    add(kRequests[1],
        fmt::to_string(std::max<std::int64_t>(0, settings_.requests_at_once - usage_.live)));
    add(kRequests[2], usage_.live < settings_.requests_at_once ? "0ms" : "1s");
  }
  if (settings_.tokens_per_minute > 0) add_minute(kTokens, tokens_, settings_.tokens_per_minute);
  return fields;
}

bool ApiKey::matches(std::string_view given) const {
  return equal_in_constant_time(given, secret_);
}

ApiKeySettings ApiKey::settings() const {
  const std::lock_guard lock(mutex_);
  return settings_;
}

void ApiKey::change(ApiKeySettings settings) {
  const std::lock_guard lock(mutex_);
  // What was used of the old limits counts against the new ones.
  requests_.left +=
      static_cast<double>(settings.requests_per_minute - settings_.requests_per_minute);
  tokens_.left += static_cast<double>(settings.tokens_per_minute - settings_.tokens_per_minute);
  settings_ = std::move(settings);
}

ApiKey::Usage ApiKey::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

ApiKeys::ApiKeys(std::vector<ApiKeySettings> settings, const ApiKeys& before) {
  for (ApiKeySettings& one : settings) {
    if (find(one.secret) != nullptr) continue;  // given twice: the first counts
    std::shared_ptr<ApiKey> key = before.find(one.secret);
    if (key == nullptr) {
      key = std::make_shared<ApiKey>(std::move(one));
    } else {
      key->change(std::move(one));
    }
    by_secret_.emplace(private_hash(key->settings().secret), key);
    keys_.push_back(std::move(key));
  }
}

std::shared_ptr<ApiKey> ApiKeys::find_owner(std::string_view owner) const {
  const auto found = std::ranges::find_if(
      keys_, [&](const std::shared_ptr<ApiKey>& key) { return key->owner() == owner; });
  return found == keys_.end() ? nullptr : *found;
}

std::shared_ptr<ApiKey> ApiKeys::find(std::string_view given) const {
  const auto [begin, end] = by_secret_.equal_range(private_hash(given));
  const auto found =
      std::find_if(begin, end, [&](const auto& e) { return e.second->matches(given); });
  return found == end ? nullptr : found->second;
}

}  // namespace koho::server
