// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/safetensors_writer.h"
#include "tests/support/temporary_directory.h"

namespace koho {
namespace {

using testing::TemporaryDirectory;
using testing::TensorToWrite;
using testing::write_file;

std::vector<TensorToWrite> two_tensors() {
  return {{"b", "F32", {2, 2}, std::string("0123456789abcdef")}, {"a", "U8", {3}, "xyz"}};
}

TEST(SafetensorsHeader, ReadsTensorsInTheOrderOfTheirBytes) {
  const std::vector<TensorToWrite> tensors = two_tensors();
  const std::string file = testing::safetensors_file(tensors);
  const Result<SafetensorsHeader> header =
      parse_safetensors_header(std::as_bytes(std::span(file)), file.size());
  ASSERT_TRUE(header.ok()) << header.error().message;
  ASSERT_EQ(header->entries.size(), 2U);
  EXPECT_EQ(header->entries[0].name, "b");
  EXPECT_EQ(header->entries[0].stored->dtype, DType::f32);
  EXPECT_EQ(header->entries[0].shape, (Shape{2, 2}));
  EXPECT_EQ(header->entries[1].begin, 16U);
  EXPECT_EQ(header->entries[1].end, 19U);
  EXPECT_EQ(header->data_offset, file.size() - 19);
}

TEST(SafetensorsHeader, AcceptsWhatTheFormatAllows) {
  for (
      const char* text :
      {R"({})", R"({"__metadata__":{}})", R"({"__metadata__":{"a":"","b":"\u0000"}}   )",
       R"({"a":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},"b":{"data_offsets":[0,0],"shape":[0],"dtype":"U8"}})",
       R"({"a":{"dtype":"F64","shape":[0],"data_offsets":[0,0]},"":{"dtype":"F4","shape":[0],"data_offsets":[0,0]}})"}) {
    const std::string file = testing::safetensors_from_header(text, "");
    const Result<SafetensorsHeader> header =
        parse_safetensors_header(std::as_bytes(std::span(file)), file.size());
    EXPECT_TRUE(header.ok()) << text << ": " << header.error().message;
  }
  // Elements of six and four bits fill whole bytes together; a scalar has no axis.
  const std::string file = testing::safetensors_from_header(
      R"({"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]},"b":{"dtype":"F4","shape":[2],"data_offsets":[3,4]},)"
      R"("c":{"dtype":"U8","shape":[],"data_offsets":[4,5]}})",
      "12345");
  EXPECT_TRUE(parse_safetensors_header(std::as_bytes(std::span(file)), file.size()).ok());
}

TEST(Checkpoint, FindsTensorsAcrossShardsByName) {
  const TemporaryDirectory directory;
  const std::vector<TensorToWrite> tensors = two_tensors();
  write_file(directory.path() / "x.safetensors",
             testing::safetensors_file(std::span(tensors).subspan(0, 1)));
  write_file(directory.path() / "y.safetensors",
             testing::safetensors_file(std::span(tensors).subspan(1, 1)));
  write_file(
      directory.path() / "model.safetensors.index.json",
      testing::safetensors_index(
          std::vector<testing::IndexLine>{{"b", "x.safetensors"}, {"a", "y.safetensors"}}, 19));
  Result<Checkpoint> checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_TRUE(checkpoint->warnings().empty());
  EXPECT_EQ(checkpoint->tensors()[0].name, "a");
  const CheckpointTensor* b = checkpoint->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(checkpoint->file_name(*b), "x.safetensors");
  const Result<ConstTensorView> view = checkpoint->view(*b);
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(view->data), 16), tensors[0].data);
  EXPECT_TRUE(checkpoint->is_mapped(*view));
  EXPECT_EQ(checkpoint->find("c"), nullptr);

  // The views outlive a move.
  const Checkpoint moved = *std::move(checkpoint);
  EXPECT_EQ(moved.find("b")->bytes.data(), view->data);
  EXPECT_TRUE(moved.is_mapped(*view));
}

TEST(Checkpoint, FollowsSymbolicLinksToFiles) {
  const TemporaryDirectory
      blobs;  // a Hugging Face cache: the snapshot links to blobs outside of it
  const TemporaryDirectory snapshot;
  const std::vector<TensorToWrite> tensors = two_tensors();
  write_file(blobs.path() / "0f3a", testing::safetensors_file(tensors));
  std::filesystem::create_symlink(blobs.path() / "0f3a", snapshot.path() / "model.safetensors");
  EXPECT_TRUE(Checkpoint::open(snapshot.path()).ok());
  std::filesystem::remove(blobs.path() / "0f3a");
  const Result<Checkpoint> broken = Checkpoint::open(snapshot.path());
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.error().message.find("model.safetensors"), std::string::npos);
}

TEST(Checkpoint, WarnsOfFilesThatNobodyNames) {
  const TemporaryDirectory directory;
  const std::vector<TensorToWrite> tensors = two_tensors();
  write_file(directory.path() / "x.safetensors", testing::safetensors_file(tensors));
  write_file(directory.path() / "model.safetensors", "not even safetensors");
  write_file(
      directory.path() / "model.safetensors.index.json",
      testing::safetensors_index(
          std::vector<testing::IndexLine>{{"b", "x.safetensors"}, {"a", "x.safetensors"}}, 20));
  const Result<Checkpoint> checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  ASSERT_EQ(checkpoint->warnings().size(), 2U);
  EXPECT_NE(checkpoint->warnings()[0].find("model.safetensors is not used"), std::string::npos);
  EXPECT_NE(checkpoint->warnings()[1].find("total_size is 20"), std::string::npos);
}

TEST(Checkpoint, ATensorKohoDoesNotComputeWithIsRefusedWhenAskedFor) {
  const TemporaryDirectory directory;
  const std::vector<TensorToWrite> tensors{{"a", "F64", {1}, "12345678"}};
  write_file(directory.path() / "model.safetensors", testing::safetensors_file(tensors));
  Result<Checkpoint> checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.ok());
  const Result<ConstTensorView> view = checkpoint->view(*checkpoint->find("a"));
  ASSERT_FALSE(view.ok());
  EXPECT_EQ(view.error().code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace koho
