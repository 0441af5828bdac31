// SPDX-License-Identifier: Apache-2.0
// Times the configurations of Hopper's GEMM kernels beside each other on one GPU.
//
//   decode   for each shape and number of tokens: every configuration of both decode kernels
//            (src/cuda/gemm/gemm_decode_*_sm90.cu), compared bit for bit; koho's own choice is
//            marked, and cuBLASLt with scalar scales is timed beside it
//   prefill  both GEMMs of an expert layer with the rows of 8,192 tokens (gemm_prefill_sm90.cu)
//
// choose_gemm.cpp is set from what this prints.
//
//   gemm_bench [--only NAME] [--tokens N,…] [--chosen] [--form TEXT] [--no-library] [--top N]
//              [--out FILE] [--commit HASH]
//
// --chosen leaves out experts and the configurations that koho does not choose, --form those whose
// name lacks the text (or each of several texts, separated by semicolons).
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <fmt/core.h>

#include "base/arithmetic.h"
#include "bench/gemm_timing.h"
#include "bench/result_file.h"
#include "cuda/device/runtime.h"
#include "cuda/gemm/choose_gemm.h"
#include "cuda/gemm/launch_gemm_sm90.h"
#include "cuda/gemm/tiled_layout.h"

namespace {

using namespace koho;              // NOLINT(google-build-using-namespace): a program
using namespace koho::cuda;        // NOLINT(google-build-using-namespace)
using namespace koho::gemm_bench;  // NOLINT(google-build-using-namespace)

constexpr int kExpertCalls = 10;  // of the prefill kernel in a graph

constexpr Shape kShapes[] = {
    {"qkv_tp4", TileType::fp8, 3584, 5120},      {"o_tp4", TileType::fp8, 5120, 3072},
    {"dense_tp4", TileType::fp8, 6144, 5120},    {"qkv_tp8", TileType::fp8, 1792, 5120},
    {"o_tp8", TileType::fp8, 5120, 1536},        {"dense_tp8", TileType::fp8, 3072, 5120},
    {"qkv_tp1", TileType::fp8, 14336, 5120},     {"o_tp1", TileType::fp8, 5120, 12288},
    {"dense_tp1", TileType::fp8, 24576, 5120},   {"qkv_air", TileType::fp8, 14336, 4096},
    {"o_air", TileType::fp8, 4096, 12288},       {"dense_air", TileType::fp8, 21888, 4096},
    {"qkv_air_4", TileType::fp8, 3584, 4096},    {"o_air_4", TileType::fp8, 4096, 3072},
    {"qkv_air_8", TileType::fp8, 1792, 4096},    {"o_air_8", TileType::fp8, 4096, 1536},
    {"head_tp4", TileType::bf16, 37888, 5120},   {"head_tp8", TileType::bf16, 18944, 5120},
    {"head_air_4", TileType::bf16, 37888, 4096}, {"head_whole", TileType::bf16, 151552, 5120},
    {"head_air", TileType::bf16, 151552, 4096},
};

/// One of an expert's two GEMMs.
struct ExpertShape {
  Shape shape;
  bool gate_up;
  int tokens;  // of an expert, about: of 8,192 tokens
};
constexpr ExpertShape kExpertShapes[] = {
    {{"w13_air", TileType::fp8, 2816, 4096}, true, 512},
    {{"w2_air", TileType::fp8, 4096, 1408}, false, 512},
    {{"w13_ep4", TileType::fp8, 3072, 5120}, true, 416},
    {{"w2_ep4", TileType::fp8, 5120, 1536}, false, 416},
    {{"w13_tp4", TileType::fp8, 768, 5120}, true, 416},
    {{"w2_tp4", TileType::fp8, 5120, 384}, false, 416},
};
constexpr int kExpertsMax = 64;
constexpr int kExpertRowsMax = 512 + 32;
constexpr double kFp8Ceiling = 1.979e15;  // nominal operations a second
constexpr double kBf16Ceiling = 0.989e15;

struct Arguments {
  std::string only;
  std::vector<int> tokens = {1, 8, 16, 32, 64, 128};
  bool chosen = false;  // only what choose_gemm.cpp chooses
  std::string form;     // besides it, those with this in their name
  bool library = true;  // cuBLASLt beside them
  std::string out;
  std::string commit;
  std::string command = "gemm_bench";
  int top = 5;
};

std::string form_name(const DecodeGemmConfig& form, int split_k) {
  const std::string width = split_k == 1 ? "1 part" : fmt::format("{} parts a cluster", split_k);
  if (form.rows > 0)
    return fmt::format("unswapped, {} rows x {} tokens a CTA, {}, slots of {}{}{}{}", form.rows,
                       form.columns, form.columns > 64 ? width : "whole width", form.slot_width,
                       form.weight_multicast > 1 ? ", 2 sharing" : "",
                       form.ctas_per_sm > 1 ? ", half a multiprocessor" : "",
                       form.ctas > 0 ? fmt::format(", {} CTAs", form.ctas) : "");
  return fmt::format("{} tokens a CTA, {}, slots of {}, ring {} KB, {} copying", form.columns,
                     width, form.slot_width, form.ring_bytes >> 10, form.producer_warps);
}

bool same(const DecodeGemmConfig& a, const DecodeGemmConfig& b) {
  return a.columns == b.columns && a.slot_width == b.slot_width && a.ring_bytes == b.ring_bytes &&
         a.producer_warps == b.producer_warps && a.rows == b.rows &&
         a.weight_multicast == b.weight_multicast && a.ctas_per_sm == b.ctas_per_sm &&
         a.ctas == b.ctas;
}

/// What choose_gemm.cpp chooses first, then all that are worth a look; none where it chooses a
/// prefill kernel.
std::vector<DecodeGemmConfig> forms_of(const Gemm& p, int multiprocessors, bool chosen) {
  std::vector<DecodeGemmConfig> forms{choose_decode_gemm_config(p, multiprocessors)};
  if (forms.front().rows == 0 && p.tokens > forms.front().columns) return {};
  const auto add = [&](const DecodeGemmConfig& form) {
    if (!same(form, forms.front())) forms.push_back(form);
  };
  if (chosen) return forms;
  const bool bf16 = p.type == TileType::bf16;
  for (const int columns : {8, 16, 32, 64, 128}) {
    if (columns < p.tokens || (columns > 16 && columns / 2 >= p.tokens)) continue;
    for (const int kilobytes : {50, 54, 66, 72, 75, 100, 147, 200})
      for (const int producer_warps : {1, 2})
        add({.columns = columns,
             .slot_width = bf16 || columns < 64 ? 256 : 128,
             .ring_bytes = kilobytes << 10,
             .producer_warps = producer_warps});
  }
  if (p.tokens <= 8) return forms;
  for (DecodeGemmConfig form : unswapped_configs(p)) {
    add(form);
    if (!is_persistent(form)) continue;
    const int blocks = ceil_div(p.rows, form.rows);
    const int each = ceil_div(blocks, multiprocessors);
    form.ctas = ceil_div(blocks, each);
    if (each > 1) add(form);
  }
  return forms;
}

/// Token blocks of at most `columns` tokens, of experts with about expert.tokens tokens each.
std::vector<ExpertTokenBlock> token_blocks_of(const ExpertShape& expert, int experts, int columns) {
  std::vector<ExpertTokenBlock> list;
  int rows = 0;
  for (int e = 0; e < experts; ++e) {
    const int of_expert = expert.tokens + (e * 7 % 5 - 2) * 16;
    const int blocks = ceil_div(of_expert, columns);
    const auto begin = [&](int block) {
      return std::min(of_expert,
                      of_expert / kPrefillTokenStep * block / blocks * kPrefillTokenStep);
    };
    for (int block = 0; block < blocks; ++block)
      list.push_back({e, rows + begin(block), begin(block + 1) - begin(block),
                      static_cast<std::int16_t>(block), static_cast<std::int16_t>(blocks)});
    rows += of_expert;
  }
  return list;
}

struct Timed {
  DecodeGemmConfig form;
  double us;
  bool chosen;
};

class FormsBench {
 public:
  FormsBench(Arguments arguments, cudaStream_t stream, int multiprocessors)
      : arguments_(std::move(arguments)), stream_(stream), multiprocessors_(multiprocessors) {}

