// SPDX-License-Identifier: Apache-2.0
// Is the simulation strong enough? Each hand-made bug must be caught within 10^6 events, by a
// broken rule or by a check of the product's own that stops the program.
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "mutant.h"
#include "mutation_names.h"
#include "simulation.h"

namespace koho::simulation {
namespace {

constexpr std::int64_t kEventsMax = 1'000'000;
constexpr std::int64_t kEventsPerSeed = 50'000;

/// What a child process says of a mutant.
struct Verdict {
  std::int64_t events = 0;  // until it was caught, to the end of the seed if a check aborted
  std::string violation;    // empty: not caught
};

/// Runs seeds with the active mutant until a rule is broken; writes each seed's result to `out`.
void run_seeds(std::FILE* out) {
  for (std::int64_t done = 0; done < kEventsMax; done += kEventsPerSeed) {
    std::fprintf(out, "E%lld\n", static_cast<long long>(done + kEventsPerSeed));
    std::fflush(out);
    const Report report = simulate(
        {.seed = static_cast<std::uint64_t>(done / kEventsPerSeed) + 1, .events = kEventsPerSeed});
    if (report.violation.empty()) continue;
    std::fprintf(out, "E%lld\nV%s\n", static_cast<long long>(done + report.events),
                 report.violation.c_str());
    return;
  }
}

/// A mutant may abort or never return, so it lives in a process of its own.
Verdict judge(int mutant_number) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
    alarm(300);  // a hang is not a catch
    active_mutant = mutant_number;
    std::FILE* out = fdopen(ends[1], "w");
    run_seeds(out);
    std::fclose(out);
    _exit(0);
  }
  close(ends[1]);
  Verdict verdict;
  std::FILE* in = fdopen(ends[0], "r");
  char line[1024];
  while (std::fgets(line, sizeof(line), in) != nullptr) {
    if (line[0] == 'E') verdict.events = std::stoll(line + 1);
    if (line[0] == 'V') verdict.violation = line + 1;
  }
  std::fclose(in);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT)
    verdict.violation = "a check of the product stopped it";
  return verdict;
}

TEST(Mutation, TheUnchangedSourcesAreNotCaught) {
  EXPECT_EQ(judge(0).violation, "");
}

class MutationTest : public testing::TestWithParam<int> {};

TEST_P(MutationTest, IsCaughtWithinAMillionEvents) {
  const Verdict verdict = judge(GetParam());
  const char* name = kMutationNames[static_cast<std::size_t>(GetParam()) - 1];
  ASSERT_FALSE(verdict.violation.empty()) << "not caught: " << name;
  std::printf("%s: caught within %lld events: %s\n", name, static_cast<long long>(verdict.events),
              verdict.violation.c_str());
}

INSTANTIATE_TEST_SUITE_P(All,
                         MutationTest,
                         testing::Range(1, static_cast<int>(kMutationNames.size()) + 1));

}  // namespace
}  // namespace koho::simulation
