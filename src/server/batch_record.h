// SPDX-License-Identifier: Apache-2.0
// A batch of OpenAI's batch API as it is kept on disk and told to clients.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace koho::server {

enum class BatchStatus : std::uint8_t {
  validating,   // its lines are read and checked
  in_progress,  // its requests run
  finalizing,   // its output becomes files
  cancelling,   // as finalizing, and requests that have not run become errors
  expiring,     // the same; told as finalizing
  completed,    // the rest is over
  failed,
  expired,
  cancelled
};
inline constexpr std::size_t kBatchStatuses = 9;

/// The name that clients know.
std::string_view batch_status_name(BatchStatus status);
bool is_over(BatchStatus status);

/// What is wrong with a line of the input; such a batch fails before a request runs.
struct BatchFault {
  std::int64_t line = 0;  // 0: the whole
  std::string code{};
  std::string param{};
  std::string message{};
};

/// What the check of an input found.
struct BatchCheck {
  std::int64_t total = 0;  // requests
  std::vector<BatchFault> faults{};
};

struct BatchRecord {
  std::string id{};     // "batch_…"
  std::string owner{};  // as of its files
  std::string endpoint{};
  std::string input_file_id{};
  std::string completion_window{};
  std::int64_t output_expires_s = 0;  // after its making; 0: never
  std::string metadata{};             // a JSON object, or ""
  BatchStatus status = BatchStatus::validating;
  std::vector<BatchFault> faults{};
  std::string output_file_id{};
  std::string error_file_id{};
  std::int64_t created_at = 0;  // seconds since 1970, as the rest
  std::int64_t expires_at = 0;
  /// When each status was reached; 0: not.
  std::array<std::int64_t, kBatchStatuses> reached{};
  std::int64_t total = 0;  // requests
  std::int64_t completed = 0;
  std::int64_t failed = 0;
  std::string wait_reason{};  // of one that waits; as long as the server runs

  void enter(BatchStatus now, std::int64_t now_s);
  std::int64_t reached_at(BatchStatus one) const { return reached[static_cast<std::size_t>(one)]; }
};

/// The batch's JSON object for clients.
std::string batch_json(const BatchRecord& record);

/// As it is kept on disk.
std::string stored_batch(const BatchRecord& record);
/// Errors: corrupt_data.
Result<BatchRecord> read_stored_batch(std::string_view text);

}  // namespace koho::server
