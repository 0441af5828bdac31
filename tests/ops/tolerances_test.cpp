// SPDX-License-Identifier: Apache-2.0
// The tolerances of attention and experts refuse wrong results: the CPU backend computes, something
// in its inputs or results is spoiled, and the comparison must say so, under the widest bounds that
// a backend has (the CUDA backend's with FP8 tensor cores). In a few cases the fault changes next
// to nothing, so four in five must be refused; the seeds are always the same.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cpu/cpu_backend.h"
#include "ops/compare.h"
#include "ops/op_cases.h"
#include "support/forwarding_backend.h"

namespace koho::testing {
namespace {

enum class Fault {
  none,
  another_page,     // one page of the longest sequence is read in another's place
  last_token,       // no row sees the last token of its context
  part_too_large,   // a head, or an expert, by `factor`
  rows_swapped,     // the results of the first and the last row
  expert_left_out,  // one expert's choices weigh nothing
  wrong_expert      // another expert's weights
};

/// Hands everything to the CPU backend and spoils it in one way.
class SpoilingBackend : public ForwardingBackend {
 public:
  SpoilingBackend(std::unique_ptr<Backend> real, Fault fault, float factor)
      : ForwardingBackend(std::move(real)), fault_(fault), factor_(factor) {}

  /// Told apart from the others that share its operands.
  std::string description() const override {
    return "fault " + std::to_string(static_cast<int>(fault_));
  }
  /// Whether there was something to spoil since the last call.
  bool spoiled() { return std::exchange(spoiled_, false); }

 protected:
  Status do_attention(const Activation& out,
                      ConstTensorView q,
                      const KvLayer& kv,
                      const Batch& batch,
                      const HeadShape& heads) override {
    Batch wrong = batch;
    HostTensor tables = copy(batch.page_tables);
    HostTensor positions = copy(batch.positions);
    const auto* contexts = batch.context_lengths.as<std::int32_t>();
    const std::int64_t longest = std::max_element(contexts, contexts + batch.sequences) - contexts;
    if (fault_ == Fault::another_page && contexts[longest] >= 2 * kPageTokens) {
      std::int32_t* table = tables.as<std::int32_t>() + longest * tables.shape[1];
      table[0] = table[1];
      spoiled_ = true;
    }
    if (fault_ == Fault::last_token)
      for (std::int64_t t = 0; t < batch.tokens; ++t) {
        std::int32_t& position = positions.as<std::int32_t>()[t];
        spoiled_ |= position > 0;
        position = std::max(position - 1, 0);
      }
    wrong.page_tables = tables.view();
    wrong.positions = positions.view();
    KOHO_TRY(real().attention(out, q, kv, wrong, heads));
    if (fault_ == Fault::part_too_large)
      for (std::int64_t t = 0; t < batch.tokens; ++t) scale(row(out.values, t), heads.width);
    swap_rows(out.values);
    return {};
  }

  Status do_experts(TensorView out,
                    const Activation& x,
                    const Routing& routing,
                    const Experts& weights) override {
    const std::int64_t choices = routing.ids.size(0) * routing.ids.size(1);
    std::int32_t* ids = routing.ids.as<std::int32_t>();
    std::vector<std::int64_t> chosen(static_cast<std::size_t>(weights.count), 0);
    for (std::int64_t i = 0; i < choices; ++i)
      if (ids[i] >= weights.first && ids[i] < weights.first + weights.count)
        ++chosen[static_cast<std::size_t>(ids[i] - weights.first)];
    const auto most = std::max_element(chosen.begin(), chosen.end());
    if (most == chosen.end() || *most == 0) return real().experts(out, x, routing, weights);
    const HostTensor ids_before = copy(routing.ids);  // other backends read them too
    const HostTensor weights_before = copy(routing.weights);
    const std::int64_t expert = weights.first + (most - chosen.begin());
    for (std::int64_t i = 0; i < choices; ++i) {
      if (ids[i] != expert) continue;
      float& weight = routing.weights.as<float>()[i];
      if (fault_ == Fault::part_too_large) weight *= factor_;
      if (fault_ == Fault::expert_left_out) weight = 0.0F;
      const std::int64_t other = weights.first + (expert - weights.first + 1) % weights.count;
      if (fault_ == Fault::wrong_expert) ids[i] = static_cast<std::int32_t>(other);
      spoiled_ |= fault_ == Fault::part_too_large || fault_ == Fault::expert_left_out ||
                  (fault_ == Fault::wrong_expert && other != expert);
    }
    const Status status = real().experts(out, x, routing, weights);
    std::memcpy(routing.ids.data, ids_before.bytes.data(), ids_before.bytes.size());
    std::memcpy(routing.weights.data, weights_before.bytes.data(), weights_before.bytes.size());
    KOHO_TRY(status);
    swap_rows(out);
    return {};
  }

