// SPDX-License-Identifier: Apache-2.0
// Reads CUPTI's activity records: CUPTI requests buffers, fills them and returns them.
#include "cuda/profile/kernel_profiler.h"

#include <cstdlib>
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

namespace koho {
namespace {

constexpr std::size_t kBufferBytes = 4U << 20U;  // some 20,000 records

/// What CUPTI has returned. One per process: CUPTI calls back from its own thread and passes no
/// argument.
struct Returned {
  std::mutex mutex;
  std::vector<std::pair<std::uint8_t*, std::size_t>> buffers;  // and their valid bytes
  bool refused = false;                                        // a request found no memory
};
Returned returned;

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* records_max) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *records_max = 0;  // as many as fit
  if (*buffer != nullptr) return;
  const std::lock_guard lock(returned.mutex);
  returned.refused = true;
}

void CUPTIAPI
take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  const std::lock_guard lock(returned.mutex);
  returned.buffers.emplace_back(buffer, valid);
}

/// "void koho::cuda::(anonymous namespace)::rope_kernel<2>(koho::…)" of a mangled name, without
/// the prefix that all of koho's kernels share, and without the arguments.
std::string readable(const char* mangled) {
  if (mangled == nullptr) return "?";
  int status = 0;
  char* text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = text != nullptr ? text : mangled;
  std::free(text);
  for (const std::string_view part : {"(anonymous namespace)::", "koho::cuda::", "void "})
    for (std::size_t at = 0; (at = name.find(part)) != std::string::npos;)
      name.erase(at, part.size());
  int depth = 0;  // of template arguments
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0) {
      name.resize(i);
      break;
    }
  }
  return name;
}

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};

/// The functions of libcupti that are used. The library stays open, as it does not unload cleanly.
struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped_records = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;

  static Result<Cupti> open();
  Status check(CUptiResult result, const char* call, ErrorCode code) const {
    if (result == CUPTI_SUCCESS) return {};
    const char* text = nullptr;
    result_string(result, &text);
    return make_error(code, "CUPTI: {} ({}) from {}", text == nullptr ? "?" : text,
                      static_cast<int>(result), call);
  }
};

Result<Cupti> Cupti::open() {
  // The dynamic loader does not search the toolkit's folders on every system.
  const std::string file = fmt::format("libcupti.so.{}", CUPTI_API_VERSION / 10000);
  void* library = nullptr;
  for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/extras/CUPTI/lib64/"}) {
    library = dlopen((folder + file).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr)
    return make_error(ErrorCode::unsupported,
                      "kernels are recorded by CUPTI, and {} cannot be opened ({}): name the CUDA "
                      "toolkit's folder that holds it in LD_LIBRARY_PATH",
                      file, dlerror());
  Cupti cupti;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  if (!find(cupti.register_callbacks, "cuptiActivityRegisterCallbacks") ||
      !find(cupti.enable, "cuptiActivityEnable") || !find(cupti.disable, "cuptiActivityDisable") ||
      !find(cupti.flush_all, "cuptiActivityFlushAll") ||
      !find(cupti.next_record, "cuptiActivityGetNextRecord") ||
      !find(cupti.dropped_records, "cuptiActivityGetNumDroppedRecords") ||
      !find(cupti.result_string, "cuptiGetResultString"))
    return make_error(ErrorCode::unsupported, "{} lacks a function: {}", file, dlerror());
  return cupti;
}

class CuptiProfiler final : public KernelProfiler {
 public:
  explicit CuptiProfiler(const Cupti& cupti) : cupti_(cupti) {}
  CuptiProfiler(const CuptiProfiler&) = delete;
  CuptiProfiler& operator=(const CuptiProfiler&) = delete;
  ~CuptiProfiler() override {
    for (const CUpti_ActivityKind kind : kKinds) static_cast<void>(cupti_.disable(kind));
    static_cast<void>(cupti_.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
    for (const auto& [buffer, valid] : swap_returned()) std::free(buffer);
  }

  Status start() {
    KOHO_TRY(cupti_.check(cupti_.register_callbacks(give_buffer, take_buffer),
                          "cuptiActivityRegisterCallbacks", ErrorCode::unsupported));
    for (const CUpti_ActivityKind kind : kKinds)
      KOHO_TRY(cupti_.check(cupti_.enable(kind), "cuptiActivityEnable", ErrorCode::unsupported));
    return {};
  }

  Result<std::vector<KernelTime>> take() override {
    KOHO_TRY(cupti_.check(cupti_.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED),
                          "cuptiActivityFlushAll", ErrorCode::device_error));
    std::vector<KernelTime> kernels;
    Status status;
    for (const auto& [buffer, valid] : swap_returned()) {
      if (status.ok()) status = read(buffer, valid, kernels);
      std::free(buffer);
    }
    KOHO_TRY(status);
    std::size_t dropped = 0;
    KOHO_TRY(cupti_.check(cupti_.dropped_records(nullptr, 0, &dropped),
                          "cuptiActivityGetNumDroppedRecords", ErrorCode::device_error));
    const std::lock_guard lock(returned.mutex);
    if (dropped > 0 || std::exchange(returned.refused, false))
      return make_error(ErrorCode::device_error, "CUPTI had no room for {} records", dropped);
    return kernels;
  }

 private:
  static std::vector<std::pair<std::uint8_t*, std::size_t>> swap_returned() {
    const std::lock_guard lock(returned.mutex);
    return std::exchange(returned.buffers, {});
  }

  Status read(std::uint8_t* buffer, std::size_t valid, std::vector<KernelTime>& kernels) const {
    CUpti_Activity* record = nullptr;
    for (;;) {
      const CUptiResult result = cupti_.next_record(buffer, valid, &record);
      if (result == CUPTI_ERROR_MAX_LIMIT_REACHED) return {};  // the end
      KOHO_TRY(cupti_.check(result, "cuptiActivityGetNextRecord", ErrorCode::device_error));
      std::uint64_t begin = 0;
      std::uint64_t end = 0;
      std::string name;
      // Later versions of a record add fields at its end.
      if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
        std::tie(begin, end, name) = std::tuple(kernel->start, kernel->end, readable(kernel->name));
      } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
        std::tie(begin, end, name) = std::tuple(copy->start, copy->end, std::string("(copy)"));
      } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
        std::tie(begin, end, name) = std::tuple(fill->start, fill->end, std::string("(fill)"));
      } else {
        continue;
      }
      if (begin == 0 || end < begin)
        return make_error(ErrorCode::device_error, "CUPTI has no times of {}", name);
      kernels.push_back(
          {std::move(name), static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)});
    }
  }

  Cupti cupti_;
};

}  // namespace

Result<std::unique_ptr<KernelProfiler>> make_kernel_profiler() {
  KOHO_TRY_ASSIGN(const Cupti cupti, Cupti::open());
  auto recorder = std::make_unique<CuptiProfiler>(cupti);
  KOHO_TRY(recorder->start());
  return std::unique_ptr<KernelProfiler>(std::move(recorder));
}

}  // namespace koho
