// SPDX-License-Identifier: Apache-2.0
#include "worker/rank_memory.h"

#include <new>

#include "base/arithmetic.h"
#include "comm/process_rendezvous.h"
#include "plan/flat_result.h"

namespace koho {
namespace {

constexpr std::uint32_t kMagic = 0x6c74636b;  // "kctl"
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kPageBytes = 4096;

}  // namespace

Status WorkerTask::set_device(const DeviceOptions& options) {
  device = options.kind;
  isa = options.isa;
  deterministic = options.deterministic;
  portable_only = options.portable_only;
  collectives = options.collectives;
  threads = options.threads;
  if (options.devices.size() > devices.size())
    return make_error(ErrorCode::invalid_argument, "{} devices are more than the {} ranks may be",
                      options.devices.size(), devices.size());
  num_devices = static_cast<std::uint32_t>(options.devices.size());
  std::ranges::copy(options.devices, devices.begin());
  return {};
}

DeviceOptions WorkerTask::device_options() const {
  DeviceOptions options;
  options.kind = device == DeviceKind::cuda ? DeviceKind::cuda : DeviceKind::cpu;
  options.isa = isa;
  options.deterministic = deterministic;
  options.portable_only = portable_only;
  options.collectives = collectives;
  options.threads = threads;
  const std::size_t count = std::min<std::size_t>(num_devices, devices.size());
  options.devices.assign(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(count));
  return options;
}

Result<SharedMemory> make_control_memory(const WorkerTask& task, std::int64_t ranks) {
  KOHO_TRY_ASSIGN(
      SharedMemory memory,
      SharedMemory::create("koho control", sizeof(Control) + process_rendezvous_bytes(ranks)));
  auto* control = new (memory.bytes().data()) Control();
  control->magic = kMagic;
  control->version = kVersion;
  control->size = sizeof(Control);
  control->ranks = ranks;
  control->task = task;
  return memory;
}

Result<Control*> control_in(const SharedMemory& memory) {
  const std::size_t size = memory.bytes().size();
  if (size < sizeof(Control))
    return make_error(ErrorCode::corrupt_data,
                      "the control memory has {} bytes, {} at least were expected", size,
                      sizeof(Control));
  auto* control = reinterpret_cast<Control*>(memory.bytes().data());
  if (control->magic != kMagic || control->version != kVersion || control->size != sizeof(Control))
    return make_error(ErrorCode::corrupt_data,
                      "the control memory is of another build of koho: magic {:#x} version {} size "
                      "{} were expected, found {:#x}, {} and {}",
                      kMagic, kVersion, sizeof(Control), control->magic, control->version,
                      control->size);
  if (control->ranks < 1 || control->ranks > kWorkerRanksMax ||
      size < sizeof(Control) + process_rendezvous_bytes(control->ranks))
    return make_error(ErrorCode::corrupt_data,
                      "the control memory is for {} ranks and has {} bytes", control->ranks, size);
  return control;
}

std::span<std::byte> rendezvous_memory(const SharedMemory& memory) {
  return memory.bytes().subspan(sizeof(Control));
}

StepMemoryLayout::StepMemoryLayout(const PlanBounds& bounds, std::int64_t ranks)
    : ranks_(ranks),
      plan_bytes_(koho::round_up(koho::plan_bytes(bounds.counts_max()), kPageBytes)),
      result_bytes_(koho::round_up(flat_result_bytes(bounds.sequences_max, bounds.vocabulary),
                                   std::size_t{64})) {}

}  // namespace koho
