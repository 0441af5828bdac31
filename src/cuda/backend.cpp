// SPDX-License-Identifier: Apache-2.0
#include "cuda/backend.h"

#include <algorithm>
#include <cstddef>

#include "base/arithmetic.h"
#include "base/log.h"
#include "cuda/sampling/sample.h"
#include "cuda/self_test/self_test.h"
#include "cuda/views.h"

namespace koho::cuda {
namespace {

constexpr std::int64_t kPartialBytesMax = 1LL << 30;  // split-KV partials of decode attention
// K and V of one token and head upcast to f16 (128 columns), and its share of the scales.
constexpr std::int64_t kUpcastTokenBytes = 2 * 128 * 2 + 16;

}  // namespace

Status check_limits(const StepLimits& limits) {
  struct Limit {
    const char* what;
    std::int64_t value;
    std::int64_t most;
  };
  for (const Limit& limit :
       {Limit{"tokens of a vocabulary", limits.vocabulary, kSampleTokensMax},
        Limit{"experts chosen for a token", limits.experts_per_token, kRouteChoicesMax},
        Limit{"columns of an attention head", limits.head_width, kHeadWidthMax}})
    if (limit.value > limit.most)
      return make_error(
          ErrorCode::unsupported,
          "the CUDA backend has kernels for up to {} {}, this model has {}: run it on "
          "the CPU",
          limit.most, limit.what, limit.value);
  return {};
}

CudaBackend::CudaBackend(DeviceInfo device, const CudaOptions& options)
    : device_(std::move(device)),
      device_id_{DeviceId::Kind::cuda, static_cast<std::int8_t>(options.device)},
      options_(options),
      memory_(std::make_shared<DeviceMemory>(options.device)) {}

CudaBackend::~CudaBackend() {
  if (stream_ == nullptr || !bind().ok()) return;
  static_cast<void>(cudaStreamSynchronize(stream_));
  static_cast<void>(cudaStreamDestroy(stream_));
}

Result<std::unique_ptr<Backend>> CudaBackend::open(const CudaOptions& options) {
  KOHO_TRY_ASSIGN(DeviceInfo device, open_device(options.device));
  std::unique_ptr<CudaBackend> backend(new CudaBackend(std::move(device), options));
  KOHO_TRY(backend->start());
  return std::unique_ptr<Backend>(std::move(backend));
}

Status CudaBackend::start() {
  KOHO_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  if (has_wgmma()) {
    wgmma_ = true;
    wgmma_attention_ = true;
    constexpr std::int64_t kTileCounterBytes = 2 * sizeof(std::uint32_t);
    KOHO_TRY_ASSIGN(tile_counters_,
                    DeviceBlock::allocate(memory_, kTileCounterBytes, "attention's tile_counters"));
    KOHO_CUDA_TRY(cudaMemsetAsync(tile_counters_.as<void>(), 0, kTileCounterBytes, stream_));
  }
  prefill_portable_ = true;
  if (options_.self_test) KOHO_TRY(test_kernels());
  return options_.deterministic.value_or(wgmma_) ? Status() : open_cublaslt();  // sums of its own
}

Status CudaBackend::bind() const {
  KOHO_CUDA_TRY(cudaSetDevice(options_.device));
  return {};
}

Status CudaBackend::open_cublaslt() {
  std::string why;
  for (const CublasLtScales scales : {CublasLtScales::fused, CublasLtScales::separate}) {
    if (options_.portable_only && scales == CublasLtScales::fused) continue;
    Result<std::unique_ptr<CublasLtGemm>> opened = CublasLtGemm::open(memory_, scales);
    if (!opened.ok()) {
      if (opened.error().code == ErrorCode::resource_exhausted) return opened.error();
      why = opened.error().message;
      continue;
    }
    cublaslt_ = std::move(*opened);
    bool right = true;
    if (options_.self_test) {
      KOHO_TRY_ASSIGN(right, SelfTest(*this).cublaslt());
    }
    if (right) return {};
    why = "it differs from koho's kernels";
    cublaslt_.reset();
  }
  log::warning("cuBLASLt is not used, koho's own kernels run prompts' linear layers: {}", why);
  return {};
}

std::string CudaBackend::description() const {
  std::string text = device_.name;
  if (has_wgmma() && !wgmma_) text += ", portable GEMM";
  if (has_wgmma() && !wgmma_attention_) text += ", portable attention";
  if (!prefill_portable_) text += ", without the portable prefill GEMM";
  if (!options_.deterministic.value_or(wgmma_) && cublaslt_ == nullptr)
    text += ", without cuBLASLt";
  return text;
}

Result<Tensor> CudaBackend::allocate(DType dtype, Shape shape, std::string_view purpose) {
  const std::int64_t bytes = shape.elements() * dtype_bytes(dtype);
  KOHO_TRY_ASSIGN(std::byte * data, memory_->allocate(bytes, purpose));
  return Tensor(
      data, [memory = memory_](std::byte* freed) { memory->free(freed); }, dtype, shape,
      device_id_);
}

Result<Tensor> CudaBackend::place(ConstTensorView source) {
  KOHO_TRY(bind());
  if (!source.packed())
    return make_error(ErrorCode::invalid_argument, "place: expected a packed tensor, found {}",
                      describe(source));
  KOHO_TRY_ASSIGN(Tensor tensor, allocate(source.dtype, source.shape, "weights"));
  KOHO_TRY_ASSIGN(const bool taken,
                  enqueue_large(source, {}, reinterpret_cast<std::uint8_t*>(tensor.view().data)));
  if (taken) return tensor;
  SyntheticAddressMap::Place synthetic;
  if (options_.synthetic != nullptr && options_.synthetic->find(source.data, synthetic)) {
    KOHO_CUDA_TRY(draw(tensor.view().data, source, synthetic));
  } else {
    KOHO_TRY(upload(tensor.view(), {source.data, static_cast<std::size_t>(source.bytes())}));
  }
  return tensor;
}

Status CudaBackend::reserve(const StepLimits& limits) {
  KOHO_TRY(check_limits(limits));
  KOHO_TRY(bind());
  KOHO_TRY(finish_loading());  // weights are placed
  loader_.reset();
  staging_ = DeviceBlock();
  // Decode attention: the smallest split-KV chunks whose partial results fit. They follow from the
  // limits alone, so a row's sums are divided at the same places as long as the engine runs.
  const auto partial_bytes = [&] {
    return 4 * attention_partial_floats({.decodes = limits.sequences_max,
                                         .context_max = limits.context_max,
                                         .chunk_tokens = chunk_tokens_,
                                         .query_heads = limits.query_heads,
                                         .kv_heads = limits.kv_heads,
                                         .width = limits.head_width});
  };
  chunk_tokens_ = kAttentionChunkTokens;
  while (partial_bytes() > kPartialBytesMax) chunk_tokens_ *= 2;
  constexpr std::int64_t kChoices = 8;  // fewer would leave no room for what else an operator keeps
  const std::int64_t slots =
      std::max(kChoices, limits.experts_per_token) + 1;  // and the shared one
  // And the outputs of all rows, for a step of decoded rows and prefill.
  const std::int64_t partial =
      round_up(partial_bytes(), kScratchAlignment) +
      round_up(limits.tokens_max * limits.query_heads * limits.head_width * 2, kScratchAlignment);
  constexpr std::int64_t kOtherBytes = 32 << 10;  // a token in any other operator
  const std::int64_t experts = limits.tokens_max * slots * expert_row_bytes_ + (4 << 20);
  // Prefill attention keeps its rows' outputs, the partial results of rows decoded beside it and,
  // with e4m3 pages, some pages upcast: of one sequence and head at least, else it upcasts in the
  // kernel.
  const std::int64_t others = limits.tokens_max * kOtherBytes;
  const std::int64_t upcast =
      wgmma_attention_
          ? std::min(kUpcastBytesMax, limits.sequences_max * limits.kv_heads * kUpcastTokenBytes *
                                          round_up<std::int64_t>(limits.context_max, 128))
          : 0;
  const std::int64_t sums = cublaslt_ != nullptr ? cublaslt_->scratch_bytes(limits.tokens_max) : 0;
  KOHO_TRY(scratch(std::max({partial, experts, others + upcast, sums})));
  reserved_ = true;
  if (cublaslt_ != nullptr) KOHO_TRY(cublaslt_->prepare(limits.tokens_max, stream_));
  if (!kernels_loaded_) {
    kernels_loaded_ = true;
    const Result<int> loaded = load_kernels(device_.hopper());
    if (!loaded.ok())
      log::warning("kernels are loaded when steps first need them: {}", loaded.error().message);
  }
  KOHO_CUDA_TRY(
      cudaMemsetAsync(scratch_.as<void>(), 0, static_cast<std::size_t>(scratch_.bytes()), stream_));
  KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
  return {};
}

Status CudaBackend::do_gather_input_ids(const BatchSlotRows& rows,
                                        ConstTensorView given_ids,
                                        ConstTensorView batch_slots,
                                        const BatchSlotTables& tables) {
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(launch_gather_input_ids({.token_ids = rows.token_ids.as<std::int32_t>(),
                                         .slots = rows.slots.as<std::int64_t>(),
                                         .page_tables = rows.page_tables.as<std::int32_t>(),
                                         .context_lengths = rows.context_lengths.as<std::int32_t>(),
                                         .given_ids = i32(given_ids),
                                         .batch_slots = i32(batch_slots),
                                         .batch_slot_pages = i32(tables.pages),
                                         .last_sampled = i32(tables.last_sampled),
                                         .outputs = i32(tables.outputs),
                                         .tokens = given_ids.size(0),
                                         .sequences = batch_slots.size(0),
                                         .batch_slot_count = tables.pages.size(0),
                                         .width = tables.pages.size(1)},
                                        stream_));
  return {};
}

Status CudaBackend::do_commit_sampled(TensorView ends,
                                      const BatchSlotTables& tables,
                                      ConstTensorView batch_slots,
                                      ConstTensorView ids) {
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(launch_commit_sampled({.ends = ends.as<std::uint8_t>(),
                                       .last_sampled = tables.last_sampled.as<std::int32_t>(),
                                       .outputs = tables.outputs.as<std::int32_t>(),
                                       .batch_slots = i32(batch_slots),
                                       .ids = i32(ids),
                                       .rows = ids.size(0),
                                       .batch_slot_count = tables.outputs.size(0)},
                                      stream_));
  return {};
}

Status CudaBackend::do_set_entries(TensorView table, ConstTensorView pairs) {
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(launch_set_entries(table.as<std::int32_t>(), table.size(0), i32(pairs),
                                   pairs.size(0), stream_));
  return {};
}

Status CudaBackend::do_embed(TensorView out, ConstTensorView ids, ConstTensorView table) {
  KOHO_TRY(bind());
  KOHO_TRY(finish_loading());
  KOHO_CUDA_TRY(launch_gather_rows({.out = out.as<Bf16>(),
                                    .x = bf16(table),
                                    .x_stride = table.size(1),
                                    .x_rows = table.size(0),
                                    .indices = i32(ids),
                                    .rows = out.size(0),
                                    .width = out.size(1)},
                                   stream_));
  return {};
}

Status CudaBackend::do_gather_rows(TensorView out, ConstTensorView x, ConstTensorView rows) {
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(launch_gather_rows({.out = out.as<Bf16>(),
                                    .x = bf16(x),
                                    .x_stride = x.stride(0),
                                    .indices = i32(rows),
                                    .rows = out.size(0),
                                    .width = out.size(1)},
                                   stream_));
  return {};
}

Status CudaBackend::do_rms_norm(const Activation& out,
                                ConstTensorView x,
                                ConstTensorView weight,
                                float eps) {
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(launch_rms_norm(row_outputs_of(out),
                                {.x = bf16(x),
                                 .x_stride = x.stride(0),
                                 .weight = bf16(weight),
                                 .eps = eps,
                                 .rows = x.size(0),
                                 .width = x.size(1)},
                                stream_));
  return {};
}

Status CudaBackend::do_add_rms_norm(const Activation& out,
                                    TensorView residual,
                                    ConstTensorView block_output,
                                    ConstTensorView weight,
                                    float eps) {
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(launch_rms_norm(row_outputs_of(out),
                                {.x = bf16(residual),
                                 .x_stride = residual.size(1),
                                 .block_output = bf16(block_output),
                                 .residual = residual.as<Bf16>(),
                                 .weight = bf16(weight),
                                 .eps = eps,
                                 .rows = residual.size(0),
                                 .width = residual.size(1)},
                                stream_));
  return {};
}

Status CudaBackend::do_qk_norm_rope_store_kv(const Queries& q,
                                             const KvLayer& kv,
                                             const Activation& qkv,
                                             ConstTensorView positions,
                                             ConstTensorView slots,
                                             const QkNormRope& weights) {
  KOHO_TRY(bind());
  const bool quantized = kv.k.dtype == DType::f8_e4m3;
  const bool from_quantized = !qkv.quantized.empty();
  const RopeKv common{.q = q.values.as<Bf16>(),
                      .qkv = bf16(qkv.values),
                      .qkv_stride = (from_quantized ? qkv.quantized : qkv.values).stride(0),
                      .positions = i32(positions),
                      .slots = slots.as<const std::int64_t>(),
                      .k = kv.k.data,
                      .v = kv.v.data,
                      .k_scales = quantized ? kv.k_scales.as<float>() : nullptr,
                      .v_scales = quantized ? kv.v_scales.as<float>() : nullptr,
                      .q_norm = bf16(weights.q_norm),
                      .k_norm = bf16(weights.k_norm),
                      .rope_table = weights.rope_table.as<const float>(),
                      .tokens = positions.size(0),
                      .query_heads = static_cast<int>(weights.heads.query_heads),
                      .kv_heads = static_cast<int>(weights.heads.kv_heads),
                      .width = static_cast<int>(weights.heads.width),
                      .rotary = static_cast<int>(weights.heads.rotary),
                      .eps = weights.eps,
                      .multiprocessors = device_.multiprocessors};
  if (!from_quantized) {
    KOHO_CUDA_TRY(launch_rope_kv(common, stream_));
    return {};
  }
  KOHO_CUDA_TRY(launch_rope_kv(
      RopeKvQuantized{common, q.quantized.as<std::uint8_t>(), q.scales.as<float>(),
                      qkv.quantized.as<const std::uint8_t>(), qkv.scales.as<const float>()},
      stream_));
  return {};
}

Status CudaBackend::do_silu_mul(const Activation& out, ConstTensorView gate_up) {
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(launch_silu_mul(row_outputs_of(out),
                                {.gate_up = bf16(gate_up),
                                 .stride = gate_up.stride(0),
                                 .rows = gate_up.size(0),
                                 .width = gate_up.size(1) / 2},
                                stream_));
  return {};
}

Status CudaBackend::do_route(const Routing& out,
                             ConstTensorView x,
                             ConstTensorView weight,
                             ConstTensorView bias,
                             const RouterSettings& settings) {
  KOHO_TRY(bind());
  KOHO_TRY(finish_loading());
  const std::int64_t tokens = x.size(0);
  const std::int64_t experts = weight.size(0);
  if (experts > kRouteExpertsMax)
    return make_error(ErrorCode::unsupported, "route: {} experts, the CUDA backend has at most {}",
                      experts, kRouteExpertsMax);
  KOHO_TRY_ASSIGN(std::byte * memory, scratch(kRoutePlainSplitK * tokens * experts * 4));
  KOHO_CUDA_TRY(launch_route({.x = bf16(x),
                              .x_stride = x.stride(0),
                              .weight = weight.data,
                              .weight_f32 = weight.dtype == DType::f32,
                              .bias = bias.as<const float>(),
                              .ids = out.ids.as<std::int32_t>(),
                              .weights = out.weights.as<float>(),
                              .partial = reinterpret_cast<float*>(memory),
                              .tokens = tokens,
                              .hidden = static_cast<int>(x.size(1)),
                              .experts = static_cast<int>(experts),
                              .top_k = static_cast<int>(settings.top_k),
                              .groups = static_cast<int>(settings.groups),
                              .groups_kept = static_cast<int>(settings.groups_kept),
                              .normalize = settings.normalize,
                              .scale = settings.scale},
                             stream_));
  return {};
}

Status CudaBackend::do_copy_pages(const KvLayer& kv, ConstTensorView pairs) {
  KOHO_TRY(bind());
  const bool quantized = kv.k.dtype == DType::f8_e4m3;
  const std::int64_t elements = kv.k.size(1) * kv.k.size(2) * kv.k.size(3);
  KOHO_CUDA_TRY(launch_copy_pages({.k = kv.k.as<std::uint8_t>(),
                                   .v = kv.v.as<std::uint8_t>(),
                                   .k_scales = quantized ? kv.k_scales.as<float>() : nullptr,
                                   .v_scales = quantized ? kv.v_scales.as<float>() : nullptr,
                                   .page_bytes = elements * dtype_bytes(kv.k.dtype),
                                   .page_scales = kv.k.size(1) * kv.k.size(2),
                                   .pairs = i32(pairs),
                                   .count = pairs.size(0)},
                                  stream_));
  return {};
}

Status CudaBackend::do_sample(const SamplingOutput& out,
                              ConstTensorView logits,
                              const SamplingBatch& batch) {
  KOHO_TRY(bind());
  Sample p;
  p.logits = logits.as<const float>();
  p.logits_stride = logits.stride(0);
  p.rows = reinterpret_cast<const SamplingRow*>(batch.rows.data);
  p.biases = reinterpret_cast<const LogitBias*>(batch.biases.data);
  p.masks = i32(batch.masks);
  p.counts = pointer<std::int32_t>(batch.counts.entries);
  p.nonzero = reinterpret_cast<std::uint16_t*>(batch.counts.nonzero.data);
  p.row_count = logits.size(0);
  p.vocabulary = static_cast<int>(logits.size(1));
  p.tokens = static_cast<int>(batch.tokens);
  p.ids = out.ids.as<std::int32_t>();
  p.logprobs = pointer<float>(out.logprobs);
  p.top_ids = pointer<std::int32_t>(out.top_ids);
  p.top_logprobs = pointer<float>(out.top_logprobs);
  KOHO_CUDA_TRY(launch_sample(p, stream_));
  return {};
}

Status CudaBackend::do_reset_counts(const TokenCounts& counts,
                                    std::int64_t slot,
                                    ConstTensorView prompt_ids,
                                    ConstTensorView output_ids) {
  KOHO_TRY(bind());
  const std::int64_t vocabulary = counts.entries.size(1);
  const std::int64_t nonzero_words = counts.nonzero.size(1);
  KOHO_CUDA_TRY(
      launch_reset_counts({.entries = counts.entries.as<std::int32_t>() + slot * vocabulary,
                           .nonzero = counts.nonzero.as<std::int32_t>() + slot * nonzero_words,
                           .vocabulary = vocabulary,
                           .nonzero_words = nonzero_words,
                           .prompt = i32(prompt_ids),
                           .prompt_count = prompt_ids.size(0),
                           .output = i32(output_ids),
                           .output_count = output_ids.size(0)},
                          stream_));
  return {};
}

Status CudaBackend::do_count_sampled(const TokenCounts& counts,
                                     ConstTensorView rows,
                                     ConstTensorView ids) {
  KOHO_TRY(bind());
  KOHO_CUDA_TRY(launch_count_sampled({.entries = counts.entries.as<std::int32_t>(),
                                      .nonzero = counts.nonzero.as<std::int32_t>(),
                                      .slots = counts.entries.size(0),
                                      .vocabulary = counts.entries.size(1),
                                      .nonzero_words = counts.nonzero.size(1),
                                      .rows = reinterpret_cast<const SamplingRow*>(rows.data),
                                      .ids = i32(ids),
                                      .row_count = ids.size(0)},
                                     stream_));
  return {};
}

}  // namespace koho::cuda

namespace koho {

bool cuda_is_built() {
  return true;
}

Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaOptions& options) {
  return cuda::CudaBackend::open(options);
}

Result<std::int64_t> cuda_memory_bytes(int device) {
  KOHO_TRY(cuda::check_exists(device));
  // NOTE: not cudaMemGetInfo(), which creates a context of some hundred MB on the GPU until this
  // process ends; it may be one that only starts the workers.
  cudaDeviceProp properties{};
  KOHO_CUDA_TRY(cudaGetDeviceProperties(&properties, device));
  return static_cast<std::int64_t>(properties.totalGlobalMem);
}

Result<CudaProperties> cuda_properties(int device) {
  KOHO_TRY(cuda::check_exists(device));
  cudaDeviceProp properties{};
  KOHO_CUDA_TRY(cudaGetDeviceProperties(&properties, device));
  int clock_khz = 0;
  KOHO_CUDA_TRY(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, device));
  const double width_bytes = properties.memoryBusWidth / 8.0;
  return CudaProperties{properties.name, 2.0 * 1e3 * clock_khz * width_bytes,
                        10 * properties.major + properties.minor};
}

}  // namespace koho
