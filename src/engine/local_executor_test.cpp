// SPDX-License-Identifier: Apache-2.0
// Ranks as threads under the scheduler's own plans: what they answer, and what happens when one of
// them fails, hangs or disagrees.
#include "engine/local_executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cpu/cpu_backend.h"
#include "engine/plan_writer.h"
#include "tests/support/forwarding_backend.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_checkpoint.h"

namespace koho {
namespace {

using testing::ForwardingBackend;

constexpr std::int64_t kTimeoutUs = 60'000'000;

/// What goes wrong on a rank, and where; shared by the test and the rank's thread.
struct InjectedFault {
  enum class Kind { none, fail_in_experts, fail_in_sample, other_token, hang };

  void set(Kind wanted) {
    const std::lock_guard lock(mutex);
    kind = wanted;
    hangs_in = 0;  // also if it was not reached yet
    changed.notify_all();
  }
  bool is(Kind wanted) {
    const std::lock_guard lock(mutex);
    return kind == wanted;
  }
  /// From the `steps`-th next step on.
  void hang_later(int steps) {
    const std::lock_guard lock(mutex);
    hangs_in = steps;
  }
  void count(int& what) {
    const std::lock_guard lock(mutex);
    ++what;
    changed.notify_all();
  }
  int read(const int& what) {
    const std::lock_guard lock(mutex);
    return what;
  }
  /// Until `what` is counted so often; false if that takes a minute.
  bool wait_for(const int& what, int often) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::minutes(1), [&] { return what >= often; });
  }
  void wait_while_hanging() {
    std::unique_lock lock(mutex);
    if (hangs_in > 0 && --hangs_in == 0) kind = Kind::hang;
    changed.wait(lock, [this] { return kind != Kind::hang; });
  }

  std::mutex mutex;
  std::condition_variable changed;
  Kind kind = Kind::none;
  int hangs_in = 0;
  int gathers = 0;  // of the rows that have logits: each step's forward pass is nearly through
  int samples = 0;
};

class FaultyBackend final : public ForwardingBackend {
 public:
  FaultyBackend(std::unique_ptr<Backend> real, InjectedFault& fault)
      : ForwardingBackend(std::move(real)), fault_(fault) {}

 private:
  Status do_gather_rows(TensorView out, ConstTensorView x, ConstTensorView rows) override {
    fault_.count(fault_.gathers);
    return ForwardingBackend::do_gather_rows(out, x, rows);
  }
  Status do_experts(TensorView out,
                    const Activation& x,
                    const Routing& routing,
                    const Experts& weights) override {
    if (fault_.is(InjectedFault::Kind::fail_in_experts))
      return make_error(ErrorCode::device_error, "an illegal memory access");
    return ForwardingBackend::do_experts(out, x, routing, weights);
  }
  // The end of a step's sampling, which every rank does for all rows.
  Status do_commit_sampled(TensorView ends,
                           const BatchSlotTables& tables,
                           ConstTensorView batch_slots,
                           ConstTensorView ids) override {
    if (fault_.is(InjectedFault::Kind::fail_in_sample))
      return make_error(ErrorCode::device_error, "an illegal memory access");
    fault_.wait_while_hanging();
    fault_.count(fault_.samples);
    if (fault_.is(InjectedFault::Kind::other_token))
      ++*reinterpret_cast<std::int32_t*>(const_cast<std::byte*>(ids.data));
    return ForwardingBackend::do_commit_sampled(ends, tables, batch_slots, ids);
  }

  InjectedFault& fault_;
};

constexpr AttentionLayout kTensorParallel = AttentionLayout::tensor_parallel;
constexpr AttentionLayout kDataParallel = AttentionLayout::data_parallel;

/// A small model on ranks, driven by a scheduler; the backend of the last rank may have a fault
/// injected.
struct Harness {
  testing::TemporaryDirectory directory;
  ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  ResolvedWeights weights;
  EngineLimits limits;
  InjectedFault fault;
  std::unique_ptr<LocalExecutor> executor;
  std::unique_ptr<Scheduler> scheduler;
  Draw greedy;
  bool constrained = false;  // each token is congruent to the one before it, plus one, modulo 5
  std::vector<std::uint32_t> mask;
  Draw masked;
  std::map<std::uint64_t, std::vector<std::int32_t>> stops;  // by arrival, as in Draw
  Draw stopping;
  int frozen_rows = 0;