 private:
  static HostTensor copy(const ConstTensorView& view) {
    HostTensor tensor(view.dtype, view.shape);
    std::memcpy(tensor.bytes.data(), view.data, tensor.bytes.size());
    return tensor;
  }
  static BFloat16* row(const TensorView& view, std::int64_t index) {
    return view.as<BFloat16>() + index * view.stride(0);
  }
  void scale(BFloat16* values, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) values[i] = to_bf16(to_float(values[i]) * factor_);
    spoiled_ = true;
  }
  void swap_rows(const TensorView& view) {
    if (fault_ != Fault::rows_swapped || view.size(0) < 2) return;
    std::swap_ranges(row(view, 0), row(view, 0) + view.size(1), row(view, view.size(0) - 1));
    spoiled_ = true;
  }

  Fault fault_;
  float factor_;
  bool spoiled_ = false;
};

/// Attention of bf16 pages as GPUs compute it: the softmax's weights rounded to bf16 before they
/// multiply v, against the largest score so far.
class RoundedWeightsBackend : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

 protected:
  Status do_attention(const Activation& out,
                      ConstTensorView q,
                      const KvLayer& kv,
                      const Batch& batch,
                      const HeadShape& heads) override {
    const auto* starts = batch.query_starts.as<std::int32_t>();
    for (std::int64_t s = 0; s < batch.sequences; ++s)
      for (std::int64_t t = starts[s]; t < starts[s + 1]; ++t)
        for (std::int64_t head = 0; head < heads.query_heads; ++head) {
          const std::int64_t at = t * heads.query_heads + head;
          attend(out.values.as<BFloat16>() + at * heads.width, q.as<BFloat16>() + at * heads.width,
                 kv, batch, s, t, head / (heads.query_heads / heads.kv_heads), heads);
        }
    return {};
  }

 private:
  static void attend(BFloat16* out,
                     const BFloat16* q,
                     const KvLayer& kv,
                     const Batch& batch,
                     std::int64_t sequence,
                     std::int64_t t,
                     std::int64_t head,
                     const HeadShape& heads) {
    const std::int32_t* pages =
        batch.page_tables.as<std::int32_t>() + sequence * batch.page_tables.stride(0);
    const std::int64_t width = heads.width;
    std::vector<float> sums(static_cast<std::size_t>(width), 0.0F);
    float largest = -INFINITY;
    float total = 0.0F;
    for (std::int64_t token = 0; token <= batch.positions.as<std::int32_t>()[t]; ++token) {
      const std::int64_t at =
          (pages[token / kPageTokens] * heads.kv_heads + head) * kPageTokens + token % kPageTokens;
      float score = 0.0F;
      for (std::int64_t i = 0; i < width; ++i)
        score += to_float(q[i]) * to_float(kv.k.as<BFloat16>()[at * width + i]);
      score /= std::sqrt(static_cast<float>(width));
      const float now = std::max(largest, score);
      const float before = std::exp(largest - now);
      const float weight = std::exp(score - now);
      largest = now;
      total = total * before + weight;
      for (std::int64_t i = 0; i < width; ++i) {
        float& sum = sums[static_cast<std::size_t>(i)];
        sum = sum * before +
              to_float(to_bf16(weight)) * to_float(kv.v.as<BFloat16>()[at * width + i]);
      }
    }
    for (std::int64_t i = 0; i < width; ++i)
      out[i] = to_bf16(sums[static_cast<std::size_t>(i)] / total);
  }
};

/// What the CUDA backend asks for where FP8 tensor cores multiply, and where they do not.
const OpCaseOptions kTensorCores{.batch_invariant = false,
                                 .accumulation_error = 33.0 / 8192.0,
                                 .attention_weight_error = 0x1p-8,
                                 .attention_weight_step = 0x1p-38,
                                 .decode_matches_prefill = false,
                                 .instruction_error = std::sqrt(33.0 / 3.0) / 8192.0};
const OpCaseOptions kPortable{.batch_invariant = false,
                              .attention_weight_error = 0x1p-8,
                              .attention_weight_step = 0x1p-38,
                              .decode_matches_prefill = false};

/// What `faults` says of `backend`.
std::string part_of(const std::string& faults, const Backend& backend) {
  const std::size_t begin = faults.find(backend.description() + ": ");
  if (begin == std::string::npos) return {};
  return faults.substr(begin, faults.find("\nfault ", begin) - begin);
}