  Status run() {
    const auto chosen = [&](const char* name) {
      return std::string(name).find(arguments_.only) != std::string::npos;
    };
    const auto of_linear = [&](const Shape& shape) { return chosen(shape.name); };
    const auto of_experts = [&](const ExpertShape& shape) { return chosen(shape.shape.name); };
    if (std::ranges::none_of(kShapes, of_linear) &&
        (arguments_.chosen || std::ranges::none_of(kExpertShapes, of_experts)))
      return make_error(ErrorCode::invalid_argument, "no shape has \"{}\" in its name",
                        arguments_.only);
    cublasLtHandle_t handle = nullptr;
    if (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS)
      return make_error(ErrorCode::device_error, "cublasLtCreate failed");
    const auto memory = std::make_shared<DeviceMemory>(0);
    for (const Shape& shape : kShapes) {
      if (!of_linear(shape)) continue;
      KOHO_TRY_ASSIGN(const Operands o, make_operands(memory, shape, kTokensMax));
      for (const int tokens : arguments_.tokens) KOHO_TRY(run_shape(handle, o, shape, tokens));
    }
    cublasLtDestroy(handle);
    if (arguments_.chosen) return {};
    for (const ExpertShape& shape : kExpertShapes)
      if (of_experts(shape)) KOHO_TRY(run_experts(memory, shape));
    return different_ == 0
               ? Status{}
               : make_error(ErrorCode::internal, "{} forms have other bits", different_);
  }

