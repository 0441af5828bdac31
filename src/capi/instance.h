// SPDX-License-Identifier: Apache-2.0
// One engine behind its handle: the runtime, the requests by handle, and the calls that are in
// progress on it. Takes and gives the engine's types; exports.cpp converts C types and catches
// exceptions.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "capi/endpoint_calls.h"
#include "capi/handle.h"
#include "capi/parameters.h"
#include "capi/ready_list.h"
#include "koho/engine.h"
#include "runtime/runtime.h"

namespace koho::capi {

/// A token of the synchronous form.
struct Step {
  std::int64_t token = -1;
  bool last = false;
};

/// Threads: any, all functions side by side, but for close().
class Instance {
 public:
  /// Errors: those of Runtime::start.
  static Result<std::shared_ptr<Instance>> start(const std::filesystem::path& model,
                                                 const RuntimeOptions& options);
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  /// What the handle of each request names beside its slot: the engine's own handle.
  void set_handle(std::uintptr_t handle) { handle_ = handle; }

  /// A call in progress: the engine lives at least as long. Moves, does not copy.
  class Call {
   public:
    Call(Call&&) = default;
    Call& operator=(Call&&) = delete;
    ~Call();
    Instance* operator->() const { return instance_.get(); }

   private:
    friend class Instance;
    explicit Call(std::shared_ptr<Instance> instance) : instance_(std::move(instance)) {}
    std::shared_ptr<Instance> instance_;
  };
  /// Errors: unavailable (it is being closed).
  static Result<Call> enter(std::shared_ptr<Instance> instance);
  /// Ends all requests, waits for the calls in progress and stops everything. Once.
  void close();

  // The functions of koho/engine.h.
  Result<std::uintptr_t> prefill(std::int64_t id, NewRequest request);
  Result<Step> decode(std::uintptr_t request);
  Status decode_batch(std::span<RequestState* const> requests,
                      std::span<std::int64_t> tokens,
                      std::span<std::uint8_t> done);
  Status free_request(std::uintptr_t request);
  Status add(std::int64_t id, NewRequest request);
  Result<std::int32_t> poll(std::span<TokenEvent> events, std::int32_t timeout_ms);
  Status cancel(std::int64_t id);
  Result<std::int64_t> info(std::int32_t which);

  /// Requests to the endpoints of the HTTP API; started by the first call.
  EndpointCalls& endpoint_calls();

  const Runtime& runtime() const { return *runtime_; }

 private:
  /// A request that its caller knows. What comes after `in_use` belongs to whoever set it, of an
  /// added request to the poller.
  struct Entry {
    std::int64_t id = 0;
    bool added = false;  // of the asynchronous form
    std::shared_ptr<OutputStream> stream;
    std::atomic<bool> in_use = false;
    OutputEvent event;
    bool has_event = false;  // and it was not delivered
    bool ended = false;
    TokenEvent last{};  // of an added request: kept back until its end is known
    LogitsBuffer logits;
    std::int64_t delivered = 0;      // tokens
    std::int64_t first_of_poll = 0;  // the first token that the latest poll delivers …
    std::uint64_t poll = 0;          // … which has this number

    /// Writes the logits of `event` where the next delivered token's belong.
    void write_logits() const;
  };
  struct Slot {
    std::uint32_t generation = 0;
    std::shared_ptr<Entry> entry;
  };
  class Use;
  template <typename Undo>
  class Unless;

  Instance(std::unique_ptr<Runtime> runtime, std::string name);

  /// Submits and gives the request a slot; returns it.
  Result<std::uint32_t> open(std::int64_t id, bool added, NewRequest request);
  void release_slot(std::uint32_t slot);
  Result<std::uint32_t> find(std::uintptr_t request) const;  // mutex_ is held
  Result<Use> use(std::uintptr_t request);
  static Status await(Entry& entry);
  static Step deliver(Entry& entry);
  enum class Rest : std::uint8_t { nothing, more, next_poll };
  /// Appends an added request's events to those of poll number polls_. What is left: nothing for
  /// now; more, for which there is no room in `events`, or in the caller's memory for logits.
  Rest read(Entry& entry, std::span<TokenEvent> events, std::size_t& count) const;
  std::shared_ptr<Entry> added_at(std::uint32_t slot) const;
  bool any_added() const;

  std::unique_ptr<Runtime> runtime_;
  std::string name_;  // of the model
  std::mutex endpoint_calls_mutex_;
  std::unique_ptr<EndpointCalls> endpoint_calls_;
  std::uintptr_t handle_ = 0;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable left_;
  std::int64_t calls_ = 0;
  bool closing_ = false;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::unordered_map<std::int64_t, std::uint32_t> added_;  // live ones, by id
  ReadyList ready_;
  std::atomic<bool> polled_ = false;  // a poller is at work
  std::uint64_t polls_ = 0;           // the poller's
};

}  // namespace koho::capi