/// Backends of one fault each, which share operands and references.
void expect_rejected(const std::string& name,
                     const std::vector<Fault>& faults,
                     const OpCaseOptions& options,
                     int seeds,
                     float factor = 1.0F) {
  const auto op_case = std::find_if(op_cases().begin(), op_cases().end(),
                                    [&](const OpCase& one) { return one.name == name; });
  ASSERT_NE(op_case, op_cases().end());
  std::vector<int> spoiled(faults.size());
  std::vector<int> refused(faults.size());
  for (int seed = 0; seed < seeds; ++seed) {
    std::vector<std::unique_ptr<SpoilingBackend>> spoiling;
    std::vector<Backend*> backends;
    for (const Fault fault : faults) {
      spoiling.push_back(
          std::make_unique<SpoilingBackend>(*make_cpu_backend({.threads = 1}), fault, factor));
      backends.push_back(spoiling.back().get());
    }
    const std::string all = op_case->run_on(backends, static_cast<std::uint64_t>(seed), options);
    for (std::size_t i = 0; i < faults.size(); ++i) {
      const std::string found = part_of(all, *spoiling[i]);
      if (!spoiling[i]->spoiled()) {
        EXPECT_EQ(found, "") << name << ", seed " << seed;
        continue;
      }
      ++spoiled[i];
      // By these tolerances, not by quantised values that are no longer those of the values.
      refused[i] += static_cast<int>(found.find("±") != std::string::npos ||
                                     found.find("relative L2") != std::string::npos);
    }
  }
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (faults[i] == Fault::none) continue;
    const std::string which = name + ", fault " + std::to_string(static_cast<int>(faults[i]));
    EXPECT_GT(spoiled[i], seeds / 4) << which;
    EXPECT_GE(refused[i] * 5, spoiled[i] * 4)
        << which << ": of " << spoiled[i] << " wrong results " << refused[i] << " were refused";
  }
}

TEST(Tolerances, AcceptRightResults) {
  for (const char* name : {"attention_bf16", "attention_e4m3"})
    expect_rejected(name, {Fault::none}, kTensorCores, 10);
  expect_rejected("experts_fp8_channel", {Fault::none}, kPortable, 10);
}

// The first two seeds have a row where large terms cancel: on a GPU its error is 1.6 and 0.8 % of
// it.
TEST(Tolerances, AcceptRoundedSoftmaxWeights) {
  const auto op_case = std::find_if(op_cases().begin(), op_cases().end(),
                                    [](const OpCase& one) { return one.name == "attention_bf16"; });
  for (const std::uint64_t seed : {1795330645ULL, 3000ULL, 1ULL, 2ULL, 3ULL, 4ULL, 5ULL, 6ULL}) {
    RoundedWeightsBackend backend(*make_cpu_backend({.threads = 1}));
    const std::string faults = op_case->run(backend, seed, kTensorCores);
    EXPECT_EQ(faults.find("±"), std::string::npos) << "seed " << seed << ": " << faults;
    EXPECT_EQ(faults.find("relative L2"), std::string::npos) << "seed " << seed << ": " << faults;
  }
}

TEST(Tolerances, RejectWrongAttention) {
  for (const char* name : {"attention_bf16", "attention_e4m3"}) {
    expect_rejected(
        name, {Fault::another_page, Fault::last_token, Fault::part_too_large, Fault::rows_swapped},
        kTensorCores, 20, 1.01F);
  }
}

// One page of 2,048, one token of 131,072.
TEST(Tolerances, RejectWrongAttentionOverTheLongestContext) {
  for (const char* name : {"attention_decode_of_131072_bf16", "attention_decode_of_131072_e4m3",
                           "attention_prompt_of_131072_bf16", "attention_prompt_of_131072_e4m3"}) {
    expect_rejected(name, {Fault::another_page, Fault::last_token}, kTensorCores, 2);
  }
}

TEST(Tolerances, RejectWrongExperts) {
  for (const char* name : {"experts_bf16", "experts_fp8_channel", "experts_fp8_block"}) {
    expect_rejected(name, {Fault::rows_swapped, Fault::expert_left_out, Fault::wrong_expert},
                    kTensorCores, 20);
  }
}

// Backends that share operands and reference: each has its own weights and is judged by itself.
TEST(Tolerances, NameTheWrongBackendAmongSeveral) {
  for (const char* name : {"attention_bf16", "experts_fp8_channel"}) {
    const auto op_case = std::find_if(op_cases().begin(), op_cases().end(),
                                      [&](const OpCase& one) { return one.name == name; });
    ASSERT_NE(op_case, op_cases().end());
    int spoiled = 0;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      const std::unique_ptr<Backend> right = *make_cpu_backend({.threads = 2});
      SpoilingBackend wrong(*make_cpu_backend({.threads = 1}), Fault::rows_swapped, 1.0F);
      const std::string faults = op_case->run_on({right.get(), &wrong, right.get()}, seed, {});
      EXPECT_EQ(faults.find(right->description()), std::string::npos) << name << ": " << faults;
      if (!wrong.spoiled()) continue;
      ++spoiled;
      EXPECT_TRUE(faults.starts_with(wrong.description() + ": ")) << name << ": " << faults;
    }
    EXPECT_GT(spoiled, 0) << name;
  }
}

// Of a factor so small only many tokens tell. Tensor cores leave more quantised values of the inner
// activation undecided, so there it must be larger.
TEST(Tolerances, RejectAnExpertThatIsALittleTooLarge) {
  expect_rejected("experts_fp8_many", {Fault::part_too_large}, kPortable, 6, 1.01F);
  expect_rejected("experts_fp8_many", {Fault::part_too_large}, kTensorCores, 6, 1.03F);
}

}  // namespace
}  // namespace koho::testing
