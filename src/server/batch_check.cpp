// SPDX-License-Identifier: Apache-2.0
#include "server/batch_check.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "api/batch_line.h"
#include "base/json_writer.h"
#include "base/line_reader.h"
#include "server/batch_output.h"

namespace koho::server {
namespace {

constexpr std::int64_t kRequestsMax = 50'000;  // of a batch, OpenAI's limit
constexpr std::size_t kFaultsMax = 100;        // that a batch tells

class Checker {
 public:
  explicit Checker(std::string_view endpoint) : endpoint_(endpoint) {}

  void fault(std::int64_t line,
             std::string_view code,
             std::string_view param,
             std::string_view message) {
    if (check_.faults.size() < kFaultsMax)
      check_.faults.push_back({.line = line,
                               .code = std::string(code),
                               .param = std::string(param),
                               .message = std::string(message)});
  }

  void take(std::string_view line, std::int64_t number) {
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

  BatchCheck finish() {
    if (check_.faults.empty() && check_.total == 0)
      fault(0, "empty_file", "", "the file has no requests");
    if (check_.total > kRequestsMax)
      fault(
          0, "too_many_requests", "",
          fmt::format("the file has {} requests, a batch may have {}", check_.total, kRequestsMax));
    return std::move(check_);
  }

 private:
  std::string_view endpoint_;
  BatchCheck check_;
  IdSet seen_;
};

}  // namespace

BatchCheck check_batch_input(const std::filesystem::path& path, std::string_view endpoint) {
  Checker checker(endpoint);
  Result<LineReader> input = LineReader::open(path.string(), api::kBatchLineBytesMax);
  if (!input.ok()) checker.fault(0, "io_error", "", input.error().message);
  while (input.ok()) {
    std::string_view line;
    const Result<LineReader::State> state = input->next(line, -1);
    if (!state.ok()) {
      checker.fault(0, "io_error", "", state.error().message);
      break;
    }
    if (*state == LineReader::State::end) break;
    if (*state == LineReader::State::too_long) {
      checker.fault(
          input->number(), "invalid_json_line", "",
          fmt::format("the line is longer than {} bytes, the limit", api::kBatchLineBytesMax));
    } else if (*state == LineReader::State::line && !api::is_blank_line(line)) {
      checker.take(line, input->number());
    }
  }
  return checker.finish();
}

}  // namespace koho::server
