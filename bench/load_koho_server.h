// SPDX-License-Identifier: Apache-2.0
// `koho serve` itself, with a model: the front process and its workers, on a port, with an API-key
// file and a log of its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "bench/load_server.h"

namespace koho::bench {

struct KohoProgram {
  std::string path;                    // "": none
  std::vector<std::string> arguments;  // of `koho serve`: model, device, executor
};

class KohoLoadServer final : public LoadServer {
 public:
  /// Starts it and waits until it is ready. Of the options it takes sequences, waiting, context and
  /// keys. Requires: the caller has no other threads. Errors: io_error with the end of its log.
  static Result<std::unique_ptr<LoadServer>> start(const KohoProgram& program,
                                                   const LoadServerOptions& options);
  ~KohoLoadServer() override;

  std::int64_t heap_bytes() const override { return -1; }
  /// As /server_info names it.
  std::string device() const override { return device_; }
  /// SIGTERM. Wrong are: an exit code but 0, a process or shared memory that is left, and errors in
  /// the log.
  std::string end() override;

 private:
  KohoLoadServer() = default;
  void change_keys(std::int64_t reloads) override;
  Status write_keys(std::int64_t reloads) const;
  std::string log() const;
  Status wait_until_ready();
  /// The exit code or, below 0, the signal; what is not there after so long is killed.
  int wait_for_end(std::int64_t timeout_us);

  std::filesystem::path folder_;  // of keys and log; goes with this object
  std::vector<std::string> shared_before_;
  std::string device_;
};

}  // namespace koho::bench
