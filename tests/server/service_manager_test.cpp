// SPDX-License-Identifier: Apache-2.0
// The messages to systemd, received on a socket of the test.
#include "server/service_manager.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "notify_socket.h"

namespace koho::server {
namespace {

class HandClock final : public Clock {
 public:
  std::int64_t now_us() const override { return now; }
  std::int64_t now = 1;
};

TEST(ServiceManager, IsKeptAliveOnlyByWhatIsAlive) {
  constexpr std::int64_t kSilenceUs = 8'000'000;
  NotifySocket socket;
  HandClock clock;
  ServiceManager manager({.socket = socket.path(), .watchdog_us = kSilenceUs}, clock);
  // What is sent is taken at once: such a socket holds ten.
  const auto look_for = [&](std::int64_t us, bool alive) {
    std::vector<std::string> told;
    for (const std::int64_t end = clock.now + us; clock.now < end;
         clock.now += manager.look_every_ms() * 1000) {
      manager.keep_alive(alive);
      for (std::string& one : socket.take()) told.push_back(std::move(one));
    }
    return told;
  };
  const std::vector<std::string> told = look_for(10 * kSilenceUs, true);
  EXPECT_GE(told.size(), 20U);  // at least twice in each of the ten
  EXPECT_LE(told.size(), 40U);
  for (const std::string& one : told) EXPECT_EQ(one, "WATCHDOG=1");
  EXPECT_TRUE(look_for(10 * kSilenceUs, false).empty());
  EXPECT_FALSE(look_for(kSilenceUs, true).empty());
}

TEST(ServiceManager, SaysNothingUnasked) {
  NotifySocket socket;
  HandClock clock;
  ServiceManager manager({.socket = socket.path(), .watchdog_us = 0}, clock);
  for (int i = 0; i < 100; ++i, clock.now += 1'000'000) manager.keep_alive(true);
  EXPECT_TRUE(socket.take().empty());
  manager.tell("READY=1");
  EXPECT_EQ(socket.take(), std::vector<std::string>{"READY=1"});
  ServiceManager nobody({.socket = "", .watchdog_us = 1'000'000}, clock);
  nobody.tell("READY=1");
  nobody.keep_alive(true);
  EXPECT_TRUE(socket.take().empty());
}

}  // namespace
}  // namespace koho::server
