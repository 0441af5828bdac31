// SPDX-License-Identifier: Apache-2.0
// The store of /v1/files without its server: which files expire, and how much each owner may keep.
#include "server/file_store.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

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

TEST(FileStore, AFileThatCannotBeDeletedStays) {
  const koho::testing::TemporaryDirectory directory;
  for (const char* kind : {".json", ""}) {
    auto store = FileStore::open(directory.path(), 1000);
    ASSERT_TRUE(store.ok()) << store.error().message;
    FileStore& files = **store;
    ASSERT_TRUE(files.add({.id = "file-a", .owner = "a"}, "x").ok());
    // A directory cannot be unlinked.
    const std::filesystem::path path = directory.path() / "files" / ("file-a" + std::string(kind));
    std::filesystem::rename(path, directory.path() / "aside");
    std::filesystem::create_directory(path);
    EXPECT_EQ(files.remove("a", "file-a").error().code, ErrorCode::io_error);
    EXPECT_TRUE(files.find("a", "file-a"));
    EXPECT_EQ(files.remove("b", "file-a").error().code, ErrorCode::not_found);
    std::filesystem::remove(path);
    std::filesystem::rename(directory.path() / "aside", path);
    EXPECT_TRUE(files.remove("a", "file-a").ok());
    EXPECT_FALSE(files.find("a", "file-a"));
    EXPECT_FALSE(std::filesystem::exists(path));
  }
}

class FileShares : public ::testing::Test {
 protected:
  /// Uploads files of so many bytes until one is refused; how many were kept.
  int fill(const std::string& owner, std::int64_t bytes, const FileShare& share = {0, true}) {
    int kept = 0;
    while (kept < 2000 && add(owner, bytes, share)) ++kept;
    return kept;
  }
  bool add(const std::string& owner, std::int64_t bytes, const FileShare& share = {0, true}) {
    const std::string content(static_cast<std::size_t>(bytes), 'x');
    const Status kept = store().add({.id = next_id(), .owner = owner}, content, share);
    if (!kept.ok()) why_ = kept.error().message;
    return kept.ok();
  }
  void add_answers(const std::string& owner, std::int64_t bytes) {
    const std::filesystem::path path = directory_.path() / "part";
    std::ofstream(path) << std::string(static_cast<std::size_t>(bytes), 'x');
    ASSERT_TRUE(store().take_over({.id = next_id(), .owner = owner}, path).ok());
  }
  std::string next_id() { return "file-" + std::to_string(next_++); }
  FileStore& store() {
    if (!store_) store_ = std::move(*FileStore::open(directory_.path(), 1000));
    return *store_;
  }

  const koho::testing::TemporaryDirectory directory_;
  std::unique_ptr<FileStore> store_;
  std::string why_;
  int next_ = 0;
};

TEST_F(FileShares, AnOwnerLeavesAsMuchAsItHas) {
  EXPECT_EQ(fill("a", 10), 50);
  EXPECT_EQ(why_, "500 bytes of files are yours, 0 more would fit: delete some first");
  EXPECT_EQ(fill("b", 10), 25);
  EXPECT_EQ(fill("c", 10), 12);
  EXPECT_FALSE(add("a", 1));
  EXPECT_TRUE(store().remove("a", store().list("a").front().id).ok());
  EXPECT_TRUE(add("c", 5));
  store_.reset();  // and the same of what is on disk
  EXPECT_FALSE(add("b", 5));
  EXPECT_EQ(fill("d", 1), 67);
}

TEST_F(FileShares, AnswersUnderWayCount) {
  store().hold_answers("a", 480);
  EXPECT_EQ(fill("a", 10), 2);
  EXPECT_EQ(fill("b", 10), 25);
  store().hold_answers("a", 40);
  EXPECT_FALSE(store().check_share("a", {0, true}).ok());
  store().hold_answers("a", -520);
  EXPECT_TRUE(add("a", 10));
}

TEST_F(FileShares, OthersDoNotStopAnswers) {
  const auto goes_on = [this](std::int64_t bytes_max = 0) {
    return store().check_answers("a", {bytes_max, true}).ok();
  };
  EXPECT_EQ(fill("a", 10), 50);
  EXPECT_EQ(fill("b", 10), 25);
  EXPECT_FALSE(store().check_share("a", {0, true}).ok());
  EXPECT_TRUE(goes_on());
  EXPECT_FALSE(goes_on(499));
  store().hold_answers("a", 1);
  EXPECT_FALSE(goes_on()) << "more than one alone has";
  store().hold_answers("a", -1);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(store().remove("a", store().list("a").front().id).ok());
  EXPECT_EQ(fill("c", 10), 22);  // 230 are left
  EXPECT_EQ(fill("d", 10), 11);  // 120
  store().hold_answers("a", 60);
  EXPECT_TRUE(goes_on());
  store().hold_answers("a", 1);
  EXPECT_FALSE(goes_on()) << "more than is left";
}

TEST_F(FileShares, OneAloneHasAllOfIt) {
  EXPECT_EQ(fill("a", 10, {}), 100);
}

TEST_F(FileShares, AnOwnersOwnLimitIsTheLess) {
  EXPECT_EQ(fill("a", 10, {.bytes_max = 30}), 3);
  EXPECT_EQ(fill("b", 10, {.bytes_max = 30, .leaves_room = true}), 3);
  EXPECT_EQ(fill("c", 10, {.bytes_max = 10'000, .leaves_room = true}), 47);
}

TEST_F(FileShares, AnswersOfBatchesTakeNothingFromOthers) {
  add_answers("a", 5000);
  EXPECT_FALSE(store().check_share("a", {.leaves_room = true}).ok());
  EXPECT_FALSE(add("a", 1));
  EXPECT_TRUE(store().check_share("b", {.leaves_room = true}).ok());
  EXPECT_EQ(fill("b", 10), 25);
  add_answers("b", 5000);
  EXPECT_EQ(fill("c", 1), 125);
}

}  // namespace
}  // namespace koho::server
