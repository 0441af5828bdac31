// SPDX-License-Identifier: Apache-2.0
#include "worker/rank_loop.h"

#include <array>
#include <utility>

namespace koho {
namespace {

constexpr std::size_t kStepsMax = Worker::kStepsInFlightMax;

class RankLoop {
 public:
  RankLoop(Worker& worker, PlanRunner& runner, StepFeed& feed)
      : worker_(worker), runner_(runner), feed_(feed) {}

  void run() {
    while (true) {
      const Move move = next_move();
      if (move == Move::stop) {
        // No rank frees what another may still write to.
        static_cast<void>(worker_.backend().synchronize());
        return;
      }
      if (move == Move::start) ++started_;
      Status& status = statuses_[(move == Move::finish ? finished_ : started_ - 1) % kStepsMax];
      if (move != Move::finish) {
        status =
            move == Move::start ? runner_.start(feed_.plan(started_ - 1)) : runner_.take_masks();
        if (!status.ok()) worker_.abort_collectives();
        if (runner_.awaits_masks()) continue;
        // On the CPU a step is done when start() returns, so its results go out now. A GPU first
        // gets its next step.
        const bool unfinished = status.ok() && !runner_.finishes_at_once();
        if (unfinished || started_ - finished_ > 1) continue;
      }
      if (status.ok()) status = runner_.finish(feed_.result(finished_));
      if (!status.ok()) worker_.abort_collectives();
      feed_.answer(finished_++, std::exchange(status, {}));
    }
  }

 private:
  enum class Move : std::uint8_t { stop, start, take_masks, finish };

  Move next_move() {
    constexpr std::chrono::microseconds kPoll{50};
    if (runner_.awaits_masks()) {
      // The masks depend on the results of the step before: finish that first.
      if (started_ - finished_ > 1) return Move::finish;
      while (!counts_.stopping && counts_.masked != started_)
        counts_ = feed_.wait(counts_, StepFeed::kForever);
      return counts_.stopping ? Move::stop : Move::take_masks;
    }
    const auto comes = [this] { return counts_.stopping || counts_.submitted > started_; };
    while (started_ == finished_ && !comes()) counts_ = feed_.wait(counts_, StepFeed::kForever);
    // At most kStepsMax steps are in flight, so with that many started there is nothing to wait
    // for.
    while (!comes() && started_ - finished_ < kStepsMax && !runner_.finishes_at_once())
      counts_ = feed_.wait(counts_, kPoll);
    return counts_.stopping               ? Move::stop
           : counts_.submitted > started_ ? Move::start
                                          : Move::finish;
  }

  Worker& worker_;
  PlanRunner& runner_;
  StepFeed& feed_;
  StepFeed::Counts counts_;
  std::uint64_t started_ = 0;
  std::uint64_t finished_ = 0;
  std::array<Status, kStepsMax> statuses_;  // of the steps that are started and not finished
};

}  // namespace

void run_steps(Worker& worker, PlanRunner& runner, StepFeed& feed) {
  RankLoop(worker, runner, feed).run();
}

}  // namespace koho
