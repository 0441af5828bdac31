// SPDX-License-Identifier: Apache-2.0
// tokenizer_speed MODEL_DIR TEXT_FILE: prints the processor time of one thread to load
// tokenizer.json, and MB/s to encode and decode a text. speed_test.cpp checks times without a text
// file.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "base/mapped_file.h"
#include "tests/support/thread_time.h"
#include "tokenizer/tokenizer.h"

using koho::testing::thread_seconds;

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: tokenizer_speed MODEL_DIR TEXT_FILE\n");
    return 2;
  }
  const double begin = thread_seconds();
  const auto tokenizer = koho::Tokenizer::load(std::filesystem::path(argv[1]) / "tokenizer.json");
  const double loaded = thread_seconds();
  const auto file = koho::MappedFile::open(argv[2]);
  if (!tokenizer.ok() || !file.ok()) {
    std::fprintf(stderr, "%s\n",
                 (tokenizer.ok() ? file.error() : tokenizer.error()).message.c_str());
    return 1;
  }
  std::printf("load %.3f s, %d tokens\n", loaded - begin, tokenizer->vocab_size());
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                              file->bytes().size());
  constexpr int kRuns = 5;
  double encode = 1e9;
  double decode = 1e9;
  std::size_t tokens = 0;
  bool same = true;
  for (int run = 0; run < kRuns; ++run) {
    const double start = thread_seconds();
    const auto ids = tokenizer->encode(text);
    const double encoded = thread_seconds();
    if (!ids.ok()) {
      std::fprintf(stderr, "%s\n", ids.error().message.c_str());
      return 1;
    }
    same = same && tokenizer->decode(*ids) == text;
    decode = std::min(decode, thread_seconds() - encoded);
    encode = std::min(encode, encoded - start);
    tokens = ids->size();
  }
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  std::printf("%.2f MB, %zu tokens: encode %.1f MB/s, decode %.1f MB/s, round trip %s\n", megabytes,
              tokens, megabytes / encode, megabytes / decode, same ? "equal" : "DIFFERS");
  return same ? 0 : 1;
}
