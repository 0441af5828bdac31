// SPDX-License-Identifier: Apache-2.0
// Checks the input of a batch before a request runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/line_reader.h"
#include "server/batch_output.h"
#include "server/batch_record.h"

namespace koho::server {

/// Reads all lines: each is a request to `endpoint`, no custom_id stands there twice.
class BatchChecker {
 public:
  BatchChecker(const std::filesystem::path& input, std::string_view endpoint);

  /// Goes on until `pauses()`, which is asked after each line. True: finish() has the outcome.
  /// Errors: io_error: another check may succeed; finish() says of this one that it did not.
  Result<bool> run(const std::function<bool()>& pauses);
  BatchCheck finish();

 private:
  void fault(std::int64_t line,
             std::string_view code,
             std::string_view param,
             std::string_view message);
  void unreadable();
  void take(std::string_view line, std::int64_t number);

  std::string endpoint_;
  std::optional<Result<LineReader>> input_;
  BatchCheck check_;
  IdSet seen_;
};

}  // namespace koho::server
