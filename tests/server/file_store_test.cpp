// SPDX-License-Identifier: Apache-2.0
// The store of /v1/files without its server: which files expire.
#include "server/file_store.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace koho::server {
namespace {

TEST(FileStore, AFileThatABatchReadsDoesNotExpireUnderIt) {
  const koho::testing::TemporaryDirectory directory;
  auto store = FileStore::open(directory.path(), 1000);
  ASSERT_TRUE(store.ok()) << store.error().message;
  FileStore& files = **store;
  for (const char* id : {"file-read", "file-old", "file-young"})
    ASSERT_TRUE(
        files.add({.id = id, .expires_at = std::string(id) == "file-young" ? 200 : 100}, "x").ok());
  const auto is_read = [](const StoredFile& file) { return file.id == "file-read"; };
  files.remove_expired(150, is_read);
  EXPECT_TRUE(files.find("", "file-read"));
  EXPECT_FALSE(files.find("", "file-old"));
  EXPECT_TRUE(files.find("", "file-young"));
  files.remove_expired(250, [](const StoredFile&) { return false; });
  EXPECT_TRUE(files.list("").empty());
}

}  // namespace
}  // namespace koho::server
