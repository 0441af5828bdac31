// SPDX-License-Identifier: Apache-2.0
// Runs the split patterns with PCRE2: compiles each once with JIT, and matches within limits of
// steps and memory.
#include "tokenizer/pre_tokenizer.h"

#include <array>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/log.h"
#include "base/printable.h"
#include "tokenizer/split_pattern.h"
#include "tokenizer/utf8.h"

namespace koho {
namespace {

// The limit of backtracking steps per match: kStepsMin + kStepsPerByte * bytes. GLM's pattern takes
// at most one step per character, for a run of blanks.
constexpr std::uint32_t kStepsMin = 100'000;
constexpr std::uint32_t kStepsPerByte = 4;
constexpr std::uint32_t kHeapKibMax = 64U << 10U;  // per match without JIT
constexpr std::size_t kJitStackBytes = 64U << 10U;
constexpr std::size_t kJitStackBytesMax = 16U << 20U;

struct Free {
  void operator()(pcre2_code* it) const { pcre2_code_free(it); }
  void operator()(pcre2_match_data* it) const { pcre2_match_data_free(it); }
  void operator()(pcre2_match_context* it) const { pcre2_match_context_free(it); }
  void operator()(pcre2_jit_stack* it) const { pcre2_jit_stack_free(it); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

PCRE2_SPTR code_units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

/// The buffers of one call of split().
struct Scratch {
  Owned<pcre2_match_data> match{pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_match_context> context{pcre2_match_context_create(nullptr)};
  Owned<pcre2_jit_stack> stack;  // allocated once PCRE2's default of 32 KiB is too small

  bool ok() const { return match != nullptr && context != nullptr; }
  bool grow_stack() {
    if (stack != nullptr) return false;
    stack.reset(pcre2_jit_stack_create(kJitStackBytes, kJitStackBytesMax, nullptr));
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    return stack != nullptr;
  }
};

}  // namespace

class PreTokenizer::Pattern {
 public:
  static Result<Pattern> compile(std::string_view source) {
    KOHO_TRY_ASSIGN(const std::string translated, translate_split_pattern(source));
    int error = 0;
    PCRE2_SIZE offset = 0;
    Pattern pattern;
    pattern.code_.reset(pcre2_compile(code_units(translated), translated.size(),
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error,
                                      &offset, nullptr));
    if (pattern.code_ == nullptr)
      return make_error(ErrorCode::unsupported, "PCRE2 cannot compile it: {}",
                        pcre2_message(error));
    const int jit = pcre2_jit_compile(pattern.code_.get(), PCRE2_JIT_COMPLETE);
    pattern.jit_ = jit == 0;
    if (!pattern.jit_)
      log::warning("the tokenizer's split pattern is interpreted, which is slow: PCRE2 JIT: {}",
                   pcre2_message(jit));
    return pattern;
  }

  /// Calls `use` with the end offset of each piece of text[begin, end).
  Status split(std::string_view text,
               std::size_t begin,
               std::size_t end,
               Scratch& scratch,
               const std::function<void(std::uint32_t end)>& use) const {
    const std::string_view subject = text.substr(begin, end - begin);
    const auto cut = [&](std::size_t place) { use(static_cast<std::uint32_t>(begin + place)); };
    std::size_t done = 0;    // the text before is cut into pieces
    std::size_t search = 0;  // where the next match may start
    bool matched = false;    // a match ended at `done`
    while (search <= subject.size()) {
      KOHO_TRY_ASSIGN(const int found, match(subject, search, scratch));
      if (found == PCRE2_ERROR_NOMATCH) break;
      const PCRE2_SIZE* place = pcre2_get_ovector_pointer(scratch.match.get());
      if (place[0] == place[1] && matched && place[0] == done) {
        // Ignore an empty match right after a match, and search from the next character.
        if (search == subject.size()) break;
        search += utf8_step(subject.substr(search)).bytes;
        continue;
      }
      if (place[0] > done) cut(place[0]);
      if (place[1] > place[0]) cut(place[1]);
      done = search = place[1];
      matched = true;
    }
    if (done < subject.size()) cut(subject.size());
    return {};
  }

 private:
  /// The match count of PCRE2, or PCRE2_ERROR_NOMATCH.
  Result<int> match(std::string_view subject, std::size_t from, Scratch& scratch) const {
    while (true) {
      // pcre2_jit_match skips the checks of its arguments; the text is well-formed UTF-8.
      const auto run = jit_ ? pcre2_jit_match : pcre2_match;
      const int code = run(code_.get(), code_units(subject), subject.size(), from,
                           PCRE2_NO_UTF_CHECK, scratch.match.get(), scratch.context.get());
      if (code >= 0 || code == PCRE2_ERROR_NOMATCH) return code;
      if (code == PCRE2_ERROR_JIT_STACKLIMIT && scratch.grow_stack()) continue;
      return make_error(ErrorCode::resource_exhausted,
                        "the tokenizer's split pattern passes its limit at byte {} of {}: {}", from,
                        subject.size(), pcre2_message(code));
    }
  }

  Owned<pcre2_code> code_;
  bool jit_ = false;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

Result<PreTokenizer> PreTokenizer::compile(std::span<const std::string> patterns) {
  PreTokenizer pre_tokenizer;
  for (const std::string& source : patterns) {
    Result<Pattern> pattern = Pattern::compile(source);
    if (!pattern.ok())
      return std::move(pattern).error().with_context("split pattern '" + printable(source, 400) +
                                                     "'");
    pre_tokenizer.patterns_.push_back(std::move(*pattern));
  }
  return pre_tokenizer;
}

Status PreTokenizer::split(std::string_view text, std::vector<std::uint32_t>& ends) const {
  ends.clear();
  return split(text, [&ends](std::uint32_t end) { ends.push_back(end); });
}

Status PreTokenizer::split(std::string_view text,
                           const std::function<void(std::uint32_t end)>& use) const {
  if (text.empty()) return {};
  Scratch scratch;
  if (!scratch.ok())
    return make_error(ErrorCode::resource_exhausted,
                      "out of memory for the tokenizer's split pattern");
  pcre2_set_match_limit(scratch.context.get(),
                        kStepsMin + kStepsPerByte * static_cast<std::uint32_t>(text.size()));
  pcre2_set_heap_limit(scratch.context.get(), kHeapKibMax);
  std::vector<std::uint32_t> ends{static_cast<std::uint32_t>(text.size())};
  std::vector<std::uint32_t> coarser;
  for (const Pattern& pattern : patterns_) {
    // The pieces of all patterns but the last are cut again.
    const bool last = &pattern == &patterns_.back();
    coarser.swap(ends);
    ends.clear();
    std::size_t begin = 0;
    for (const std::uint32_t end : coarser) {
      if (last) {
        KOHO_TRY(pattern.split(text, begin, end, scratch, use));
      } else {
        KOHO_TRY(pattern.split(text, begin, end, scratch,
                               [&ends](std::uint32_t piece) { ends.push_back(piece); }));
      }
      begin = end;
    }
  }
  if (patterns_.empty()) use(ends.front());
  return {};
}

}  // namespace koho