  const std::string& rows() const { return rows_; }

 private:
  Status run_shape(cublasLtHandle_t handle, const Operands& o, const Shape& shape, int tokens) {
    Gemm p;
    const int element = shape.type == TileType::bf16 ? 2 : 1;
    p.tiles = shape.rows / kTileRows;
    p.rows = shape.rows;
    p.width_bytes = shape.width * element;
    p.row_scales = o.row_scales.as<const float>();
    p.x = o.x.as<const std::uint8_t>();
    p.x_stride_bytes = p.width_bytes;
    p.x_bytes = p.width_bytes;
    p.x_scales = o.x_scales.as<const float>();
    p.tokens = tokens;
    p.out = o.out.as<void>();
    p.out_stride = shape.rows;
    p.type = shape.type;
    p.epilogue = shape.type == TileType::bf16 ? Epilogue::f32 : Epilogue::bf16;
    p.split_k = choose_split_k(p.tiles, p.width_bytes);
    const std::size_t out_bytes = static_cast<std::size_t>(tokens) *
                                  static_cast<std::size_t>(shape.rows) *
                                  (p.epilogue == Epilogue::f32 ? 4U : 2U);
    std::vector<std::uint8_t> expected(out_bytes);
    std::vector<std::uint8_t> got(out_bytes);
    std::vector<Timed> timed;
    for (const DecodeGemmConfig& form : forms_of(p, multiprocessors_, arguments_.chosen)) {
      if (!timed.empty() && !wanted(form_name(form, p.split_k))) continue;
      const auto call = [&](std::int64_t copy) -> Status {
        p.weight = o.weights.as<const std::uint8_t>() + copy * o.matrix_bytes;
        return launch_decode_gemm(p, form, stream_);
      };
      KOHO_CUDA_TRY(cudaMemsetAsync(p.out, 0xFF, out_bytes, stream_));
      KOHO_TRY(call(0));
      KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
      std::vector<std::uint8_t>& bytes = timed.empty() ? expected : got;
      KOHO_CUDA_TRY(cudaMemcpy(bytes.data(), p.out, out_bytes, cudaMemcpyDeviceToHost));
      if (!timed.empty() && got != expected) {
        ++different_;
        std::printf("OTHER BITS: %d x %d, %d tokens: %s\n", shape.rows, shape.width, tokens,
                    form_name(form, p.split_k).c_str());
      }
      KOHO_TRY_ASSIGN(const double us, time_calls(stream_, o.copies, timing_of(o), call));
      timed.push_back({form, us, timed.empty()});
    }
    if (timed.empty()) return {};
    CublasLtTimes library;
    if (arguments_.library) {
      const DecodeGemmConfig form = timed.front().form;
      KOHO_TRY_ASSIGN(library, time_cublaslt(stream_, handle, o, shape, tokens, [&] {
                        return time_calls(stream_, o.copies, timing_of(o), [&](std::int64_t copy) {
                          p.weight = o.weights.as<const std::uint8_t>() + copy * o.matrix_bytes;
                          return launch_decode_gemm(p, form, stream_);
                        });
                      }));
      if (library.koho > 0.0) timed.front().us = library.koho;
    }
    const double bytes = static_cast<double>(o.matrix_bytes) +
                         static_cast<double>(tokens) * p.width_bytes +
                         static_cast<double>(out_bytes);
    const Timed chosen = timed.front();
    std::stable_sort(timed.begin(), timed.end(),
                     [](const Timed& a, const Timed& b) { return a.us < b.us; });
    std::printf(
        "%-10s %5d x %5d, %3d tokens: chosen %6.2f us (%4.1f %% of bandwidth), best %6.2f, "
        "cuBLASLt %6.2f, fast sums %6.2f\n",
        shape.name, shape.rows, shape.width, tokens, chosen.us,
        1e8 * bytes / kReadCeiling / chosen.us, timed.front().us, library.accumulated,
        library.fast);
    const auto row = [&](const std::string& form, double us, bool is_chosen = false) {
      add_row(shape, tokens, {.form = form, .us = us, .bytes = bytes, .chosen = is_chosen});
    };
    for (const Timed& of : timed) {
      if (of.chosen || &of - timed.data() < arguments_.top)
        std::printf("  %s %6.2f us  %s\n", of.chosen ? "*" : " ", of.us,
                    form_name(of.form, p.split_k).c_str());
      row(form_name(of.form, p.split_k), of.us, of.chosen);
    }
    if (library.accumulated > 0.0) row("cuBLASLt, one scale", library.accumulated);
    if (library.fast > 0.0) row("cuBLASLt, one scale, fast accumulation", library.fast);
    std::fflush(stdout);
    return {};
  }

