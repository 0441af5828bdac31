// SPDX-License-Identifier: Apache-2.0
// A backend that runs every operator of another one as a graph: captured, replayed once.
#pragma once

#include <functional>
#include <memory>

#include "support/forwarding_backend.h"

namespace koho::testing {

/// What the real backend enqueues for an operator is captured (on a GPU: captured in a graph)
/// without being done, then replayed; whatever an operator's results depend on besides, such as
/// host code that a replay does not run again, shows as a wrong result.
class CapturedBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  std::string description() const override {
    return ForwardingBackend::description() + ", captured";
  }

 private:
  /// The graph is gone when the next operator is captured: all of it has run by then.
  Status run(const std::function<Status()>& operators) override {
    KOHO_TRY_ASSIGN(const std::unique_ptr<CapturedGraph> graph, capture(operators));
    KOHO_TRY(graph->replay());
    return synchronize();
  }
};

}  // namespace koho::testing
