// SPDX-License-Identifier: Apache-2.0
// init_engine with every allocation, mapping, open, read and thread start failed in turn: NULL, a
// reason, and nothing left behind. This program's own malloc, mmap, open, read and pthread_create
// stand before libc's for itself and for engine.so.
//
// Usage: fail_nth_test MODEL_DIR KIND [STRIDE] where KIND is one of memory, memory-from (the nth
// and all later ones), map, open, read, thread.
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
#include <pthread.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

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
std::atomic<long> left{0};        // calls of the kind that still succeed
std::atomic<bool> failed{false};  // one did not
std::atomic<bool> pcre2_failed{false};
std::atomic<long> live_blocks{0};
std::atomic<long> live_mappings{0};

/// Whether this call of `kind` fails.
bool fails(Kind kind) {
  const Kind now = failing.load(std::memory_order_relaxed);
  if (now == Kind::none) return false;
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
    pcre2_failed.store(true);
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
  if (fails(Kind::open)) return refused(EMFILE);
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

}  // namespace

int main(int argc, char** argv) {
  const Kind kind = argc >= 3 ? kind_of(argv[2]) : Kind::none;
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
  free_engine(engine);
  Footprint before;
  settles_at({}, before);  // never: gives the threads time to leave

  long failures = 0;
  long survivals = 0;
  bool again = false;
  for (long n = 0;; n += again ? 0 : stride) {
    left.store(n);
    failed.store(false);
    pcre2_failed.store(false);
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
      // PCRE2 does without its JIT compiler, which is no failure.
      if (!pcre2_failed.load()) {
        std::fprintf(stderr, "%s %ld failed, and yet there is an engine\n", argv[2], n);
        return 1;
      }
      ++survivals;
    } else if (last_error()[0] == '\0') {
      std::fprintf(stderr, "%s %ld: no reason is given\n", argv[2], n);
      return 1;
    }
  }
  std::printf(
      "%s: failed in %ld ways, %ld of them survived (PCRE2 without JIT), the last reason: %s\n",
      argv[2], failures, survivals, last_error());
  if (engine == nullptr || failures == 0) {
    std::fprintf(stderr, "it should have failed at least once and then succeeded\n");
    return 1;
  }
  return 0;
}