  /// Experts of about expert.tokens rows each, one after the other.
  Status run_experts(const std::shared_ptr<DeviceMemory>& memory, const ExpertShape& expert) {
    const Shape& shape = expert.shape;
    constexpr int kRowsMax = kExpertsMax * kExpertRowsMax;
    KOHO_TRY_ASSIGN(const Operands o, make_operands(memory, shape, kRowsMax));
    const int experts = static_cast<int>(std::min<std::int64_t>(o.copies, kExpertsMax));
    std::vector<float> row_scales(static_cast<std::size_t>(experts) *
                                  static_cast<std::size_t>(shape.rows));
    for (std::size_t i = 0; i < row_scales.size(); ++i)
      row_scales[i] = 1e-3F + 1e-6F * static_cast<float>(i % 1000);
    const auto scale_bytes = static_cast<std::int64_t>(row_scales.size() * 4);
    KOHO_TRY_ASSIGN(const DeviceBlock scales,
                    DeviceBlock::allocate(memory, scale_bytes, "the bench"));
    KOHO_TRY(copy_to(scales, row_scales.data(), row_scales.size() * 4));
    KOHO_TRY_ASSIGN(
        const DeviceBlock token_blocks,
        DeviceBlock::allocate(memory, kExpertsMax * 8 * sizeof(ExpertTokenBlock), "bench"));
    KOHO_TRY_ASSIGN(const DeviceBlock count, DeviceBlock::allocate(memory, 4, "the bench"));
    Gemm p;
    p.weight = o.weights.as<const std::uint8_t>();
    p.row_scales = scales.as<const float>();
    p.tiles = shape.rows / kTileRows;
    p.rows = shape.rows;
    p.width_bytes = shape.width;
    p.x = o.x.as<const std::uint8_t>();
    p.x_stride_bytes = shape.width;
    p.x_bytes = shape.width;
    p.x_scales = o.x_scales.as<const float>();
    p.token_blocks = token_blocks.as<const ExpertTokenBlock>();
    p.token_block_count = count.as<const std::int32_t>();
    p.out = o.out.as<void>();
    p.out_stride = expert.gate_up ? shape.rows / 2 : shape.rows;
    p.epilogue = expert.gate_up ? Epilogue::silu_mul : Epilogue::bf16;
    std::vector<std::uint8_t> expected;
    for (const int columns : {kPrefillTokensMax, kPrefillTokensMid, 128}) {
      const std::vector<ExpertTokenBlock> list = token_blocks_of(expert, experts, columns);
      const int rows = list.back().first + list.back().count;
      const auto token_block_count = static_cast<std::int32_t>(list.size());
      KOHO_TRY(copy_to(token_blocks, list.data(), list.size() * sizeof(ExpertTokenBlock)));
      KOHO_TRY(copy_to(count, &token_block_count, 4));
      PrefillTensorMaps maps;
      KOHO_TRY(make_prefill_tensor_maps(
          maps,
          {.data = p.x, .row_bytes = p.x_bytes, .rows = rows, .stride_bytes = p.x_stride_bytes},
          columns));
      const auto call = [&](std::int64_t) -> Status {
        KOHO_CUDA_TRY(launch_gemm_prefill_sm90(p, maps, columns, multiprocessors_, stream_));
        return {};
      };
      const auto out_bytes =
          static_cast<std::size_t>(rows) * static_cast<std::size_t>(p.out_stride) * 2;
      KOHO_CUDA_TRY(cudaMemsetAsync(p.out, 0xFF, out_bytes, stream_));
      KOHO_TRY(call(0));
      KOHO_CUDA_TRY(cudaStreamSynchronize(stream_));
      std::vector<std::uint8_t> got(out_bytes);
      KOHO_CUDA_TRY(cudaMemcpy(got.data(), p.out, out_bytes, cudaMemcpyDeviceToHost));
      const std::string name = fmt::format("up to {} tokens at a time", columns);
      if (expected.empty()) expected = got;
      if (got != expected) {
        ++different_;
        std::printf("OTHER BITS: %s: %s\n", shape.name, name.c_str());
      }
      KOHO_TRY_ASSIGN(const double us, time_calls(stream_, 1, {kExpertCalls, {}}, call));
      const double flops = 2.0 * rows * static_cast<double>(shape.rows) * shape.width;
      std::printf("%-10s %5d x %5d, %d experts, %5d rows: %8.1f us, %4.1f %% of FP8  %s\n",
                  shape.name, shape.rows, shape.width, experts, rows, us,
                  1e8 * flops / kFp8Ceiling / us, name.c_str());
      std::fflush(stdout);
      const double bytes = static_cast<double>(experts * o.matrix_bytes) +
                           static_cast<double>(rows) * shape.width + static_cast<double>(out_bytes);
      add_row(shape, rows, {.form = name, .us = us, .bytes = bytes});
    }
    return {};
  }

