// SPDX-License-Identifier: Apache-2.0
// A backend that runs every operator of another one as a recording: recorded, replayed once.
#pragma once

#include <functional>
#include <memory>

#include "support/forwarding_backend.h"

namespace koho::testing {

/// What the real backend enqueues for an operator is recorded (on a GPU: captured in a graph)
/// without being done, then replayed; whatever an operator's results depend on besides, such as
/// host code that a replay does not run again, shows as a wrong result.
class RecordedBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  std::string description() const override {
    return ForwardingBackend::description() + ", recorded";
  }

 private:
  /// The recording is gone when the next operator is recorded: all of it has run by then.
  Status run(const std::function<Status()>& operators) override {
    KOHO_TRY_ASSIGN(const std::unique_ptr<Recording> recording, record(operators));
    KOHO_TRY(recording->replay());
    return synchronize();
  }
};

}  // namespace koho::testing
