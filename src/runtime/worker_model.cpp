// SPDX-License-Identifier: Apache-2.0
#include "runtime/worker_model.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/log_settings.h"
#include "runtime/fingerprint.h"

namespace koho {

Result<FlatModel> flat_model(const LoadedModel& model) {
  const ModelOrigin& origin = model.origin;
  if (origin.kind == ModelOrigin::Kind::none)
    return make_error(ErrorCode::unsupported,
                      "worker processes need a model with files, this one was made in memory");
  FlatModel flat;
  flat.kind = static_cast<std::uint32_t>(origin.kind);
  flat.layers = origin.layers;
  // A worker has the front's working directory; this also holds if the front changes its own.
  std::error_code failed;
  std::filesystem::path whole = std::filesystem::absolute(origin.path, failed);
  if (!flat.path.set((failed ? origin.path : whole).string()) || !flat.quant.set(origin.quant))
    return make_error(ErrorCode::invalid_argument, "the path {} is too long for a worker process",
                      origin.path.string());
  flat.identity = identity_of(model);
  return flat;
}

Result<WorkerModel> open_worker_model(const FlatModel& flat, DeviceKind device) {
  if (flat.kind > static_cast<std::uint32_t>(ModelOrigin::Kind::config))
    return make_error(ErrorCode::corrupt_data, "there is no kind {} of models", flat.kind);
  // The front has given the warnings already.
  const log::Level lowest = log::lowest();
  log::configure(log::Level::error, log::format());
  Result<LoadedModel> opened = open_model({.kind = static_cast<ModelOrigin::Kind>(flat.kind),
                                           .path = std::string(flat.path.view()),
                                           .layers = flat.layers,
                                           .quant = std::string(flat.quant.view())},
                                          device);
  log::configure(lowest, log::format());
  if (!opened.ok()) return std::move(opened).error();
  if (identity_of(*opened) != flat.identity)
    return make_error(ErrorCode::corrupt_data,
                      "the files of {} have changed since the start: start again",
                      flat.path.view());
  auto owner = std::make_shared<const LoadedModel>(std::move(*opened));
  return WorkerModel{.owner = owner,
                     .config = &owner->config,
                     .sources = &owner->sources,
                     .synthetic = owner->synthetic.get()};
}

}  // namespace koho
