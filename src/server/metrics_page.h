// SPDX-License-Identifier: Apache-2.0
// The page that Prometheus reads: vLLM's names, so that dashboards and autoscalers made for it
// work, and koho's own. Every counter is there from the first scrape.
#pragma once

#include <string>

#include "engine/statistics.h"
#include "server/core.h"

namespace koho::server {

std::string metrics_page(const Core& core);

/// The share of cache pages that running sequences hold: 0..1.
double kv_usage(const Statistics& statistics);

}  // namespace koho::server
