// SPDX-License-Identifier: Apache-2.0
// Broken shard files as wholes, and an index that does not fit them: wrong names, wrong places,
// cut, padded, exchanged, missing, links and devices.
#include <filesystem>
#include <sys/stat.h>

#include <fmt/core.h>

#include "base/check.h"
#include "tests/checkpoint/mutation_table.h"

namespace koho::testing {

void add_index_mutations(Table& table) {
  add_bad_json(table, kIndex);
  const std::string norm = "\"model.norm.weight\":\"" + std::string(kShard2) + "\"";
  const auto names = [&](const std::string& to, Words words) {
    table.text(kIndex, kShard1, to, std::move(words));
  };
  names("../model-00001-of-00003.safetensors", {"directory"});
  names("/etc/passwd", {"directory"});
  names("sub/model.safetensors", {"directory"});
  names("..", {".."});
  names(".hidden.safetensors", {"dot"});
  names("", {"empty"});
  names("weights.bin", {"weights.bin"});
  names(kIndex, {"does not end in .safetensors"});
  names("a\\u0000b.safetensors", {"directory"});
  names("a\\\\b.safetensors", {"directory"});
  names(std::string(300, 'a') + ".safetensors", {"255"});
  names("absent.safetensors", {});
  table.rows.back().words = {"absent.safetensors"};
  table.text(kIndex, "\"weight_map\"", "\"weights\"", {"weight_map"});
  table.text(kIndex, "\"lm_head.weight\":\"", "\"lm_head.weight\":1,\"x\":\"",
             {"lm_head.weight", "file name"});
  table.text(kIndex, "\"lm_head.weight\":\"", "\"lm_head.weight\":[],\"x\":\"", {"lm_head.weight"});
  table.text(kIndex, "\"lm_head.weight\":\"", "\"lm_head.weight\":null,\"x\":\"",
             {"lm_head.weight"});
  table.text(kIndex, "\"lm_head.weight\":\"", "\"model.norm.weight\":\"",
             {"model.norm.weight", "twice"});
  const auto moved = [&](const std::string& what, const std::string& from, const std::string& to,
                         Words words) {
    table.add("index: " + what, std::move(words),
              [=](DirectoryImage& image) { image.replace(kIndex, from, to); });
  };
  moved("a tensor in the wrong shard", "\"model.embed_tokens.weight\":\"" + std::string(kShard1),
        "\"model.embed_tokens.weight\":\"" + std::string(kShard3),
        {"model.embed_tokens.weight", kShard1, kShard3});
  moved("a tensor that no shard has", "\"lm_head.weight\"",
        "\"lm_tail.weight\":\"" + std::string(kShard3) + "\",\"lm_head.weight\"",
        {"lm_tail.weight", kShard3});
  moved("a tensor left out", "\"model.embed_tokens.weight\":\"" + std::string(kShard1) + "\",", "",
        {"model.embed_tokens.weight", "not in the index"});
  table.add("index: empty map", {kIndex, "empty"},
            [](DirectoryImage& image) { image.files[kIndex] = R"({"weight_map":{}})"; });
  table.add("index: map is an array", {kIndex, "weight_map"},
            [](DirectoryImage& image) { image.files[kIndex] = R"({"weight_map":["a"]})"; });
  table.add("index: map is a string", {kIndex, "weight_map"},
            [](DirectoryImage& image) { image.files[kIndex] = R"({"weight_map":"a"})"; });
  table.add("index: nested map", {kIndex, "lm_head"}, [](DirectoryImage& image) {
    image.files[kIndex] = R"({"weight_map":{"lm_head":{"a":"b.safetensors"}}})";
  });
  table.add("index: a shard's own bytes", {kIndex},
            [](DirectoryImage& image) { image.files[kIndex] = image.files[kShard1]; });
  table.add("index: links to itself", {kIndex}, [](DirectoryImage& image) {
    image.files.erase(kIndex);
    image.afterwards = [](const std::filesystem::path& path) {
      std::filesystem::create_symlink(kIndex, path / kIndex);
    };
  });
  table.add("index: none, shards only", {kIndex, "model.safetensors"},
            [](DirectoryImage& image) { image.files.erase(kIndex); });
  table.add("index: 10,001 files", {kIndex, "10000"}, [](DirectoryImage& image) {
    std::vector<IndexLine> lines;
    for (int i = 0; i <= 10'000; ++i)
      lines.push_back({fmt::format("t{}", i), fmt::format("f{}.safetensors", i)});
    image.files[kIndex] = safetensors_index(lines, 0);
  });
}

void add_shard_mutations(Table& table) {
  const std::size_t full = good_directory().files[kShard2].size();
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{9},
        std::size_t{100}, std::size_t{1000}, full / 4, full / 2, full * 3 / 4, full - 8, full - 1})
    table.add(fmt::format("{} cut to {} bytes", kShard2, size), {kShard2},
              [=](DirectoryImage& image) { image.files[kShard2].resize(size); });
  for (const std::size_t more : {1U, 8U, 4096U})
    table.add(fmt::format("{} with {} bytes more", kShard2, more), {kShard2, "follow"},
              [=](DirectoryImage& image) { image.files[kShard2] += std::string(more, '\0'); });
  table.add("a shard of zeros", {kShard2}, [](DirectoryImage& image) {
    image.files[kShard2].assign(image.files[kShard2].size(), '\0');
  });
  table.add("a shard of 0xFF", {kShard2}, [](DirectoryImage& image) {
    image.files[kShard2].assign(image.files[kShard2].size(), '\xFF');
  });
  table.add("a shard of another", {"model"},
            [](DirectoryImage& image) { image.files[kShard2] = image.files[kShard3]; });
  for (const char* shard : {kShard1, kShard2, kShard3})
    table.add(std::string("missing ") + shard, {shard, kIndex, "names it, for tensor '"},
              [=](DirectoryImage& image) { image.files.erase(shard); });
  const auto instead = [&](const char* what,
                           const std::function<void(const std::filesystem::path&)>& make) {
    table.add(std::string("a shard that is ") + what, {kShard2}, [=](DirectoryImage& image) {
      image.files.erase(kShard2);
      image.afterwards = [=](const std::filesystem::path& path) { make(path / kShard2); };
    });
  };
  instead("a directory",
          [](const std::filesystem::path& path) { std::filesystem::create_directory(path); });
  instead("a pipe", [](const std::filesystem::path& path) {
    KOHO_CHECK_EQ(::mkfifo(path.c_str(), 0600), 0);
  });
  instead("a link to nothing", [](const std::filesystem::path& path) {
    std::filesystem::create_symlink("nothing", path);
  });
  instead("a link to itself", [](const std::filesystem::path& path) {
    std::filesystem::create_symlink(kShard2, path);
  });
  instead("a link to a device", [](const std::filesystem::path& path) {
    std::filesystem::create_symlink("/dev/zero", path);
  });
  table.add("one shard twice under two names", {"model.embed_tokens.weight"},
            [](DirectoryImage& image) { image.files[kShard3] = image.files[kShard1]; });
  table.add("an empty directory", {"config.json"},
            [](DirectoryImage& image) { image.files.clear(); });
}

}  // namespace koho::testing
