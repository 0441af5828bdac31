// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <algorithm>
#include <fcntl.h>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/descriptor.h"

namespace koho::log {
namespace {

TEST(Log, AReaderWhoDoesNotReadStopsNobody) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Descriptor reader(ends[0]);
  const Descriptor before(dup(STDERR_FILENO));
  dup2(ends[1], STDERR_FILENO);
  close(ends[1]);
  const auto read_all = [&] {
    fcntl(reader.get(), F_SETFL, O_NONBLOCK);
    std::string text;
    char buffer[4096];
    for (ssize_t got = 0; (got = read(reader.get(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(got));
    return text;
  };
  constexpr int kLines = 2000;  // more than a pipe has room for
  for (int i = 0; i < kLines; ++i) info("{:0>100}", i);
  const std::string first = read_all();
  info("the last");
  const std::string second = read_all();
  dup2(before.get(), STDERR_FILENO);
  const auto lines = std::count(first.begin(), first.end(), '\n');
  EXPECT_GT(lines, 1);
  EXPECT_LT(lines, kLines);
  EXPECT_NE(second.find(std::to_string(kLines - lines) + " lines are lost"), std::string::npos)
      << second;
  EXPECT_NE(second.find("the last"), std::string::npos) << second;
}

}  // namespace
}  // namespace koho::log
