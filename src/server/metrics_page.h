// SPDX-License-Identifier: Apache-2.0
// The Prometheus page: metrics with vLLM's names, so that its dashboards and autoscalers work, and
// koho's own. Every metric is present from the first scrape.
#pragma once

#include <string>

#include "engine/statistics.h"
#include "server/core.h"

namespace koho::server {

std::string metrics_page(const Core& core);

/// Share of the KV pages that running sequences hold, 0..1.
double kv_usage(const Statistics& statistics);

}  // namespace koho::server
