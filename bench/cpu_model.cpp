// SPDX-License-Identifier: Apache-2.0
// Times a whole synthetic model on the CPU backend, through the worker: decode at several batch
// sizes, prefill, and the bandwidth at which the same threads read the same weights, in turn, so
// that a busy moment of the machine meets all of them. Prints one JSON object.
//
//   cpu_model [--threads 2] [--rounds 5] [--batches 1,4,16] [--prompt 512] [--tokens 48]
//
// The shape is that of tools/llama_cpp_bench/make_gguf.py. Tokens are random, as llama-bench has
// them; each decode starts from an empty cache, or from --context tokens.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "base/arithmetic.h"
#include "comm/one_rank.h"
#include "cpu/cpu_backend.h"
#include "model/synthetic.h"
#include "worker/worker.h"

namespace koho::bench {
namespace {

struct Options {
  int threads = 2;
  int rounds = 5;
  CpuIsa isa = CpuIsa::automatic;
  std::vector<std::int64_t> batches{1, 4, 16};
  std::int64_t prompt = 512;
  std::int64_t tokens = 48;
  std::int64_t context = 0;
};

ModelConfig shape() {
  ModelConfig config;
  config.vocab_size = 8192;
  config.hidden_size = 2048;
  config.num_hidden_layers = 14;
  config.num_attention_heads = 16;
  config.num_key_value_heads = 4;
  config.head_dim = 128;
  config.intermediate_size = 6144;
  config.moe_intermediate_size = 704;
  config.n_routed_experts = 32;
  config.n_shared_experts = 1;
  config.num_experts_per_tok = 4;
  config.n_group = 1;
  config.topk_group = 1;
  config.first_k_dense_replace = 1;
  config.max_position_embeddings = 131072;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 1e6;
  config.partial_rotary_factor = 0.5;
  config.routed_scaling_factor = 2.5;
  config.attention_bias = true;
  config.use_qk_norm = true;
  config.norm_topk_prob = true;
  config.quantization = QuantizationConfig{.method = "compressed-tensors",
                                           .schemes = {WeightQuant::fp8_channel},
                                           .ignored = {"lm_head"}};
  return config;
}

/// Weight bytes that a step of one token reads.
std::int64_t active_bytes(const ModelConfig& config, const ModelSources& sources) {
  std::int64_t bytes = bytes_of(sources.final_norm) + bytes_of(sources.lm_head);
  for (const LayerSources& layer : sources.layers) {
    const AttentionSources& a = layer.attention;
    bytes += bytes_of(layer.input_norm) + bytes_of(layer.post_attention_norm) + bytes_of(a.q) +
             bytes_of(a.k) + bytes_of(a.v) + bytes_of(a.o) + bytes_of(a.q_norm) +
             bytes_of(a.k_norm);
    if (layer.mlp) bytes += bytes_of(*layer.mlp);
    if (layer.moe)
      bytes += bytes_of(layer.moe->router) + bytes_of(layer.moe->correction_bias) +
               config.num_experts_per_tok * bytes_of(layer.moe->experts[0]) +
               bytes_of(layer.moe->shared);
  }
  return bytes;
}

// ---- read bandwidth

using SimdVector = std::uint64_t __attribute__((vector_size(64)));

/// Sums memory, which keeps the reads: `Pages` pages side by side, two lines of each in turn.
template <std::size_t Pages>
inline __attribute__((always_inline)) std::uint64_t sum_of(const std::byte* memory,
                                                           std::size_t size) {
  constexpr std::size_t kPage = 4096;
  SimdVector sums[2] = {};
  for (std::size_t first = 0; first + Pages * kPage <= size; first += Pages * kPage) {
    for (std::size_t at = first; at < first + kPage; at += sizeof(sums)) {
      for (std::size_t page = 0; page < Pages; ++page) {
        const auto* vectors = reinterpret_cast<const SimdVector*>(memory + at + page * kPage);
        sums[0] += vectors[0];
        sums[1] += vectors[1];
      }
    }
  }
  std::uint64_t total = 0;
  for (const SimdVector& sum : sums)
    for (std::size_t i = 0; i < 8; ++i) total += sum[i];
  return total;
}

using ReadAll = std::uint64_t (*)(const std::byte* memory, std::size_t size);

/// From the first byte to the last.
__attribute__((target_clones("avx512f", "avx2", "default"))) std::uint64_t read_in_order(
    const std::byte* memory, std::size_t size) {
  return sum_of<1>(memory, size);
}

/// Eight pages at a time: of the orders tried none is faster where a core follows few streams.
__attribute__((target_clones("avx512f", "avx2", "default"))) std::uint64_t read_pages_side_by_side(
    const std::byte* memory, std::size_t size) {
  return sum_of<8>(memory, size);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Bytes a second that `threads` threads read together, each its own part.
double read_bandwidth(std::span<const std::byte> memory, int threads, ReadAll read_all) {
  const std::size_t part = memory.size() / static_cast<std::size_t>(threads) / 4096 * 4096;
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(threads));
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> running;
  for (std::size_t i = 0; i < sums.size(); ++i)
    running.emplace_back([&, i] { sums[i] = read_all(memory.data() + i * part, part); });
  for (std::thread& thread : running) thread.join();
  const double seconds = seconds_since(start);
  volatile std::uint64_t keep = std::accumulate(sums.begin(), sums.end(), std::uint64_t{0});
  static_cast<void>(keep);
  return static_cast<double>(part * sums.size()) / seconds;
}

// ---- steps

class Runner {
 public:
  Runner(Worker& worker, std::int64_t vocabulary, std::int64_t context_max)
      : worker_(worker), vocabulary_(vocabulary), width_(ceil_div(context_max, kPageTokens)) {}

