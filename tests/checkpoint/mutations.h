// SPDX-License-Identifier: Apache-2.0
// Ways in which a model directory can be broken, as a table: what is done to a good directory, and
// the words an error about it must hold.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/safetensors_writer.h"

namespace koho::testing {

/// The files of a model directory before they are written.
struct DirectoryImage {
  std::map<std::string, std::string> files;
  /// Done after the files are written: links, directories, pipes.
  std::function<void(const std::filesystem::path&)> afterwards;

  void write(const std::filesystem::path& directory) const;

  /// Replaces the first `from` of a file; aborts the test if there is none.
  void replace(const std::string& file, const std::string& from, const std::string& to);
  /// The same in the header of a safetensors file, whose length is set anew.
  void replace_in_header(const std::string& file, const std::string& from, const std::string& to);
  /// Writes the length of a safetensors file's header.
  void set_header_length(const std::string& file, std::uint64_t length);
};

inline constexpr const char* kShard1 = "model-00001-of-00003.safetensors";
inline constexpr const char* kShard2 = "model-00002-of-00003.safetensors";
inline constexpr const char* kShard3 = "model-00003-of-00003.safetensors";
inline constexpr const char* kIndex = "model.safetensors.index.json";

/// A good directory: FP8 per channel, an MTP layer, three shards.
DirectoryImage good_directory();

struct Mutation {
  std::string name;
  std::vector<std::string> words;  // each stands in the error
  std::function<void(DirectoryImage&)> apply;
};

std::vector<Mutation> all_mutations();

}  // namespace koho::testing
