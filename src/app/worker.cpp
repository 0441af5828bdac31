// SPDX-License-Identifier: Apache-2.0
// `koho worker RANK`: one rank in a process of its own (worker/worker_process.h). koho starts it
// itself; it is not in the help.
#include "app/worker.h"

#include <cstdio>

#include "base/text.h"
#include "runtime/worker_model.h"
#include "worker/worker_process.h"

namespace koho::app {

int run_worker(const std::vector<std::string>& arguments) {
  const auto rank =
      arguments.size() == 1 ? parse_integer<std::int64_t>(arguments[0]) : std::nullopt;
  const Status status =
      rank ? run_worker_process(*rank, open_worker_model)
           : make_error(ErrorCode::invalid_argument,
                        "koho worker is started by koho itself, with the number of a rank");
  if (status.ok()) return 0;
  std::fprintf(stderr, "koho: error: %s\n", status.error().message.c_str());
  return error_code_info(status.error().code).exit_code;
}

}  // namespace koho::app