  /// `sequences` sequences of `length` tokens each, from position `first` on; samples one token of
  /// each.
  Status step(std::int64_t sequences, std::int64_t first, std::int64_t length) {
    std::vector<std::int32_t> ids, positions, starts{0}, contexts, batch_slots, page_table_updates,
        rows;
    std::vector<std::int64_t> slots;
    for (std::int64_t s = 0; s < sequences; ++s) {
      batch_slots.push_back(static_cast<std::int32_t>(s));
      for (std::int64_t p = first / kPageTokens; p < ceil_div(first + length, kPageTokens); ++p) {
        page_table_updates.push_back(worker_.page_table_index(s, p));
        page_table_updates.push_back(static_cast<std::int32_t>(s * width_ + p));
      }
      for (std::int64_t i = first; i < first + length; ++i) {
        ids.push_back(
            static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(vocabulary_)));
        positions.push_back(static_cast<std::int32_t>(i));
        slots.push_back(s * width_ * kPageTokens + i);
      }
      starts.push_back(static_cast<std::int32_t>(ids.size()));
      contexts.push_back(static_cast<std::int32_t>(first + length));
      rows.push_back(static_cast<std::int32_t>(ids.size()) - 1);
    }
    const std::vector<SamplingRow> sampling(static_cast<std::size_t>(sequences));
    return worker_.step({.token_ids = ids,
                         .positions = positions,
                         .slots = slots,
                         .query_starts = starts,
                         .context_lengths = contexts,
                         .batch_slots = batch_slots,
                         .decodes = length == 1 ? sequences : 0,
                         .logit_rows = rows,
                         .sample_batch_slots = batch_slots,
                         .sampling = sampling,
                         .biases = {},
                         .masks = {},
                         .page_table_updates = page_table_updates,
                         .output_record_updates = {},
                         .page_copies = {}},
                        output_);
  }

 private:
  Worker& worker_;
  std::int64_t vocabulary_;
  std::int64_t width_;
  std::mt19937_64 random_{1};
  StepOutput output_;
};

/// What one thing gave, round by round.
struct Series {
  std::string name;
  std::vector<double> values;