  /// Whether one of the texts asked for is in a form's name.
  bool wanted(const std::string& name) const {
    std::size_t begin = 0;
    while (true) {
      const std::size_t end = std::min(arguments_.form.find(';', begin), arguments_.form.size());
      if (name.find(arguments_.form.substr(begin, end - begin)) != std::string::npos) return true;
      if (end == arguments_.form.size()) return false;
      begin = end + 1;
    }
  }

  struct Row {
    std::string form;
    double us;
    double bytes;  // that it has to move
    bool chosen = false;
  };
  void add_row(const Shape& shape, int tokens, const Row& row) {
    const double flops = 2.0 * tokens * static_cast<double>(shape.rows) * shape.width;
    const double peak = shape.type == TileType::bf16 ? kBf16Ceiling : kFp8Ceiling;
    const double read_us = 1e6 * row.bytes / kReadCeiling;
    const double floor_us = std::max(read_us, 1e6 * flops / peak);
    rows_ += fmt::format(
        "{}  {{\"op\": \"linear\", \"case\": \"linear_{}\", \"shape\": {{\"columns\": {}, "
        "\"rows\": {}, \"tokens\": {}}}, \"form\": \"{}\", \"chosen\": {}, \"us\": {:.2f}, "
        "\"bytes\": {:.0f}, \"flops\": {:.0f}, \"pct_of_bandwidth\": {:.1f}, \"pct_of_floor\": "
        "{:.1f}}}",
        rows_.empty() ? "" : ",\n", shape.name, shape.width, shape.rows, tokens, row.form,
        row.chosen, row.us, row.bytes, flops, 100.0 * read_us / row.us, 100.0 * floor_us / row.us);
  }

