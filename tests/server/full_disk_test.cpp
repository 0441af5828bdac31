// SPDX-License-Identifier: Apache-2.0
// Batches on a disk that is full: they wait, and lose nothing. A limit on the size of files makes
// it full.
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <sys/mount.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "batch_client.h"
#include "client.h"
#include "server/batch_service.h"
#include "tests/support/temporary_directory.h"
#include "tiny_server.h"

namespace koho::server {
namespace {

using chat::Json;

/// While it lives, no file of this process grows beyond `bytes`.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit now = before_;
    now.rlim_cur = bytes;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &now), 0);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

class FullDiskBatches : public ::testing::Test {
 protected:
  void start() {
    server_ = std::make_unique<TinyServer>([&](ServerSettings& settings) {
      settings.files_dir = directory_.path();
      settings.time.batch_retry_ms = 20;
    });
  }
  /// Ends the server, which is not to wait for room.
  void stop() {
    const auto begin = std::chrono::steady_clock::now();
    server_.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  }
  void make(const std::string& content, const std::string& window = "24h") {
    id_ = text_at(create(server_->port(), content, "", window), "id");
  }
  /// The disk has room for `bytes` of answers, and for all of the input.
  void make_on_full_disk(rlim_t bytes,
                         const std::string& content,
                         const std::string& window = "24h") {
    const std::string input = text_at(upload(server_->port(), content).json(), "id");
    full_ = std::make_unique<FullDisk>(bytes);
    const std::string order = R"({"endpoint":"/v1/completions","completion_window":")" + window +
                              R"(","input_file_id":")" + input + "\"}";
    id_ = text_at(call(server_->port(), "POST", "/v1/batches", "", order).json(), "id");
    // One with a short window may expire before, on a busy machine: its errors fill the disk, too.
    if (window == "24h") wait_for_answers(1);
  }
  Json batch() const { return call(server_->port(), "GET", "/v1/batches/" + id_).json(); }
  std::int64_t done() const { return std::stoll(text_at(batch(), "request_counts.completed")); }
  void wait_for_answers(std::int64_t count) {
    wait_for(server_->port(), id_, [&](const Json& now) {
      return std::stoll(text_at(now, "request_counts.completed")) >= count;
    });
  }
  /// It comes to rest: what ran has ended, and from one look at the disk to the next ones nothing
  /// changes, so no line runs again. A server that has just started comes to its batch first.
  void expect_rest() {
    constexpr std::int64_t kLooks = 4;
    BatchService& service = *server_->server().core().batches();
    const auto state = [&] {
      return std::pair(done(), server_->serving().engine.statistics().requests_completed);
    };
    auto last = state();
    std::int64_t begin = service.waits_found();
    bool rests = false;
    for (int i = 0; i < 6000 && !rests; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const std::int64_t looks = service.waits_found() - begin;
      const bool idle = server_->counters().requests_live.load() == 0;
      const auto now = state();
      const bool same = idle && now == last;
      rests = same && looks >= kLooks;
      last = now;
      if (!same) begin = service.waits_found();
    }
    EXPECT_TRUE(rests) << chat::dump_json(batch());
    EXPECT_FALSE(has_ended(batch())) << chat::dump_json(batch());
  }
  /// It ends so, with an outcome of every line and no fewer answers than it had.
  void expect_end(const std::string& status, std::size_t lines, std::int64_t answers_min) {
    const Json end = wait_for(server_->port(), id_, has_ended);
    EXPECT_EQ(text_at(end, "status"), status) << chat::dump_json(end);
    const auto answers = read_lines(server_->port(), text_at(end, "output_file_id"));
    const auto errors = read_lines(server_->port(), text_at(end, "error_file_id"));
    EXPECT_EQ(answers.size() + errors.size(), lines);
    EXPECT_GE(std::ssize(answers), answers_min);
    for (const char* kind : {".output", ".errors"})
      EXPECT_FALSE(std::filesystem::exists(directory_.path() / "batches" / (id_ + kind))) << kind;
  }

  /// Leaves a directory as of a server that was killed when its batch had all of its answers:
  /// before it had named its files, or before it had moved them. More lines come to the input.
  void undo_end(bool named, const std::string& more = {}) {
    start();
    make(lines(20, 30));
    const Json end = wait_for(server_->port(), id_, has_ended);
    output_ = text_at(end, "output_file_id");
    stop();
    const std::filesystem::path files = directory_.path() / "files";
    const std::filesystem::path record = directory_.path() / "batches" / (id_ + ".json");
    std::filesystem::rename(files / output_, directory_.path() / "batches" / (id_ + ".output"));
    std::filesystem::remove(files / (output_ + ".json"));
    std::ofstream(files / text_at(end, "input_file_id"), std::ios::app) << more;
    std::string text = *read_file(record, 1U << 20U);
    const auto replace = [&](const std::string& from, const std::string& to) {
      ASSERT_NE(text.find(from), std::string::npos) << text;
      text.replace(text.find(from), from.size(), to);
    };
    replace(R"("stored_status":"completed")",
            named ? R"("stored_status":"finalizing")" : R"("stored_status":"in_progress")");
    if (!named) replace('"' + output_ + '"', "null");
    std::ofstream(record) << text;
  }
  /// It waits with this status in two servers; the second stays.
  void expect_wait(const std::string& status) {
    const FullDisk full(100);
    for (int i = 0; i < 2; ++i) {
      if (server_) stop();
      start();
      wait_for(server_->port(), id_,
               [&](const Json& now) { return text_at(now, "status") == status; });
      expect_rest();
      EXPECT_EQ(text_at(batch(), "status"), status);
    }
  }

  koho::testing::TemporaryDirectory directory_;
  std::unique_ptr<TinyServer> server_;
  std::string id_;
  std::string output_;
  std::unique_ptr<FullDisk> full_;
};

