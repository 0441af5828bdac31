// SPDX-License-Identifier: Apache-2.0
#include "server/batch_check.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "api/batch_line.h"
#include "base/json_writer.h"

namespace koho::server {
namespace {

constexpr std::int64_t kRequestsMax = 50'000;  // of a batch, OpenAI's limit
constexpr std::size_t kFaultsMax = 100;        // that a batch tells

}  // namespace

BatchChecker::BatchChecker(const std::filesystem::path& input, std::string_view endpoint)
    : endpoint_(endpoint), input_(LineReader::open_file(input.string(), api::kBatchLineBytesMax)) {}

void BatchChecker::fault(std::int64_t line,
                         std::string_view code,
                         std::string_view param,
                         std::string_view message) {
  if (check_.faults.size() < kFaultsMax)
    check_.faults.push_back({.line = line,
                             .code = std::string(code),
                             .param = std::string(param),
                             .message = std::string(message)});
}

/// The client is not told where the server keeps its files.
void BatchChecker::unreadable() {
  fault(0, "io_error", "input_file_id", "the input file could not be read");
}

void BatchChecker::take(std::string_view line, std::int64_t number) {
  ++check_.total;
  api::BatchLine read;
  if (const api::Refusal refused = api::read_batch_line(line, number, read)) {
    fault(number, refused->code, refused->param, refused->message);
  } else if (read.endpoint->path != endpoint_) {
    fault(number, "mismatched_url", "url",
          fmt::format("the batch's endpoint is {}, the line's url {}", endpoint_,
                      read.endpoint->path));
  } else if (!seen_.insert(hash_of(json_string(read.custom_id))).second) {
    fault(number, "duplicate_custom_id", "custom_id", "an earlier line has the same custom_id");
  }
}

Result<bool> BatchChecker::run(const std::function<bool()>& pauses) {
  while (input_) {
    std::string_view line;
    const Result<LineReader::State> state =
        input_->ok() ? (*input_)->next(line, -1) : input_->error();
    if (!state.ok()) {
      unreadable();
      if (state.error().code == ErrorCode::not_found) break;
      return state.error();
    }
    if (*state == LineReader::State::end) break;
    if (*state == LineReader::State::too_long) {
      const api::ApiError error = api::line_too_long();
      fault((*input_)->number(), error.code, error.param, error.message);
    } else if (*state == LineReader::State::line && !api::is_blank_line(line)) {
      take(line, (*input_)->number());
    }
    if (pauses()) return false;
  }
  input_.reset();
  return true;
}

BatchCheck BatchChecker::finish() {
  if (check_.faults.empty() && check_.total == 0)
    fault(0, "empty_file", "", "the file has no requests");
  if (check_.total > kRequestsMax)
    fault(0, "too_many_requests", "",
          fmt::format("the file has {} requests, a batch may have {}", check_.total, kRequestsMax));
  return std::move(check_);
}

}  // namespace koho::server
