// SPDX-License-Identifier: Apache-2.0
#include "grammar/grammar_compiler.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/xgrammar_adapter.h"

namespace koho {
namespace {

/// An LRU cache of grammars, keyed by cache_key().
class Cache {
 public:
  explicit Cache(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  GrammarCompiler::Grammar find(const std::string& key) {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->grammar;
  }

  void insert(const std::string& key, const GrammarCompiler::Grammar& grammar) {
    if (by_key_.contains(key)) return;
    const std::size_t bytes = 2 * key.size() + grammar->bytes();
    if (bytes > bytes_max_) return;
    entries_.push_front({key, grammar, bytes});
    by_key_.emplace(key, entries_.begin());
    bytes_ += bytes;
    while (bytes_ > bytes_max_) {
      bytes_ -= entries_.back().bytes;
      by_key_.erase(entries_.back().key);
      entries_.pop_back();
    }
  }

  std::size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::string key;
    GrammarCompiler::Grammar grammar;
    std::size_t bytes = 0;
  };
  std::size_t bytes_max_;
  std::size_t bytes_ = 0;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
};

}  // namespace

class GrammarCompiler::Pool {
 public:
  Pool(const Tokenizer& tokenizer, std::int64_t vocabulary, GrammarLimits limits)
      : tokenizer_(tokenizer),
        vocabulary_size_(vocabulary),
        limits_(limits),
        cache_(limits.cache_bytes_max) {
    // Each adapter has a part of them.
    limits_.parts_bytes_max /= static_cast<std::size_t>(limits.threads);
    for (std::int32_t i = 0; i < limits.threads; ++i) threads_.emplace_back([this] { work(); });
  }

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    arrived_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    for (Job& job : jobs_)
      job.done(make_error(ErrorCode::unavailable, "the grammar compiler is shutting down"));
  }

  Grammar find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    Grammar known = cache_.find(key);
    if (known) ++statistics_.cache_hits;
    return known;
  }

  void compile(Constraint constraint, Done done) {
    std::string key = cache_key(constraint);
    Grammar known;
    bool full = false;
    {
      const std::lock_guard lock(mutex_);
      known = cache_.find(key);
      full = !known && jobs_.size() >= static_cast<std::size_t>(limits_.queue_max);
      if (known) {
        ++statistics_.cache_hits;
      } else if (!full) {
        jobs_.push_back({std::move(constraint), std::move(key), std::move(done)});
      }
    }
    if (known) {
      done(std::move(known));
    } else if (full) {
      done(make_error(ErrorCode::resource_exhausted,
                      "{} grammars are waiting to be compiled; try again", limits_.queue_max));
    } else {
      arrived_.notify_one();
    }
  }

  GrammarStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    GrammarStatistics statistics = statistics_;
    statistics.cache_bytes = cache_.bytes();
    statistics.waiting = static_cast<std::int32_t>(jobs_.size());
    return statistics;
  }

 private:
  struct Job {
    Constraint constraint;
    std::string key;
    Done done;
  };

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      arrived_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      Grammar known = cache_.find(job.key);  // compiled while this job waited
      std::unique_ptr<XgrammarAdapter> adapter;
      if (!known && !idle_.empty()) {
        adapter = std::move(idle_.back());
        idle_.pop_back();
      }
      lock.unlock();
      if (known) {
        job.done(std::move(known));
        lock.lock();
        continue;
      }
      const auto begin = std::chrono::steady_clock::now();
      Result<Grammar> made = compile_one(job.constraint, adapter);
      const auto took = std::chrono::steady_clock::now() - begin;
      lock.lock();
      ++(made.ok() ? statistics_.compiled : statistics_.refused);
      statistics_.compile_us += std::chrono::duration_cast<std::chrono::microseconds>(took).count();
      if (made.ok()) cache_.insert(job.key, *made);
      if (adapter) idle_.push_back(std::move(adapter));
      lock.unlock();
      job.done(std::move(made));
      job = {};
      lock.lock();
    }
  }

  Result<Grammar> compile_one(const Constraint& constraint,
                              std::unique_ptr<XgrammarAdapter>& adapter) {
    if (!adapter) {
      const std::lock_guard lock(vocabulary_mutex_);
      if (!vocabulary_) {
        KOHO_TRY_ASSIGN(vocabulary_,
                        XgrammarAdapter::read_vocabulary(tokenizer_, vocabulary_size_));
      }
      adapter = std::make_unique<XgrammarAdapter>(tokenizer_, vocabulary_, limits_);
    }
    return adapter->compile(constraint);
  }

  const Tokenizer& tokenizer_;
  std::int64_t vocabulary_size_;
  GrammarLimits limits_;
  std::mutex vocabulary_mutex_;
  std::shared_ptr<const XgrammarAdapter::Vocabulary> vocabulary_;

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Job> jobs_;
  /// The last one was used last: compilations that follow each other find its parts of grammars.
  std::vector<std::unique_ptr<XgrammarAdapter>> idle_;
  Cache cache_;
  GrammarStatistics statistics_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // the last member: the threads use all others
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer,
                                 std::int64_t vocabulary,
                                 GrammarLimits limits)
    : pool_(std::make_unique<Pool>(tokenizer, vocabulary, limits)) {}

GrammarCompiler::~GrammarCompiler() = default;

void GrammarCompiler::compile(Constraint constraint, Done done) {
  pool_->compile(std::move(constraint), std::move(done));
}

GrammarCompiler::Grammar GrammarCompiler::find(const Constraint& constraint) {
  return pool_->find(cache_key(constraint));
}

Result<GrammarCompiler::Grammar> GrammarCompiler::compile(Constraint constraint) {
  std::mutex mutex;
  std::condition_variable arrived;
  std::optional<Result<Grammar>> result;
  compile(std::move(constraint), [&](Result<Grammar> made) {
    const std::lock_guard lock(mutex);
    result.emplace(std::move(made));
    arrived.notify_one();
  });
  std::unique_lock lock(mutex);
  arrived.wait(lock, [&] { return result.has_value(); });
  return std::move(*result);
}

GrammarStatistics GrammarCompiler::statistics() const {
  return pool_->statistics();
}

}  // namespace koho
