// SPDX-License-Identifier: Apache-2.0
// init_engine with every allocation, mapping, open, read and thread start failed in turn: NULL, a
// reason, and nothing left behind. And the calls on an engine with every allocation of theirs
// failed in turn: an error, and the same call again succeeds. This program's own malloc, mmap,
// open, read and pthread_create stand before libc's for itself and for engine.so.
//
// Usage: fail_nth_test MODEL_DIR KIND [STRIDE] where KIND is one of memory, memory-from (the nth
// and all later ones), map, open, read, thread, calls.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <functional>
#include <pthread.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "koho/engine.h"

extern "C" {
// glibc's own, under the names that it keeps for programs which replace malloc.
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void __libc_free(void* memory);
}

namespace {

enum class Kind { none, memory, memory_from, map, open, read, thread };

std::atomic<Kind> failing{Kind::none};
std::atomic<long> left{0};                    // calls of the kind that still succeed
std::atomic<bool> failed{false};              // one did not
std::atomic<bool> dispensable_failed{false};  // koho does without: see where it is set
std::atomic<long> live_blocks{0};
std::atomic<long> live_mappings{0};
std::atomic<bool> one_thread{false};  // only calls of the thread that is `chosen` fail
thread_local bool chosen = false;

/// Whether this call of `kind` fails.
bool fails(Kind kind) {
  const Kind now = failing.load(std::memory_order_relaxed);
  if (now == Kind::none || (one_thread.load() && !chosen)) return false;
  const bool memory_from = now == Kind::memory_from && kind == Kind::memory;
  if (now != kind && !memory_from) return false;
  const long before = left.fetch_sub(1);
  if (before > 0 || (before < 0 && !memory_from)) return false;
  failed.store(true);
  return true;
}

/// Refuses memory as libc does (pthread_create relies on errno) and notes whether PCRE2 asked.
void* no_memory(const void* caller) {
  Dl_info library;
  if (dladdr(caller, &library) != 0 && std::strstr(library.dli_fname, "libpcre2") != nullptr)
    dispensable_failed.store(true);  // its JIT compiler
  errno = ENOMEM;
  return nullptr;
}

void* counted(void* memory) {
  if (memory != nullptr) ++live_blocks;
  return memory;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int refused(int error) {
  errno = error;
  return -1;
}

}  // namespace

extern "C" {

void* malloc(std::size_t size) {
  return fails(Kind::memory) ? no_memory(__builtin_return_address(0))
                             : counted(__libc_malloc(size));
}
void* calloc(std::size_t count, std::size_t size) {
  return fails(Kind::memory) ? no_memory(__builtin_return_address(0))
                             : counted(__libc_calloc(count, size));
}
void* realloc(void* memory, std::size_t size) {
  if (memory == nullptr) return malloc(size);
  return fails(Kind::memory) ? no_memory(__builtin_return_address(0))
                             : __libc_realloc(memory, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return fails(Kind::memory) ? no_memory(__builtin_return_address(0))
                             : counted(__libc_memalign(alignment, size));
}
void* memalign(std::size_t alignment, std::size_t size) {
  return aligned_alloc(alignment, size);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  *memory = aligned_alloc(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
void free(void* memory) {
  if (memory != nullptr) --live_blocks;
  __libc_free(memory);
}

void* mmap(void* address, std::size_t length, int protection, int flags, int file, off_t offset) {
  static auto* const real = next<void*(void*, std::size_t, int, int, int, off_t)>("mmap");
  if (fails(Kind::map)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  void* mapped = real(address, length, protection, flags, file, offset);
  if (mapped != MAP_FAILED) ++live_mappings;
  return mapped;
}
int munmap(void* address, std::size_t length) {
  static auto* const real = next<int(void*, std::size_t)>("munmap");
  --live_mappings;
  return real(address, length);
}
int open(const char* path, int flags, ...) {
  static auto* const real = next<int(const char*, int, ...)>("open");
  if (fails(Kind::open)) {
    // How long threads wait for their cores is not known then.
    if (std::strcmp(path, "/proc/thread-self/schedstat") == 0) dispensable_failed.store(true);
    return refused(EMFILE);
  }
  va_list arguments;
  va_start(arguments, flags);
  const int mode = va_arg(arguments, int);
  va_end(arguments);
  return real(path, flags, mode);
}
DIR* opendir(const char* path) {
  static auto* const real = next<DIR*(const char*)>("opendir");
  if (fails(Kind::open)) return errno = EMFILE, nullptr;
  return real(path);
}
int fstat(int file, struct stat* info) {
  static auto* const real = next<int(int, struct stat*)>("fstat");
  return fails(Kind::read) ? refused(EIO) : real(file, info);
}
ssize_t read(int file, void* buffer, std::size_t size) {
  static auto* const real = next<ssize_t(int, void*, std::size_t)>("read");
  return fails(Kind::read) ? refused(EIO) : real(file, buffer, size);
}
int pthread_create(pthread_t* thread,
                   const pthread_attr_t* attributes,
                   void* (*body)(void*),
                   void* argument) {
  static auto* const real =
      next<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  return fails(Kind::thread) ? EAGAIN : real(thread, attributes, body, argument);
}

}  // extern "C"

namespace {

long entries_of(const char* directory) {
  DIR* listing = opendir(directory);
  if (listing == nullptr) return -1;
  long count = 0;
  while (readdir(listing) != nullptr) ++count;
  closedir(listing);
  return count;
}

struct Footprint {
  long blocks = 0;
  long mappings = 0;
  long files = 0;
  long threads = 0;

  bool operator==(const Footprint&) const = default;
  static Footprint now() {
    return {.blocks = live_blocks.load(),
            .mappings = live_mappings.load(),
            .files = entries_of("/proc/self/fd"),
            .threads = entries_of("/proc/self/task")};
  }
};

/// Whether the footprint is `expected`, or becomes it: the kernel lists a joined thread, and keeps
/// its last words, for a moment longer.
bool settles_at(const Footprint& expected, Footprint& found) {
  for (int tries = 0; tries < 1000; ++tries) {
    found = Footprint::now();
    if (found == expected) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

Kind kind_of(const std::string& name) {
  if (name == "memory") return Kind::memory;
  if (name == "memory-from") return Kind::memory_from;
  if (name == "map") return Kind::map;
  if (name == "open") return Kind::open;
  if (name == "read") return Kind::read;
  return name == "thread" ? Kind::thread : Kind::none;
}

/// `call`, which returns a status, with its nth allocation failed for n = 0, 1, … until it has no
/// nth: then it must have succeeded, and before have said each time that memory was out.
bool holds_out(const char* name, long& failures, const std::function<std::int32_t()>& call) {
  for (long n = 0;; ++n) {
    left.store(n);
    failed.store(false);
    failing.store(Kind::memory);
    const std::int32_t status = call();
    failing.store(Kind::none);
    if (!failed.load()) {
      if (status < 0) std::fprintf(stderr, "%s then fails: %d %s\n", name, status, last_error());
      return status >= 0;
    }
    ++failures;
    if (status != KOHO_RESOURCE_EXHAUSTED || std::strcmp(last_error(), "out of memory") != 0) {
      std::fprintf(stderr, "%s %ld failed, and it says: %d %s\n", name, n, status, last_error());
      return false;
    }
  }
}

/// The tokens of a request that was added, to its end.
std::vector<std::int64_t> tokens_of(EngineHandle* engine) {
  std::vector<std::int64_t> tokens;
  while (true) {
    TokenEvent event{};
    if (poll_requests(engine, &event, 1, -1) != 1) return tokens;
    tokens.push_back(event.token);
    if (event.finish != KOHO_FINISH_NONE) return tokens;
  }
}

/// Every call on an engine, with every allocation of the calling thread failed in turn: no token
/// is lost, no request stays behind.
bool calls_hold_out(EngineHandle* engine, int requests_max) {
  const std::int64_t prompt[] = {300, 411, 522};
  SamplingParams greedy{};
  greedy.struct_size = sizeof(greedy);
  greedy.max_tokens = 6;
  greedy.ignore_eos = 1;
  const auto add = [&] { return add_request(engine, 7, prompt, 3, &greedy); };
  if (add() != KOHO_OK) return false;
  const std::vector<std::int64_t> expected = tokens_of(engine);
  if (expected.size() != 6) return false;

  one_thread.store(true);
  chosen = true;
  long failures = 0;
  RequestState* states[2] = {nullptr, nullptr};
  for (RequestState*& state : states)
    if (!holds_out("prefill", failures, [&] {
          state = prefill(engine, 1, prompt, 3, &greedy);
          return state != nullptr ? KOHO_OK : KOHO_RESOURCE_EXHAUSTED;
        }))
      return false;
  std::vector<std::int64_t> found[2];
  for (int i = 0; i < 2; ++i) {
    std::int64_t token = -1;
    if (!holds_out("decode_step", failures, [&] { return decode_step(engine, states[0], &token); }))
      return false;
    found[0].push_back(token);
  }
  for (int i = 0; i < 4; ++i) {
    std::int64_t tokens[2] = {-1, -1};
    std::uint8_t done[2] = {0, 0};
    if (!holds_out("run_batch_decode", failures,
                   [&] { return run_batch_decode(engine, states, 2, tokens, done); }))
      return false;
    for (int which = 0; which < 2; ++which) found[which].push_back(tokens[which]);
  }
  if (found[0] != expected ||
      found[1] != std::vector<std::int64_t>(expected.begin(), expected.begin() + 4)) {
    std::fprintf(stderr, "tokens were lost\n");
    return false;
  }
  for (RequestState* state : states) free_request_state(engine, state);
  if (!holds_out("add_request", failures, add)) return false;
  if (tokens_of(engine) != expected) {
    std::fprintf(stderr, "an added request's tokens were lost\n");
    return false;
  }
  greedy.max_tokens = 100;  // more than a stream holds: it cannot end before it is withdrawn
  if (!holds_out("add_request", failures, add)) return false;
  if (!holds_out("cancel_request", failures, [&] { return cancel_request(engine, 7); }))
    return false;
  tokens_of(engine);
  chosen = false;
  one_thread.store(false);

  // As many requests as at the start have a place, and then none is left.
  std::vector<RequestState*> all;
  for (int i = 0; i < requests_max; ++i) all.push_back(prefill(engine, i, prompt, 3, &greedy));
  for (RequestState* state : all) {
    if (state == nullptr) {
      std::fprintf(stderr, "a place was lost: %s\n", last_error());
      return false;
    }
    free_request_state(engine, state);
  }
  std::printf("calls: failed in %ld ways\n", failures);
  return failures > 10 && get_engine_info(engine, KOHO_INFO_REQUESTS_LIVE) == 0 &&
         get_engine_info(engine, KOHO_INFO_PAGES_FREE) +
                 get_engine_info(engine, KOHO_INFO_PAGES_CACHED) ==
             get_engine_info(engine, KOHO_INFO_PAGES_TOTAL);
}

}  // namespace

int main(int argc, char** argv) {
  const bool calls = argc >= 3 && std::strcmp(argv[2], "calls") == 0;
  const Kind kind = calls ? Kind::memory : argc >= 3 ? kind_of(argv[2]) : Kind::none;
  if (kind == Kind::none) {
    std::fprintf(stderr, "usage: fail_nth_test MODEL_DIR KIND [STRIDE]\n");
    return 2;
  }
  const long stride = argc > 3 ? std::atol(argv[3]) : 1;
  EngineOptions options{};
  options.struct_size = sizeof(options);
  options.max_batch = 2;
  options.max_seq = 128;
  options.num_ranks = 2;
  options.num_threads = 6;
  options.max_queue = 4;

  // Once unharmed, so that what libraries allocate once and keep is there.
  EngineHandle* engine = init_engine_ex(argv[1], &options);
  if (engine == nullptr) {
    std::fprintf(stderr, "cannot start: %s\n", last_error());
    return 1;
  }
  const bool held_out = !calls || calls_hold_out(engine, options.max_batch + options.max_queue);
  free_engine(engine);
  if (calls) return held_out ? 0 : 1;
  Footprint before;
  settles_at({}, before);  // never: gives the threads time to leave

  long failures = 0;
  long survivals = 0;
  bool again = false;
  for (long n = 0;; n += again ? 0 : stride) {
    left.store(n);
    failed.store(false);
    dispensable_failed.store(false);
    failing.store(kind);
    engine = init_engine_ex(argv[1], &options);
    failing.store(Kind::none);
    const bool started = engine != nullptr;
    if (started) free_engine(engine);
    Footprint after;
    if (!settles_at(before, after)) {
      // A library may keep what it allocates the first time (the logger does): the second time
      // tells.
      if (again) {
        std::fprintf(
            stderr, "%s %ld: left behind: %ld blocks, %ld mappings, %ld descriptors, %ld threads\n",
            argv[2], n, after.blocks - before.blocks, after.mappings - before.mappings,
            after.files - before.files, after.threads - before.threads);
        return 1;
      }
      before = after;
      again = true;
      continue;
    }
    again = false;
    if (!failed.load()) break;  // there is no nth call
    ++failures;
    if (started) {
      if (!dispensable_failed.load()) {
        std::fprintf(stderr, "%s %ld failed, and yet there is an engine\n", argv[2], n);
        return 1;
      }
      ++survivals;
    } else if (last_error()[0] == '\0') {
      std::fprintf(stderr, "%s %ld: no reason is given\n", argv[2], n);
      return 1;
    }
  }
  std::printf("%s: failed in %ld ways, %ld of them survived, the last reason: %s\n", argv[2],
              failures, survivals, last_error());
  if (engine == nullptr || failures == 0) {
    std::fprintf(stderr, "it should have failed at least once and then succeeded\n");
    return 1;
  }
  return 0;
}