  explicit Harness(std::int64_t ranks, AttentionLayout attention = kTensorParallel) {
    testing::CheckpointRecipe recipe;
    recipe.amplitude = 0.3;
    testing::write_checkpoint(directory.path(), recipe, 0);
    config = recipe.config;
    checkpoint = std::make_unique<Checkpoint>(*Checkpoint::open(directory.path()));
    weights = *resolve_weights(config, *checkpoint);
    limits.vocabulary = static_cast<std::int32_t>(config.vocab_size);
    Limits& s = limits.scheduler;
    s.pages = 12;
    s.partitions = attention == kDataParallel ? static_cast<std::int32_t>(ranks) : 1;
    s.context_max = 256;
    s.sequences_max = 4;
    s.live_max = 8;
    s.step_tokens_max = 40;
    s.mixed_prefill_tokens_max = 20;
    greedy.row.temperature = 0.0F;
    Result<std::unique_ptr<LocalExecutor>> made =
        LocalExecutor::create(config, weights.sources, settings(ranks, attention));
    EXPECT_TRUE(made.ok()) << made.error().message;
    executor = std::move(made).value();
    scheduler = std::make_unique<Scheduler>(s, std::array<std::uint64_t, 4>{1, 2, 3, 4});
  }

  LocalExecutorSettings settings(std::int64_t ranks, AttentionLayout attention) {
    LocalExecutorSettings settings;
    settings.ranks = ranks;
    settings.bounds = plan_bounds(limits);
    settings.make_backend = [this, ranks](std::int64_t rank) -> Result<std::unique_ptr<Backend>> {
      KOHO_TRY_ASSIGN(std::unique_ptr<Backend> real, make_cpu_backend({.threads = 1}));
      if (rank + 1 < ranks) return real;
      return std::unique_ptr<Backend>(std::make_unique<FaultyBackend>(std::move(real), fault));
    };
    settings.worker.load.shard.attention = attention;
    settings.worker.load.limits = {.tokens_max = limits.scheduler.step_tokens_max,
                                   .sequences_max = limits.scheduler.sequences_max,
                                   .context_max = limits.scheduler.context_max,
                                   .logit_rows_max = limits.scheduler.sequences_max,
                                   .vocabulary = 0};
    settings.worker.counts_slots = limits.scheduler.sequences_max;
    settings.worker.mask_rows_max = limits.scheduler.sequences_max;
    settings.worker.tokenizer_tokens = config.vocab_size;
    return settings;
  }

