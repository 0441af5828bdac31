// SPDX-License-Identifier: Apache-2.0
#include "base/child_process.h"

#include <array>
#include <csignal>
#include <fcntl.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/shared_memory.h"

namespace koho {
namespace {

/// A shell that runs `script`; 3, 4, ... are `descriptors`.
Result<ChildProcess> shell(const std::string& script, std::vector<int> descriptors = {}) {
  return ChildProcess::spawn({.program = "/bin/sh",
                              .arguments = {"sh", "-c", script},
                              .descriptors = std::move(descriptors)});
}

TEST(ChildProcess, TellsHowItEnded) {
  Result<ChildProcess> child = shell("exit 7");
  ASSERT_TRUE(child.ok()) << child.error().message;
  EXPECT_EQ(child->ended(20'000), "ended with exit code 7");
  EXPECT_EQ(child->ended(), "ended with exit code 7");
}

TEST(ChildProcess, KillsEvenOneThatIsStopped) {
  Result<ChildProcess> child = shell("kill -STOP $$; exit 0");
  ASSERT_TRUE(child.ok());
  EXPECT_FALSE(child->ended(50));
  child->kill();
  const auto ending = child->ended(20'000);
  ASSERT_TRUE(ending);
  EXPECT_NE(ending->find("signal 9"), std::string_view::npos) << *ending;
}

TEST(ChildProcess, GetsTheDescriptorsThatItIsGivenAndNoOther) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const int leaked = open("/dev/zero", O_RDONLY);  // without O_CLOEXEC
  ASSERT_GE(leaked, 0);
  // The pipe's ends become 3 and 4; `ls` itself opens one more for the folder.
  Result<ChildProcess> child = shell("exec ls /proc/self/fd >&4", {pipe[0], pipe[1]});
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->ended(20'000), "ended with exit code 0");
  close(pipe[1]);
  std::string listed(100, '\0');
  listed.resize(static_cast<std::size_t>(read(pipe[0], listed.data(), listed.size())));
  EXPECT_EQ(listed, "0\n1\n2\n3\n4\n5\n");
  close(pipe[0]);
  close(leaked);
}

TEST(ChildProcess, HasTheTerminalsSignalsBlocked) {
  Result<ChildProcess> child =
      shell("kill -INT $$; kill -TERM $$; kill -HUP $$; kill -USR1 $$; exit 3");
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->ended(20'000), "ended with exit code 3");
}

TEST(ChildProcess, AProgramThatIsNotThereIsNamed) {
  const Result<ChildProcess> child =
      ChildProcess::spawn({.program = "/no/such/program", .arguments = {"x"}, .descriptors = {}});
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.error().code, ErrorCode::not_found);
  EXPECT_NE(child.error().message.find("/no/such/program"), std::string::npos);
}

TEST(SharedMemory, IsTheSameForAllWhoMapItAndNeverShrinks) {
  Result<SharedMemory> first = SharedMemory::create("test", 4096);
  ASSERT_TRUE(first.ok()) << first.error().message;
  Result<SharedMemory> second = SharedMemory::open(Descriptor(dup(first->descriptor())));
  ASSERT_TRUE(second.ok()) << second.error().message;
  first->bytes()[17] = std::byte{9};
  EXPECT_EQ(second->bytes()[17], std::byte{9});
  EXPECT_EQ(second->bytes()[18], std::byte{0});
  ASSERT_TRUE(first->grow(3 * 4096).ok());
  first->bytes()[2 * 4096] = std::byte{5};
  EXPECT_EQ(second->bytes().size(), 4096U);
  ASSERT_TRUE(second->map_whole().ok());
  ASSERT_EQ(second->bytes().size(), 3U * 4096U);
  EXPECT_EQ(second->bytes()[2 * 4096], std::byte{5});
  EXPECT_NE(ftruncate(second->descriptor(), 1), 0);
}

TEST(SharedMemory, AnOrdinaryFileIsRefused) {
  const Result<SharedMemory> memory =
      SharedMemory::open(Descriptor(open("/dev/zero", O_RDWR | O_CLOEXEC)));
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.error().code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace koho