TEST_F(FullDiskBatches, GoOnInTheSameServer) {
  start();
  make_on_full_disk(3000, lines(30, 30));  // it ends in the middle of a line
  expect_rest();
  const std::int64_t had = done();
  EXPECT_LT(had, 30);
  const auto before = server_->serving().engine.statistics().requests_completed;
  full_.reset();
  expect_end("completed", 30, 30);
  EXPECT_LT(server_->serving().engine.statistics().requests_completed - before, 30U - had)
      << "what was generated is kept";
}

TEST_F(FullDiskBatches, GoOnInTheNextServer) {
  start();
  make_on_full_disk(3000, lines(30, 30));
  expect_rest();
  const std::int64_t had = done();
  stop();
  start();
  expect_rest();
  EXPECT_GE(done(), had) << "a last answer may have fitted as the server ended";
  stop();
  full_.reset();
  start();
  expect_end("completed", 30, 30);
}

TEST_F(FullDiskBatches, ThatAreCancelledKeepTheirAnswers) {
  start();
  make_on_full_disk(3000, lines(30, 30));
  expect_rest();
  const std::int64_t had = done();
  EXPECT_EQ(call(server_->port(), "POST", "/v1/batches/" + id_ + "/cancel").status, 200);
  expect_rest();
  full_.reset();
  expect_end("cancelled", 30, had);
}

TEST_F(FullDiskBatches, ThatAreCancelledStaySoInTheNextServer) {
  start();
  make_on_full_disk(3000, lines(30, 30));
  expect_rest();
  const std::int64_t had = done();
  full_.reset();
  full_ = std::make_unique<FullDisk>(100);  // nor for a record
  EXPECT_EQ(call(server_->port(), "POST", "/v1/batches/" + id_ + "/cancel").status, 200);
  stop();
  full_.reset();
  start();
  expect_end("cancelled", 30, had);
  EXPECT_FALSE(std::filesystem::exists(directory_.path() / "batches" / (id_ + ".cancelled")));
}

TEST_F(FullDiskBatches, ThatExpireKeepTheirAnswers) {
  start();
  make_on_full_disk(3000, lines(30, 8), "4s");
  expect_rest();
  wait_for(server_->port(), id_,
           [](const Json& now) { return text_at(now, "status") == "finalizing"; });
  const std::int64_t had = done();
  stop();
  start();
  expect_rest();
  stop();
  full_.reset();
  start();
  expect_end("expired", 30, had);
}