  SequenceId submit(std::int32_t prompt, std::int32_t completion, std::int32_t from) {
    std::vector<Token> tokens(static_cast<std::size_t>(prompt));
    for (std::int32_t i = 0; i < prompt; ++i)
      tokens[static_cast<std::size_t>(i)] = (from + 7 * i) % limits.vocabulary;
    SequenceRequest request;
    request.prompt = tokens;
    request.completion_max = completion;
    return *scheduler->submit(request);
  }
  /// Plans and submits; false if there is nothing to do.
  bool launch() {
    const StepBatch* batch = scheduler->plan();
    if (batch == nullptr) return false;
    const Result<std::size_t> bytes =
        write_plan(*scheduler, *batch, draw_of(), executor->plan_space(), late);
    EXPECT_TRUE(bytes.ok()) << bytes.error().message;
    EXPECT_TRUE(executor->submit(*bytes).ok());
    ++launches;
    return true;
  }
  std::function<const Draw&(const Sequence&)> draw_of() {
    return [this](const Sequence& sequence) -> const Draw& {
      if (const auto found = stops.find(sequence.arrival); found != stops.end()) {
        stopping = greedy;
        stopping.stops = found->second;
        return stopping;
      }
      if (!constrained) return greedy;
      mask.assign((static_cast<std::size_t>(limits.vocabulary) + 31) / 32, 0U);
      for (Token t = (sequence.tokens.back() + 1) % 5; t < limits.vocabulary; t += 5)
        mask[static_cast<std::size_t>(t) / 32] |= 1U << (t % 32);
      masked = greedy;
      masked.mask = mask;
      return masked;
    };
  }
  void send_masks() {
    if (late.words.empty()) return;
    write_late_masks(*scheduler, draw_of(), late);
    late.words = {};
    ++late_steps;
    EXPECT_TRUE(executor->send_masks().ok());
  }
  /// Collects the oldest step; sequences at their full length are kept in `finished` and end.
  Status collect(std::int64_t timeout_us = kTimeoutUs, bool with_masks = true) {
    KOHO_TRY(executor->collect(result, timeout_us));
    const StepBatch& batch = scheduler->oldest_in_flight();
    EXPECT_EQ(result.step, batch.step);
    std::size_t sample = 0;
    for (const StepRow& row : batch.rows) {
      const RowEnd end = row.samples ? result.ends[sample] : RowEnd::none;
      const Token token = row.samples ? result.tokens[sample++] : -1;
      if (end == RowEnd::frozen) {
        EXPECT_EQ(scheduler->find(row.sequence), nullptr) << "a row was frozen that goes on";
        ++frozen_rows;
      }
      const Sequence* sequence = scheduler->apply(row, token);
      if (sequence == nullptr || (sequence->known() < sequence->length_max && end != RowEnd::ended))
        continue;
      finished[sequence->arrival] = sequence->tokens;
      partitions[sequence->arrival] = sequence->partition;
      scheduler->finish(sequence->id);
    }
    EXPECT_EQ(sample, result.tokens.size());
    scheduler->retire();
    if (with_masks) send_masks();
    return {};
  }
  /// Everything to its end, two steps in flight where possible; the finished sequences by arrival.
  std::map<std::uint64_t, std::vector<Token>> drain() {
    while (true) {
      while (scheduler->steps_in_flight() < kStepsInFlightMax && launch()) continue;
      if (scheduler->steps_in_flight() == 0) return finished;
      const Status collected = collect();
      EXPECT_TRUE(collected.ok()) << collected.error().message;
      if (!collected.ok()) return finished;
    }
  }
  static constexpr std::array<std::int32_t, 5> kPrompts{70, 5, 33, 66, 20};
  void submit_some() {
    submit(kPrompts[0], 8, 1);
    submit(kPrompts[1], 30, 2);
    submit(kPrompts[2], 12, 3);
    submit(kPrompts[3], 3, 1);  // begins as the first does
    submit(kPrompts[4], 9, 5);
  }

  StepResult result;
  LateMasks late;
  int launches = 0;
  int late_steps = 0;
  std::map<std::uint64_t, std::vector<Token>> finished;  // by arrival: prompt and answer
  std::map<std::uint64_t, std::int32_t> partitions;
};

TEST(LocalExecutor, AnswersTogetherWhatItAnswersAlone) {
  for (const AttentionLayout attention : {kTensorParallel, kDataParallel}) {
    for (const std::int64_t ranks : {1, 2}) {
      Harness together(ranks, attention);
      together.submit_some();
      const auto batched = together.drain();
      ASSERT_EQ(batched.size(), 5U);
      Harness alone(ranks, attention);
      alone.scheduler = std::make_unique<Scheduler>(
          [&] {
            Limits one = alone.limits.scheduler;
            one.sequences_max = 1;
            one.prefix_cache = false;
            return one;
          }(),
          std::array<std::uint64_t, 4>{1, 2, 3, 4});
      alone.submit_some();
      EXPECT_EQ(alone.drain(), batched) << ranks << " ranks";
    }
  }
}

