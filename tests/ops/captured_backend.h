// SPDX-License-Identifier: Apache-2.0
// A backend that runs every operator of another one as a graph: captured, replayed once.
#pragma once

#include <functional>
#include <memory>

#include "support/forwarding_backend.h"

namespace koho::testing {

/// The real backend captures what it enqueues for an operator (a GPU: in a CUDA graph) without
/// running it, then replays that. Whatever else the results depend on, such as host code that a
/// replay does not run again, shows as a wrong result.
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