  Arguments arguments_;
  cudaStream_t stream_;
  int multiprocessors_;
  int different_ = 0;
  std::string rows_;
};

Status run_bench(const Arguments& arguments) {
  KOHO_TRY_ASSIGN(const DeviceInfo device, open_device(0));
  if (!device.hopper())
    return make_error(
        ErrorCode::unsupported,
        "{} has compute capability {}.{}; the kernels compared here are Hopper's, 9.0", device.name,
        device.major, device.minor);
  cudaStream_t stream = nullptr;
  KOHO_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  FormsBench bench(arguments, stream, device.multiprocessors);
  KOHO_TRY(bench.run());
  KOHO_CUDA_TRY(cudaStreamDestroy(stream));
  if (arguments.out.empty()) return {};
  return bench::write_result_file(arguments.out,
                                  {.machine = device.name,
                                   .commit = arguments.commit,
                                   .command = arguments.command,
                                   .more = {}},
                                  bench.rows());
}

/// Numbers of tokens, divided by commas; empty if one is none that the kernel takes.
std::vector<int> token_counts(const std::string& text) {
  std::vector<int> counts;
  const char* at = text.data();
  const char* end = at + text.size();
  while (true) {
    int count = 0;
    const auto [rest, error] = std::from_chars(at, end, count);
    if (error != std::errc() || count < 1 || count > kTokensMax) return {};
    counts.push_back(count);
    if (rest == end) return counts;
    if (*rest != ',') return {};
    at = rest + 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  bool valid = true;
  for (int i = 1; i < argc; ++i) {
    const int first = i;
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (std::strcmp(argv[i], "--only") == 0)
      arguments.only = value();
    else if (std::strcmp(argv[i], "--tokens") == 0)
      arguments.tokens = token_counts(value());
    else if (std::strcmp(argv[i], "--chosen") == 0)
      arguments.chosen = true;
    else if (std::strcmp(argv[i], "--no-library") == 0)
      arguments.library = false;
    else if (std::strcmp(argv[i], "--form") == 0)
      arguments.form = value();
    else if (std::strcmp(argv[i], "--top") == 0)
      arguments.top = std::atoi(value().c_str());
    else if (std::strcmp(argv[i], "--out") == 0)
      arguments.out = value();
    else if (std::strcmp(argv[i], "--commit") == 0)
      arguments.commit = value();
    else
      valid = false;
    if (std::strcmp(argv[first], "--out") == 0 || std::strcmp(argv[first], "--commit") == 0)
      continue;  // not part of what makes the numbers
    for (int word = first; word <= i; ++word) arguments.command += std::string(" ") + argv[word];
  }
  if (!valid || arguments.tokens.empty()) {
    std::fprintf(
        stderr,
        "usage: gemm_bench [--only NAME] [--tokens N,…] [--chosen] [--form TEXT] [--no-library] "
        "[--top N] [--out FILE] [--commit HASH]; N from 1 to 512\n");
    return 2;
  }
  const koho::Status status = run_bench(arguments);
  if (status.ok()) return 0;
  std::fprintf(stderr, "gemm_bench: %s\n", status.error().message.c_str());
  return koho::error_code_info(status.error().code).exit_code;
}