TEST(LocalExecutor, EndsOutputsWhereTheirStopsAreAndFreezesTheRowsBehind) {
  for (const AttentionLayout attention : {kTensorParallel, kDataParallel}) {
    for (const std::int64_t ranks : {1, 2}) {
      Harness whole(ranks, attention);
      whole.submit_some();
      const auto answers = whole.drain();
      Harness harness(ranks, attention);
      harness.submit_some();
      std::map<std::uint64_t, std::vector<Token>> expected;
      std::size_t index = 0;
      for (const auto& [arrival, tokens] : answers) {
        // The first tokens but one of the answer, one to three of them, wherever they come first.
        const auto answer = tokens.begin() + Harness::kPrompts[index];
        const auto length = static_cast<std::ptrdiff_t>(1 + index++ % 3);
        const auto stop = tokens.end() - answer > length ? answer + 1 : answer;
        const auto end = std::search(answer, tokens.end(), stop, stop + length) + length;
        expected[arrival] = {tokens.begin(), end};
        harness.stops[arrival] = {static_cast<std::int32_t>(length)};
        harness.stops[arrival].insert(harness.stops[arrival].end(), stop, stop + length);
      }
      EXPECT_EQ(harness.drain(), expected) << ranks << " ranks";
      EXPECT_GT(harness.frozen_rows, 0);
    }
  }
}

/// Whether every sampled token follows from the one before it as `constrained` says.
bool follows(const std::vector<Token>& tokens, std::size_t prompt) {
  for (std::size_t i = prompt; i < tokens.size(); ++i)
    if (tokens[i] % 5 != (tokens[i - 1] + 1) % 5) return false;
  return true;
}

TEST(LocalExecutor, TakesMasksWhileAStepRunsAndAnswersAsIfItHadHadThemBefore) {
  for (const AttentionLayout attention : {kTensorParallel, kDataParallel}) {
    for (const std::int64_t ranks : {1, 2}) {
      Harness early(ranks, attention);
      early.constrained = true;
      early.submit_some();
      while (early.launch())
        ASSERT_TRUE(early.collect().ok());  // nothing is in flight when it plans
      ASSERT_EQ(early.finished.size(), 5U);
      EXPECT_EQ(early.late_steps, 0);
      EXPECT_TRUE(follows(early.finished.begin()->second, 70));

      Harness late(ranks, attention);
      late.constrained = true;
      late.submit_some();
      EXPECT_EQ(late.drain(), early.finished) << ranks << " ranks";
      EXPECT_GT(late.late_steps, 20);
    }
  }
}

TEST(LocalExecutor, ComputesAStepBeforeItsMasksAreThere) {
  Harness harness(1);
  harness.constrained = true;
  harness.submit(5, 3, 0);
  ASSERT_TRUE(harness.launch());
  ASSERT_TRUE(harness.launch());
  ASSERT_TRUE(harness.collect(kTimeoutUs, false).ok());
  ASSERT_TRUE(harness.fault.wait_for(harness.fault.gathers, 2));
  EXPECT_EQ(harness.fault.read(harness.fault.samples), 1);
  harness.send_masks();
  EXPECT_TRUE(harness.collect().ok());
  EXPECT_EQ(harness.fault.read(harness.fault.samples), 2);
  const auto finished = harness.drain();
  ASSERT_EQ(finished.size(), 1U);
  EXPECT_TRUE(follows(finished.begin()->second, 5));
  // A step a token: no row sat one out for its mask.
  EXPECT_EQ(harness.launches, 3);
}

TEST(LocalExecutor, EndsWhileAStepWaitsForItsMasks) {
  Harness harness(2);
  harness.constrained = true;
  harness.submit(5, 8, 0);
  ASSERT_TRUE(harness.launch());
  ASSERT_TRUE(harness.launch());
  ASSERT_TRUE(harness.collect(kTimeoutUs, false).ok());
  harness.scheduler->reset_device();
  ASSERT_TRUE(harness.executor->recover(kTimeoutUs).ok());
  harness.late.words = {};
  EXPECT_EQ(harness.drain().size(), 1U);
}

TEST(LocalExecutor, UnderDataParallelAttentionEveryRankHasSequences) {
  Harness harness(4, kDataParallel);
  for (int i = 0; i < 4; ++i) harness.submit(40, 20, i);
  EXPECT_EQ(harness.drain().size(), 4U);
  std::set<std::int32_t> used;
  for (const auto& [arrival, partition] : harness.partitions) used.insert(partition);
  EXPECT_EQ(used.size(), 4U);
}

