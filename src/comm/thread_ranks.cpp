// SPDX-License-Identifier: Apache-2.0
#include "comm/thread_ranks.h"

#include <condition_variable>
#include <cstring>
#include <mutex>

#include "tensor/number.h"

namespace koho {

class ThreadRankGroup {
 public:
  ThreadRankGroup(std::int64_t ranks, std::chrono::milliseconds patience)
      : operands(static_cast<std::size_t>(ranks)), ranks_(ranks), patience_(patience) {}

  /// Waits until every rank is here.
  Status meet() {
    std::unique_lock lock(mutex_);
    if (broken_) return gone();
    const std::int64_t round = round_;
    if (++arrived_ == ranks_) {
      arrived_ = 0;
      ++round_;
      all_here_.notify_all();
      return {};
    }
    const bool met =
        all_here_.wait_for(lock, patience_, [&] { return round_ != round || broken_; });
    if (met && !broken_) return {};
    broken_ = true;
    all_here_.notify_all();
    return gone();
  }

  void give_up() {
    const std::lock_guard lock(mutex_);
    broken_ = true;
    all_here_.notify_all();
  }

  std::vector<ConstTensorView> operands;  // by rank; stable between two meetings

 private:
  static Error gone() {
    return make_error(ErrorCode::unavailable, "a rank left the group or did not come in time");
  }

  std::mutex mutex_;
  std::condition_variable all_here_;
  std::int64_t ranks_;
  std::chrono::milliseconds patience_;
  std::int64_t arrived_ = 0;
  std::int64_t round_ = 0;
  bool broken_ = false;
};

namespace {

class ThreadRank final : public Communicator {
 public:
  ThreadRank(std::shared_ptr<ThreadRankGroup> group, std::int64_t rank, std::int64_t ranks)
      : group_(std::move(group)), rank_(rank), ranks_(ranks) {}

  std::int64_t rank() const override { return rank_; }
  std::int64_t ranks() const override { return ranks_; }

  Status all_reduce(TensorView values) override {
    group_->operands[static_cast<std::size_t>(rank_)] = values;
    KOHO_TRY(group_->meet());
    const auto count = static_cast<std::size_t>(values.elements());
    sum_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0.0F;
      for (const ConstTensorView& operand : group_->operands)
        sum += to_float(operand.as<BFloat16>()[i]);
      sum_[i] = to_bf16(sum);
    }
    KOHO_TRY(group_->meet());  // nobody reads the operands any more
    std::memcpy(values.data, sum_.data(), count * sizeof(BFloat16));
    return {};
  }

  Status all_gather_columns(TensorView out, ConstTensorView part) override {
    group_->operands[static_cast<std::size_t>(rank_)] = part;
    KOHO_TRY(group_->meet());
    std::int64_t column = 0;
    for (const ConstTensorView& operand : group_->operands) {
      const std::int64_t width = operand.size(1);
      const TensorView target = out.slice(1, column, width);
      for (std::int64_t row = 0; row < out.size(0); ++row)
        std::memcpy(target.at(row).data, operand.at(row).data,
                    static_cast<std::size_t>(width) * sizeof(float));
      column += width;
    }
    return group_->meet();
  }

  void give_up() override { group_->give_up(); }

 private:
  std::shared_ptr<ThreadRankGroup> group_;
  std::int64_t rank_;
  std::int64_t ranks_;
  std::vector<BFloat16> sum_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_ranks(std::int64_t ranks,
                                                             std::chrono::milliseconds patience) {
  auto group = std::make_shared<ThreadRankGroup>(ranks, patience);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    communicators.push_back(std::make_unique<ThreadRank>(group, rank, ranks));
  return communicators;
}

}  // namespace koho
