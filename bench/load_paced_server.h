// SPDX-License-Identifier: Apache-2.0
// A server without a model, in a process of its own: engine and server as `koho serve` has them,
// over ranks that answer at a fixed pace.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "bench/load_server.h"
#include "tokenizer/tokenizer.h"

namespace koho::bench {

class PacedLoadServer final : public LoadServer {
 public:
  /// Starts the process. Requires: the caller has no other threads. Errors: io_error.
  static Result<std::unique_ptr<LoadServer>> start(const Tokenizer& tokenizer,
                                                   const LoadServerOptions& options);
  ~PacedLoadServer() override;

  static std::int32_t vocabulary(const Tokenizer& tokenizer);

  std::int64_t heap_bytes() const override;
  std::string device() const override { return {}; }
  std::string end() override;

 private:
  PacedLoadServer() = default;
  void change_keys(std::int64_t reloads) override;

  int order_ = -1;   // a pipe: the process ends when it closes
  int answer_ = -1;  // another, from it
};

}  // namespace koho::bench
