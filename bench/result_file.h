// SPDX-License-Identifier: Apache-2.0
// The files of bench/results: what was measured where, and its rows.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace koho::bench {

struct ResultFile {
  std::string machine;  // as the backend describes it
  std::string commit;   // what is measured
  std::string command;  // what reproduces it
  /// Further members before the rows: a name and its JSON text.
  std::vector<std::pair<std::string, std::string>> more;
};

/// What such a file begins with, names and JSON texts: "machine", "driver", "commit", "date",
/// "command", then file.more. The driver is this machine's loaded NVIDIA driver, null without one;
/// the date is today's in UTC.
std::vector<std::pair<std::string, std::string>> result_members(const ResultFile& file);

/// Writes {result_members…, "rows": [`rows`]}. Errors: io_error.
Status write_result_file(const std::string& path, const ResultFile& file, const std::string& rows);

}  // namespace koho::bench