  double median() const {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t middle = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }
};

/// Room for the largest batch at its longest context, and for the prompt.
WorkerSettings settings_of(const Options& options, const ModelConfig& config) {
  const std::int64_t batch_max =
      std::max<std::int64_t>(1, *std::max_element(options.batches.begin(), options.batches.end()));
  const std::int64_t context_max = std::max(options.prompt, options.context + options.tokens);
  const std::int64_t pages = batch_max * ceil_div(context_max, kPageTokens);
  return {.load = {.shard = {},
                   .limits = {.tokens_max = std::max(options.prompt, batch_max),
                              .sequences_max = batch_max,
                              .context_max = context_max,
                              .logit_rows_max = batch_max,
                              .vocabulary = 0},
                   .kv_pages = pages,
                   .kv_dtype = DType::bf16},
          .counts_slots = 0,
          .mask_rows_max = 0,
          .tokenizer_tokens = config.vocab_size};
}

Result<std::string> measure(const Options& options) {
  const ModelConfig config = shape();
  KOHO_TRY_ASSIGN(const HostSyntheticWeights weights, HostSyntheticWeights::make(config, 7));
  KOHO_TRY_ASSIGN(std::unique_ptr<Backend> backend,
                  make_cpu_backend({.threads = options.threads, .isa = options.isa}));
  const std::string description = backend->description();
  const WorkerSettings settings = settings_of(options, config);
  KOHO_TRY_ASSIGN(Worker worker, Worker::create(config, weights.sources(), settings,
                                                std::move(backend), std::make_unique<OneRank>()));
  Runner runner(worker, config.vocab_size, settings.load.limits.context_max);

  Series bandwidth{"read_bandwidth", {}};
  Series best_bandwidth{"read_bandwidth_pages_side_by_side", {}};
  Series prefill{fmt::format("prefill_{}", options.prompt), {}};
  std::vector<Series> decodes;
  for (const std::int64_t batch : options.batches)
    decodes.push_back({fmt::format("decode_{}", batch), {}});
  for (int round = -1; round < options.rounds; ++round) {  // round -1 warms up
    const auto record = [&](Series& series, double value) {
      if (round >= 0) series.values.push_back(value);
    };
    record(bandwidth, read_bandwidth(weights.bytes(), options.threads, read_in_order));
    record(best_bandwidth,
           read_bandwidth(weights.bytes(), options.threads, read_pages_side_by_side));
    auto start = std::chrono::steady_clock::now();
    if (options.prompt > 0) {
      KOHO_TRY(runner.step(1, 0, options.prompt));
      record(prefill, static_cast<double>(options.prompt) / seconds_since(start));
    }
    for (std::size_t i = 0; i < decodes.size(); ++i) {
      const std::int64_t batch = options.batches[i];
      for (std::int64_t s = 0; s < options.context; ++s) KOHO_TRY(runner.step(batch, s, 1));
      start = std::chrono::steady_clock::now();
      for (std::int64_t t = 0; t < options.tokens; ++t)
        KOHO_TRY(runner.step(batch, options.context + t, 1));
      record(decodes[i], static_cast<double>(batch * options.tokens) / seconds_since(start));
    }
  }

  const std::int64_t active = active_bytes(config, weights.sources());
  std::string text = fmt::format(
      "{{\n  \"backend\": \"{}\", \"weight_bytes\": {}, \"active_bytes\": {},\n"
      "  \"rounds\": {}, \"tokens\": {}, \"context\": {},\n",
      description, weights.bytes().size(), active, options.rounds, options.tokens, options.context);
  const auto line = [&](const Series& series, const char* unit, double factor) {
    std::vector<std::string> all;
    for (const double value : series.values) all.push_back(fmt::format("{:.2f}", value * factor));
    text += fmt::format("  \"{}\": {{\"unit\": \"{}\", \"median\": {:.2f}, \"all\": [{}]}},\n",
                        series.name, unit, series.median() * factor, fmt::join(all, ", "));
  };
  line(bandwidth, "GB/s", 1e-9);
  line(best_bandwidth, "GB/s", 1e-9);
  if (options.prompt > 0) line(prefill, "tok/s", 1.0);
  for (const Series& series : decodes) line(series, "tok/s", 1.0);
  // Round by round: both were measured within a second of each other.
  const auto share = [&](const char* name, const Series& of) {
    Series made{name, {}};
    for (std::size_t i = 0; i < decodes.size(); ++i)
      if (options.batches[i] == 1)
        for (std::size_t r = 0; r < decodes[i].values.size(); ++r)
          made.values.push_back(decodes[i].values[r] * static_cast<double>(active) / of.values[r]);
    if (!made.values.empty()) line(made, "1", 1.0);
  };
  share("decode_1_share_of_bandwidth", bandwidth);
  share("decode_1_share_of_pages_side_by_side", best_bandwidth);
  text.erase(text.size() - 2);
  return text + "\n}\n";
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Times a synthetic glm4_moe model on the CPU.", "cpu_model");
  app.add_option("--threads", options.threads, "Threads")->check(CLI::Range(1, 1024));
  app.add_option("--rounds", options.rounds, "Rounds, each measures everything once")
      ->check(CLI::Range(1, 1000));
  app.add_option("--batches", options.batches, "Sequences decoded at once")
      ->delimiter(',')
      ->check(CLI::Range(1, 256));
  app.add_option("--prompt", options.prompt, "Tokens of the prefill; 0: none")
      ->check(CLI::Range(0, 8192));
  app.add_option("--tokens", options.tokens, "Steps of a decode")->check(CLI::Range(1, 8192));
  app.add_option("--context", options.context, "Tokens in the cache before a decode")
      ->check(CLI::Range(0, 8192));
  app.add_option("--isa", options.isa, "Instruction set")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, CpuIsa>{{"auto", CpuIsa::automatic},
                                        {"plain", CpuIsa::scalar},
                                        {"avx2", CpuIsa::avx2},
                                        {"avx512", CpuIsa::avx512},
                                        {"avx512_bf16", CpuIsa::avx512_bf16},
                                        {"amx", CpuIsa::amx}}));
  CLI11_PARSE(app, argc, argv);
  const Result<std::string> measured = measure(options);
  if (!measured.ok()) {
    std::fprintf(stderr, "cpu_model: %s\n", measured.error().message.c_str());
    return error_code_info(measured.error().code).exit_code;
  }
  std::fputs(measured->c_str(), stdout);
  return 0;
}

}  // namespace
}  // namespace koho::bench

int main(int argc, char** argv) {
  return koho::bench::run(argc, argv);
}