/// Puts a descriptor that refuses in the place of a file's, until it ends.
class RefusingFile {
 public:
  RefusingFile(const std::filesystem::path& path, int flags) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code none;
      if (std::filesystem::read_symlink(entry.path(), none) == path)
        fd_ = std::stoi(entry.path().filename());
    }
    EXPECT_GE(fd_, 0) << path;
    before_ = dup(fd_);
    const int other = open("/dev/null", flags);
    dup2(other, fd_);
    close(other);
  }
  ~RefusingFile() {
    dup2(before_, fd_);
    close(before_);
  }

 private:
  int fd_ = -1;
  int before_ = -1;
};

TEST_F(FullDiskBatches, GoOnAfterAWriteThatFailed) {
  start();
  make(lines(100, 30));
  wait_for_answers(1);
  {
    const RefusingFile refusing(directory_.path() / "batches" / (id_ + ".output"), O_RDONLY);
    expect_rest();
  }
  expect_end("completed", 100, 100);
}

TEST_F(FullDiskBatches, WhoseInputCannotBeReadKeepTheirAnswers) {
  start();
  std::string content;  // which is read in pieces of 64 KiB
  for (int i = 0; i < 200; ++i)
    content += line("r" + std::to_string(i), 30, std::string(2000, ' '));
  make(content);
  wait_for_answers(1);
  const RefusingFile refusing(directory_.path() / "files" / text_at(batch(), "input_file_id"),
                              O_WRONLY);
  expect_rest();
  const std::int64_t had = done();
  EXPECT_EQ(call(server_->port(), "POST", "/v1/batches/" + id_ + "/cancel").status, 200);
  const Json end = wait_for(server_->port(), id_, has_ended);
  EXPECT_EQ(text_at(end, "status"), "cancelled");
  EXPECT_GE(std::ssize(read_lines(server_->port(), text_at(end, "output_file_id"))), had);
}

TEST_F(FullDiskBatches, GiveUpLinesInPieces) {
  start();
  make_on_full_disk(3000, lines(400, 100));
  EXPECT_EQ(call(server_->port(), "POST", "/v1/batches/" + id_ + "/cancel").status, 200);
  expect_rest();
  full_.reset();
  expect_end("cancelled", 400, 1);
}

TEST_F(FullDiskBatches, WaitOnASmallFileSystem) {
  if (mount("tmpfs", directory_.path().c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "no file system may be mounted";
  start();
  const std::string input = text_at(upload(server_->port(), lines(120, 30)).json(), "id");
  const std::filesystem::path filler = directory_.path() / "filler";
  {
    std::ofstream file(filler, std::ios::binary);
    file << std::string(std::filesystem::space(directory_.path()).available - 24'000, 'x');
  }
  id_ = text_at(call(server_->port(), "POST", "/v1/batches", "",
                     R"({"endpoint":"/v1/completions","completion_window":"24h",)"
                     R"("input_file_id":")" +
                         input + "\"}")
                    .json(),
                "id");
  wait_for_answers(1);
  expect_rest();
  const std::int64_t had = done();
  EXPECT_GT(had, 8);
  EXPECT_EQ(call(server_->port(), "POST", "/v1/batches/" + id_ + "/cancel").status, 200);
  expect_rest();
  std::filesystem::remove(filler);
  expect_end("cancelled", 120, had);
  stop();
  start();
  expect_end("cancelled", 120, had);
  stop();
  EXPECT_EQ(umount2(directory_.path().c_str(), MNT_DETACH), 0);
}

TEST_F(FullDiskBatches, MeetALineThatCannotBeRead) {
  undo_end(false, "torn {\n");
  expect_wait("in_progress");
  expect_end("completed", 21, 20);
}

TEST_F(FullDiskBatches, AtTheirEndCannotBeSaved) {
  undo_end(false);
  expect_wait("finalizing");
  expect_end("completed", 20, 20);
}

TEST_F(FullDiskBatches, AtTheirEndCannotKeepTheirFiles) {
  undo_end(true);
  expect_wait("finalizing");
  expect_end("completed", 20, 20);
  stop();
  start();
  expect_end("completed", 20, 20);
}

TEST_F(FullDiskBatches, CannotWriteHowTheyEnded) {
  undo_end(true);
  {
    const FullDisk full(450);  // room for a file's facts, not for a record
    start();
    expect_rest();
    EXPECT_TRUE(std::filesystem::exists(directory_.path() / "files" / (output_ + ".json")));
    stop();
  }
  start();
  expect_end("completed", 20, 20);
}

}  // namespace
}  // namespace koho::server
