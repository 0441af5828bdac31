// SPDX-License-Identifier: Apache-2.0
#include "bench/latency_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/arithmetic.h"
#include "bench/link_times.h"
#include "model/memory_plan.h"

namespace koho::bench {
namespace {

/// Expected different experts of `tokens` tokens under uniform routing.
double uniform_experts(const ModelConfig& config, std::int64_t tokens) {
  const double experts = static_cast<double>(config.n_routed_experts);
  return experts * (1.0 - std::pow(1.0 - static_cast<double>(config.num_experts_per_tok) / experts,
                                   static_cast<double>(tokens)));
}

/// The bytes of a layer's routed experts that the rank reads.
double routed_bytes(const ModelConfig& config, const Shard& shard, const ExpertLoad& load) {
  const double expert = 3.0 * static_cast<double>(config.hidden_size) *
                        static_cast<double>(config.moe_intermediate_size) *
                        (config.quantization ? 1.0 : 2.0);
  if (shard.experts == ExpertLayout::expert_parallel && !load.of_rank.empty())
    return load.of_rank[static_cast<std::size_t>(shard.rank)] * expert;
  return load.distinct * expert / static_cast<double>(shard.ranks);
}

std::string text_of_experts(const LatencyReport& report, const LatencyConditions& conditions) {
  const ExpertLoad& load = *report.experts;
  std::string text = fmt::format("  distinct experts a layer {:.1f}, of uniform routing {:.1f}",
                                 load.distinct, uniform_experts(conditions.config, report.tokens));
  if (conditions.shard.ranks > 1 && !load.of_rank.empty()) {
    const auto most = std::max_element(load.of_rank.begin(), load.of_rank.end());
    text += fmt::format(
        "; rank {} has {:.2f} of them, rank {} the most, {:.2f}; the slowest of each layer {:.2f}",
        conditions.shard.rank, load.of_rank[static_cast<std::size_t>(conditions.shard.rank)],
        most - load.of_rank.begin(), *most, load.slowest);
  }
  return text + '\n';
}

std::string text_of_classes(const LatencyReport& report, double bandwidth) {
  std::string text;
  double sum = 0.0;
  double bound = 0.0;
  for (const LatencyReport::Row& row : report.classes) {
    const double least = 1e3 * row.bytes / bandwidth;
    sum += row.ms;
    bound += least;
    text += fmt::format("  {:<20} {:9.3f} ms  {:8.3f} GB  bound {:8.3f} ms  {:5.1f} %\n", row.name,
                        row.ms, row.bytes / 1e9, least, row.ms > 0 ? 100.0 * least / row.ms : 0.0);
  }
  return text + fmt::format("  {:<20} {:9.3f} ms; bound {:.3f} ms, {:.1f} % of the step\n", "sum",
                            sum, bound, 100.0 * bound / report.ms);
}

std::string text_of_absent(const LatencyReport& report, const LatencyConditions& conditions) {
  const AbsentRanks absent = absent_ranks(report, conditions);
  std::string text = fmt::format(
      "  not in this step: {} all-reduces between GPUs, {:.3f} ms ({}); waiting for "
      "each layer's slowest rank, ",
      absent.all_reduces, absent.links_ms, absent.links_source);
  if (!absent.waiting_ms) return text + "which takes the classes to know\n";
  const double whole = report.ms + absent.links_ms + *absent.waiting_ms;
  return text + fmt::format(
                    "{:.3f} ms (from the experts counted). With both {:.3f} ms, {:.0f} "
                    "tok/s\n",
                    *absent.waiting_ms, whole, 1e3 * static_cast<double>(report.tokens) / whole);
}

}  // namespace

std::vector<OpClass> op_classes(const ModelConfig& config,
                                const Shard& shard,
                                DType kv_dtype,
                                const LatencyReport& report) {
  const auto is = [](Op wanted) { return [wanted](Op op, std::int64_t) { return op == wanted; }; };
  const auto linear = [](std::int64_t wanted) {
    return [wanted](Op op, std::int64_t columns) { return op == Op::linear && columns == wanted; };
  };
  const std::int64_t ranks = shard.ranks;
  const double share = 1.0 / static_cast<double>(ranks);
  const std::int64_t qkv = (config.query_width() + 2 * config.key_value_width()) / ranks;
  const double hidden = static_cast<double>(config.hidden_size);
  const double layers = static_cast<double>(config.num_hidden_layers);
  const double moe_layers = static_cast<double>(config.num_moe_layers());
  const double dense_layers = layers - moe_layers;
  const double element = config.quantization ? 1.0 : 2.0;
  const double query = static_cast<double>(config.query_width());
  const double dense = static_cast<double>(config.intermediate_size);
  const double shared =
      3.0 * hidden * static_cast<double>(config.shared_intermediate_size()) * element;
  const double routed = routed_bytes(config, shard, report.experts.value_or(ExpertLoad{}));
  const double vocabulary = static_cast<double>(config.vocab_size);
  double cached = static_cast<double>(report.tokens);
  if (report.step == "decode") cached = static_cast<double>(report.batch * report.context);
  if (report.step == "mixed")
    cached += static_cast<double>((report.batch - 1) * (report.context - 1));
  return {
      {"qkv", linear(qkv), layers * static_cast<double>(qkv) * hidden * element},
      {"rope, kv write", is(Op::qk_norm_rope_store_kv), 0.0},
      {"attention", is(Op::attention),
       cached * static_cast<double>(kv_bytes_per_token(config, kv_dtype)) * share},
      {"o (and dense down)", linear(config.hidden_size),
       (layers * query + dense_layers * dense) * hidden * element * share},
      {"dense gate_up", linear(2 * config.intermediate_size / ranks),
       dense_layers * 2.0 * hidden * dense * element * share},
      {ranks > 1 ? "all-reduce, norms" : "norms",
       [](Op op, std::int64_t) {
         return op == Op::rms_norm || op == Op::add_rms_norm || op == Op::all_reduce;
       },
       0.0},
      {"router", is(Op::route),
       moe_layers * static_cast<double>(config.n_routed_experts) * hidden * 2.0},
      {"experts", is(Op::experts), moe_layers * (routed + shared * share)},
      {"head", linear(config.vocab_size / ranks), vocabulary * hidden * 2.0 * share},
      {"sampling",
       [](Op op, std::int64_t) {
         return op == Op::sample || op == Op::exchange_logits || op == Op::gather_sampled;
       },
       static_cast<double>(ceil_div(report.batch, ranks)) * vocabulary * 4.0},
      {"the rest",
       [](Op op, std::int64_t) {
         return op == Op::embed || op == Op::gather_rows || op == Op::silu_mul ||
                op == Op::gather_input_ids || op == Op::commit_sampled;
       },
       0.0},
  };
}

AbsentRanks absent_ranks(const LatencyReport& report, const LatencyConditions& conditions) {
  AbsentRanks absent;
  absent.all_reduces = 2 * conditions.config.num_hidden_layers;
  // Beside them the exchange of logits and of what was sampled, once a step, is little.
  const LinkTime link =
      all_reduce_time(conditions.shard.ranks, report.tokens * conditions.config.hidden_size * 2);
  absent.links_ms = static_cast<double>(absent.all_reduces) * link.us / 1e3;
  absent.links_source = link.source;
  // A prompt's tokens choose every rank's experts about as often.
  const bool waits =
      report.step == "decode" && conditions.shard.experts == ExpertLayout::expert_parallel;
  if (!waits) absent.waiting_ms = 0.0;
  if (!waits || !report.experts) return absent;
  const ExpertLoad& load = *report.experts;
  const double own = load.of_rank[static_cast<std::size_t>(conditions.shard.rank)];
  const auto measured =
      std::find_if(report.classes.begin(), report.classes.end(),
                   [](const LatencyReport::Row& row) { return row.name == "experts"; });
  if (measured == report.classes.end() || own <= 0.0) return absent;
  // The class also reads the shared expert, which is alike on all ranks.
  const double routed = routed_bytes(conditions.config, conditions.shard, load) *
                        static_cast<double>(conditions.config.num_moe_layers());
  absent.waiting_ms =
      measured->ms * (routed / measured->bytes) * std::max(load.slowest / own - 1.0, 0.0);
  return absent;
}

std::string text_of(const LatencyReport& report, const LatencyConditions& conditions) {
  std::string text = fmt::format(
      "\n{}  batch {}  tokens {}  context {}: {:.3f} ms, {:.0f} tok/s (enqueued in {:.3f} ms; {} "
      "bytes to the device, {} back)\n",
      report.step, report.batch, report.tokens, report.context, report.ms,
      1e3 * static_cast<double>(report.tokens) / report.ms, report.host_ms, report.traffic.sent,
      report.traffic.fetched);
  if (report.experts) text += text_of_experts(report, conditions);
  if (!report.classes.empty()) text += text_of_classes(report, conditions.bandwidth);
  if (conditions.alone) text += text_of_absent(report, conditions);
  return text + text_of(report.kernels, report.ms);
}

nlohmann::ordered_json json_of(const LatencyReport& report, const LatencyConditions& conditions) {
  nlohmann::ordered_json row = {
      {"op", "step_" + report.step},
      {"shape", {{"batch", report.batch}, {"tokens", report.tokens}, {"context", report.context}}},
      {"us", 1e3 * report.ms},
      {"host_us", 1e3 * report.host_ms},
      {"bytes_sent", report.traffic.sent},
      {"bytes_fetched", report.traffic.fetched}};
  if (report.experts) {
    row["distinct_experts"] = report.experts->distinct;
    if (conditions.shard.ranks > 1 && !report.experts->of_rank.empty()) {
      row["experts_of_ranks"] = report.experts->of_rank;
      row["experts_of_slowest_rank"] = report.experts->slowest;
    }
  }
  if (conditions.alone) {
    const AbsentRanks absent = absent_ranks(report, conditions);
    row["links_us"] = 1e3 * absent.links_ms;
    row["links_source"] = absent.links_source;
    if (absent.waiting_ms) row["waiting_us"] = 1e3 * *absent.waiting_ms;
  }
  for (const LatencyReport::Row& part : report.classes)
    row["classes"].push_back({{"class", part.name},
                              {"us", 1e3 * part.ms},
                              {"bytes", part.bytes},
                              {"bound_us", 1e6 * part.bytes / conditions.bandwidth}});
  if (!report.kernels.empty()) row["kernels"] = json_of(report.kernels);
  return row;
}

}  // namespace koho::bench
