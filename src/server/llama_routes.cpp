// SPDX-License-Identifier: Apache-2.0
#include "server/llama_routes.h"

#include <string>

#include <fmt/format.h>

#include "base/json_writer.h"
#include "base/version.h"

namespace koho::server {

Response answer_props(Core& core, const RoutedRequest& /*call*/) {
  const ServedModel& serving = *core.serving();
  const api::Model& model = serving.model;
  const SamplingParameters& sampling = model.defaults.sampling;
  Response response;
  response.body = fmt::format(
      R"({{"default_generation_settings":{{"n_ctx":{},"params":{{"temperature":{},"top_p":{},"top_k":{},)"
      R"("min_p":{},"repeat_penalty":{},"n_predict":-1}}}},"total_slots":{},"model_alias":)",
      model.context_max(), sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p,
      sampling.repetition_penalty, model.limits.scheduler.sequences_max);
  append_json_string(response.body, model.names.front());
  response.body += R"(,"model_path":)";
  append_json_string(response.body, model.names.front());
  response.body += fmt::format(
      R"(,"modalities":{{"vision":false,"audio":false}},"build_info":"koho {}","is_sleeping":false}})",
      kVersion);
  return response;
}

Response answer_slots(Core& core, const RoutedRequest& /*call*/) {
  const ServedModel& serving = *core.serving();
  const std::int32_t running = serving.engine.statistics().running;
  Response response;
  response.body = "[";
  for (std::int32_t slot = 0; slot < serving.model.limits.scheduler.sequences_max; ++slot)
    response.body +=
        fmt::format(R"({}{{"id":{},"n_ctx":{},"is_processing":{}}})", slot == 0 ? "" : ",", slot,
                    serving.model.context_max(), slot < running);
  response.body += ']';
  return response;
}

}  // namespace koho::server
