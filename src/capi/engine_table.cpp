// SPDX-License-Identifier: Apache-2.0
// The table outlives the program's static objects: a thread of the host may call koho while they
// are destroyed.
#include "capi/engine_table.h"

#include <unistd.h>
#include <utility>

#include "capi/instance.h"

namespace koho::capi {
namespace {

/// Holds a table and never destroys it.
union Eternal {
  constexpr Eternal() : table() {}
  ~Eternal() {}  // NOLINT: that is the point
  EngineTable table;
};
constinit Eternal eternal;

Error no_engine() {
  return make_error(ErrorCode::invalid_argument,
                    "this is not the handle of an engine, or the engine was freed");
}

}  // namespace

EngineTable& engines() {
  return eternal.table;
}

Status EngineTable::check_process() const {
  const std::int64_t process = process_.load();
  if (process == 0 || process == getpid()) return {};
  return make_error(ErrorCode::unavailable,
                    "the engines were started before fork(), their threads are not in this child: "
                    "start the child anew (spawn, exec)");
}

Result<std::uintptr_t> EngineTable::insert(std::shared_ptr<Instance> instance) {
  KOHO_TRY(check_process());
  const std::lock_guard lock(mutex_);
  process_.store(getpid());
  for (std::uint32_t i = 0; i < kEnginesMax; ++i) {
    if (slots_[i].instance) continue;
    slots_[i] = {next_generation(), std::move(instance)};
    return to_number({.kind = HandleKind::engine, .engine = i, .generation = slots_[i].generation});
  }
  return make_error(ErrorCode::resource_exhausted, "this process has {} engines; free one",
                    kEnginesMax);
}

Result<EngineTable::Slot*> EngineTable::slot(std::uintptr_t handle) {
  const std::optional<Handle> named = to_handle(handle, HandleKind::engine);
  if (!named) return no_engine();
  Slot& slot = slots_[named->engine];
  if (!slot.instance || slot.generation != named->generation) return no_engine();
  return &slot;
}

Result<std::shared_ptr<Instance>> EngineTable::find(std::uintptr_t handle) {
  KOHO_TRY(check_process());
  const std::lock_guard lock(mutex_);
  KOHO_TRY_ASSIGN(const Slot* found, slot(handle));
  return found->instance;
}

Result<std::shared_ptr<Instance>> EngineTable::take(std::uintptr_t handle) {
  KOHO_TRY(check_process());
  const std::lock_guard lock(mutex_);
  KOHO_TRY_ASSIGN(Slot * found, slot(handle));
  return std::exchange(found->instance, nullptr);
}

}  // namespace koho::capi