TEST(LocalExecutor, NamesTheRankThatFailsWhileOthersWaitAndRecovers) {
  Harness whole(2);
  whole.submit_some();
  const auto expected = whole.drain();
  for (const AttentionLayout attention : {kTensorParallel, kDataParallel}) {
    for (const InjectedFault::Kind kind :
         {InjectedFault::Kind::fail_in_experts, InjectedFault::Kind::fail_in_sample}) {
      Harness harness(2, attention);
      harness.submit_some();
      ASSERT_TRUE(harness.launch());
      ASSERT_TRUE(harness.collect().ok());
      harness.fault.set(kind);
      Status status;
      while (status.ok() && harness.launch()) status = harness.collect();
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::device_error);
      EXPECT_EQ(status.error().message, "rank 1: an illegal memory access");

      harness.fault.set(InjectedFault::Kind::none);
      harness.scheduler->reset_device();
      ASSERT_TRUE(harness.executor->recover(kTimeoutUs).ok());
      const auto found = harness.drain();
      EXPECT_EQ(found.size(), expected.size());
      if (attention == kTensorParallel) {
        EXPECT_EQ(found, expected) << "from where they stood";
      }
    }
  }
}

TEST(LocalExecutor, NoticesARankThatDisagrees) {
  Harness harness(2);
  harness.submit_some();
  harness.fault.set(InjectedFault::Kind::other_token);
  Status status;
  while (status.ok() && harness.launch()) status = harness.collect();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::internal);
  EXPECT_NE(status.error().message.find("the ranks diverge: rank 1 sampled"), std::string::npos)
      << status.error().message;
}

TEST(LocalExecutor, AStepThatTakesLongCanBeAskedForAgain) {
  Harness harness(2);
  harness.submit(5, 3, 0);
  harness.fault.set(InjectedFault::Kind::hang);
  ASSERT_TRUE(harness.launch());
  for (int i = 0; i < 3; ++i) {
    const Status status = harness.collect(1000);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::deadline_exceeded);
  }
  harness.fault.set(InjectedFault::Kind::none);
  EXPECT_TRUE(harness.collect().ok());
  EXPECT_EQ(harness.drain().size(), 1U);
}

TEST(LocalExecutor, GivesTheResultOfAStepWhileTheNextOneRuns) {
  Harness harness(2);
  harness.submit(5, 8, 0);
  harness.fault.hang_later(2);
  ASSERT_TRUE(harness.launch());
  ASSERT_TRUE(harness.launch());
  EXPECT_TRUE(harness.collect().ok());
  EXPECT_EQ(harness.collect(1000).error().code, ErrorCode::deadline_exceeded);
  harness.fault.set(InjectedFault::Kind::none);
  EXPECT_EQ(harness.drain().size(), 1U);
}

TEST(LocalExecutor, RefusesABrokenPlan) {
  Harness harness(2);
  harness.submit(5, 3, 0);
  const StepBatch* batch = harness.scheduler->plan();
  const Result<std::size_t> bytes = write_plan(
      *harness.scheduler, *batch, [&](const Sequence&) -> const Draw& { return harness.greedy; },
      harness.executor->plan_space(), harness.late);
  ASSERT_TRUE(harness.executor->submit(*bytes - 8).ok());
  const Status status = harness.executor->collect(harness.result, kTimeoutUs);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::corrupt_data);
}

TEST(LocalExecutor, RefusesWhatCannotBeSharedAndSaysWhichRank) {
  Harness harness(1);
  const auto create = [&](const LocalExecutorSettings& settings) {
    const auto made = LocalExecutor::create(harness.config, harness.weights.sources, settings);
    return made.ok() ? std::string() : made.error().message;
  };
  EXPECT_EQ(create(harness.settings(3, kTensorParallel)),
            "rank 0: 3 ranks cannot divide 4 query heads evenly; take a number of ranks that "
            "divides it");
  EXPECT_NE(create(harness.settings(2, kDataParallel)).find("1 partitions; 2 ranks hold them in 2"),
            std::string::npos);
  LocalExecutorSettings settings = harness.settings(2, kTensorParallel);
  settings.make_backend = [&](std::int64_t rank) -> Result<std::unique_ptr<Backend>> {
    if (rank == 1) return make_error(ErrorCode::device_error, "no such GPU");
    return make_cpu_backend({.threads = 1});
  };
  EXPECT_EQ(create(settings), "rank 1: no such GPU");
}

}  // namespace
}  // namespace koho
