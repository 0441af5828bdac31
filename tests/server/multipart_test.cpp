// SPDX-License-Identifier: Apache-2.0
// Bodies of uploads, without their server.
#include "server/multipart.h"

#include <string>

#include <gtest/gtest.h>

namespace koho::server {
namespace {

TEST(Multipart, ReadsWhatClientsSendAndRefusesTheRest) {
  const std::string good =
      "preamble\r\n--koho-boundary\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n"
      "batch\r\n--koho-boundary\r\nContent-Disposition: form-data; name=\"file\"; "
      "filename=\"x \\\"y\\\".jsonl\"\r\n\r\na\r\n--other\r\nb\r\n--koho-boundary--";
  const auto form = read_form("multipart/form-data; boundary=\"koho-boundary\"", good);
  ASSERT_TRUE(form.ok()) << form.error().message;
  ASSERT_EQ(form->size(), 2U);
  EXPECT_EQ((*form)[0].content, "batch");
  EXPECT_EQ((*form)[1].filename, "x \"y\".jsonl");
  EXPECT_EQ((*form)[1].content, "a\r\n--other\r\nb");
  EXPECT_FALSE(read_form("multipart/form-data", good).ok());
  // Every beginning of it ends without a crash, and is refused.
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes)
    EXPECT_FALSE(
        read_form("multipart/form-data; boundary=koho-boundary", good.substr(0, bytes)).ok())
        << bytes;
}

}  // namespace
}  // namespace koho::server
