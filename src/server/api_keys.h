// SPDX-License-Identifier: Apache-2.0
// The API keys of a server: what each may use, and what it has used. Knows no HTTP and no files.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api/error.h"
#include "api/generation.h"
#include "base/error.h"
#include "engine/request.h"

namespace koho::server {

/// One key as the operator wrote it. Zero limits mean none.
struct ApiKeySettings {
  // NOLINTNEXTLINE(google-explicit-constructor): a key without limits is its text.
  ApiKeySettings(std::string text = {}) : secret(std::move(text)) {}
  ApiKeySettings(const char* text) : secret(text) {}

  std::string secret;
  std::string name;                      // for metrics and log; "": only the hash
  std::int64_t requests_at_once = 0;     // waiting and running
  std::int64_t requests_per_minute = 0;  // accepted, evenly: unused ones are saved for a minute
  /// Of prompts and answers, in the same way. A request starts while its prompt and its max_tokens
  /// fit, or nothing of the minute is used. What it did not generate comes back at its end.
  std::int64_t tokens_per_minute = 0;
  std::int64_t file_bytes = 0;  // of all its files; the answers of batches may go beyond
  std::int32_t priority = 0;    // the best that its requests can have
  std::string cache_salt;       // its prompts share cached pages only under this salt; "": with all
};

/// {"keys": [{"key": …, "name": …, "requests_at_once": …, "requests_per_minute": …,
/// "tokens_per_minute": …, "file_bytes": …, "priority": …, "cache_salt": …}, …]}, or the array
/// alone.
/// Errors: invalid_argument with the member's path: unknown, of another type, out of range, no key,
/// a key twice.
Result<std::vector<ApiKeySettings>> parse_api_keys(std::string_view json);

/// A key in use. Threads: any.
class ApiKey {
 public:
  explicit ApiKey(ApiKeySettings settings);

  /// A request begins, or is refused (429, Retry-After) and need not end().
  api::Refusal begin(std::int64_t now_us);
  /// It needs the prompt's tokens and takes `answer` for those to come, or is refused (429); both
  /// must end(). `limited`: whether a limit has them; of a limit that comes later nothing is given
  /// back.
  api::Refusal take_tokens(std::int64_t prompt,
                           std::int64_t answer,
                           std::int64_t now_us,
                           bool* limited = nullptr);
  /// Of prompts that were taken, so many tokens are not computed; `limited`: a limit had them.
  void give_back(std::int64_t tokens, bool limited);
  /// A request was taken back for others' sake, to run again: it and `tokens` do not count against
  /// the limits.
  void forgive(std::int64_t tokens);
  /// A token was generated, one of those taken for it (`taken`) or beyond them: a debt.
  void add_generated(bool taken, std::int64_t now_us);
  /// Of what was taken for the answer, so many tokens were not generated.
  void end(std::int64_t unused = 0);

  /// Sets what the key says of a request: client, priority, cache salt, whose answers are replayed.
  void apply(api::GenerationRequest& whole) const;
  /// OpenAI's x-ratelimit-* header fields; none without limits.
  std::vector<std::pair<std::string_view, std::string>> fields(std::int64_t now_us) const;
  bool has_limits() const;
  bool matches(std::string_view given) const;

  /// The key's name on the metrics page and in the log: eight hexadecimal digits.
  const std::string& hash() const { return hash_; }
  /// The key's name on the files and batches that are made with it.
  const std::string& owner() const { return owner_; }
  /// Its requests' client, by which they share the engine.
  std::uint64_t client() const { return client_; }
  ApiKeySettings settings() const;
  /// New limits for the same secret; what was used stays.
  void change(ApiKeySettings settings);

  struct Usage {
    std::int64_t live = 0;
    std::uint64_t requests = 0;  // begun
    std::uint64_t prompt_tokens = 0;
    std::uint64_t generated_tokens = 0;
    std::uint64_t refused = 0;  // for a limit
  };
  Usage usage() const;

 private:
  /// What is left of a limit a minute; it comes back evenly.
  struct Allowance {
    double left = 0;
    std::int64_t at_us = 0;

    void refill(std::int64_t per_minute, std::int64_t now_us);
    /// Until `wanted` are left.
    std::int64_t wait_us(double wanted, std::int64_t per_minute) const;
  };
  api::Refusal refuse(std::string message, std::int64_t wait_us);
  void refill(std::int64_t now_us);

  const std::string secret_;
  mutable std::mutex mutex_;
  ApiKeySettings settings_;
  std::string hash_;
  std::string owner_;
  std::uint64_t client_;
  Allowance requests_;
  Allowance tokens_;
  Usage usage_;
};

/// Whose something is that was made with `key`; "": of all, without keys.
inline std::string owner_of(const ApiKey* key) {
  return key == nullptr ? std::string() : key->owner();
}
inline std::uint64_t client_of(const ApiKey* key) {
  return key == nullptr ? 0 : key->client();
}

/// All keys of a server; immutable but for what the keys count.
class ApiKeys {
 public:
  ApiKeys() = default;
  /// Keys that `before` has too keep what they counted.
  ApiKeys(std::vector<ApiKeySettings> settings, const ApiKeys& before);

  bool empty() const { return keys_.empty(); }
  /// The key that equals `given`, or null. Takes the same time wherever they differ, and however
  /// many there are.
  std::shared_ptr<ApiKey> find(std::string_view given) const;
  /// The key that makes things of this owner, or null.
  std::shared_ptr<ApiKey> find_owner(std::string_view owner) const;
  const std::vector<std::shared_ptr<ApiKey>>& all() const { return keys_; }

 private:
  std::vector<std::shared_ptr<ApiKey>> keys_;
  /// By a hash of the secret that nobody outside can compute.
  std::unordered_multimap<std::uint64_t, std::shared_ptr<ApiKey>> by_secret_;
};

}  // namespace koho::server
