// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/kernel_modules.h"

#include <iterator>
#include <vector>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/device/runtime.h"

namespace koho::cuda {
namespace {

/// The driver's functions: the library does not link the driver, which a machine may lack.
struct Driver {
  decltype(&cuFuncGetModule) module_of = nullptr;
  decltype(&cuModuleGetFunctionCount) count = nullptr;
  decltype(&cuModuleEnumerateFunctions) enumerate = nullptr;
  decltype(&cuFuncIsLoaded) is_loaded = nullptr;
  decltype(&cuFuncLoad) load = nullptr;
};

template <typename Function>
Status find(Function& function, const char* name) {
  constexpr unsigned kSince = 12040;  // CUDA 12.4 has all of them
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult found{};
  KOHO_CUDA_TRY(cudaGetDriverEntryPointByVersion(name, &symbol, kSince, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || symbol == nullptr)
    return make_error(ErrorCode::device_error, "the driver has no {}", name);
  function = reinterpret_cast<Function>(symbol);
  return {};
}

Status check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return {};
  return make_error(ErrorCode::device_error, "{}: error {}", call, static_cast<int>(result));
}

Result<int> load_module(const Driver& driver, const void* kernel) {
  cudaFunction_t one = nullptr;
  KOHO_CUDA_TRY(cudaGetFuncBySymbol(&one, kernel));
  CUmodule module = nullptr;
  KOHO_TRY(check(driver.module_of(&module, one), "cuFuncGetModule"));
  unsigned count = 0;
  KOHO_TRY(check(driver.count(&count, module), "cuModuleGetFunctionCount"));
  std::vector<CUfunction> functions(count);
  KOHO_TRY(check(driver.enumerate(functions.data(), count, module), "cuModuleEnumerateFunctions"));
  int loaded = 0;
  for (CUfunction function : functions) {
    CUfunctionLoadingState state{};
    KOHO_TRY(check(driver.is_loaded(&state, function), "cuFuncIsLoaded"));
    if (state == CU_FUNCTION_LOADING_STATE_LOADED) continue;
    KOHO_TRY(check(driver.load(function), "cuFuncLoad"));
    ++loaded;
  }
  return loaded;
}

using KernelModule = const void* (*)();
constexpr KernelModule kKernelModules[] = {kernel_of::attention_decode,
                                           kernel_of::attention_combine,
                                           kernel_of::attention_reference,
                                           kernel_of::attention_prefill,
                                           kernel_of::synthetic_weights,
                                           kernel_of::experts,
                                           kernel_of::experts_down_portable,
                                           kernel_of::gemm_grouped_decode_portable,
                                           kernel_of::gemm_prefill_portable,
                                           kernel_of::gemm_scale_epilogue,
                                           kernel_of::norm,
                                           kernel_of::repack,
                                           kernel_of::rope_kv,
                                           kernel_of::route,
                                           kernel_of::route_few,
                                           kernel_of::route_one,
                                           kernel_of::route_stream,
                                           kernel_of::gather_copy,
                                           kernel_of::sample_threshold_cluster,
                                           kernel_of::sample_gumbel_max,
                                           kernel_of::sample_threshold_stream,
                                           kernel_of::batch_slots,
                                           kernel_of::all_reduce_norm,
                                           kernel_of::row_exchange};
constexpr KernelModule kSm90KernelModules[] = {kernel_of::attention_wgmma,
                                               kernel_of::experts_down_wgmma,
                                               kernel_of::experts_thin,
                                               kernel_of::gemm_decode_swap_ab_sm90,
                                               kernel_of::gemm_prefill_sm90,
                                               kernel_of::gemm_decode_unswapped_sm90,
                                               kernel_of::gemm_grouped_decode_sm90};

}  // namespace

Result<int> load_kernels(bool hopper) {
  Driver driver;
  KOHO_TRY(find(driver.module_of, "cuFuncGetModule"));
  KOHO_TRY(find(driver.count, "cuModuleGetFunctionCount"));
  KOHO_TRY(find(driver.enumerate, "cuModuleEnumerateFunctions"));
  KOHO_TRY(find(driver.is_loaded, "cuFuncIsLoaded"));
  KOHO_TRY(find(driver.load, "cuFuncLoad"));
  std::vector<KernelModule> files(std::begin(kKernelModules), std::end(kKernelModules));
  if (hopper)
    files.insert(files.end(), std::begin(kSm90KernelModules), std::end(kSm90KernelModules));
  int loaded = 0;
  for (const KernelModule kernel_of : files) {
    KOHO_TRY_ASSIGN(const int of_file, load_module(driver, kernel_of()));
    loaded += of_file;
  }
  return loaded;
}

}  // namespace koho::cuda
