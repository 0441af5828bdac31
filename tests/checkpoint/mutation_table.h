// SPDX-License-Identifier: Apache-2.0
// What the files of the mutation table share: a table that collects broken directories, and the
// good tensors that they begin with. One file for each kind of damage: config_mutations.cpp,
// file_mutations.cpp, header_mutations.cpp, tensor_mutations.cpp. Used by all_mutations() only.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/checkpoint/mutations.h"
#include "tests/support/test_checkpoint.h"

namespace koho::testing {

/// What the error must say.
using Words = std::vector<std::string>;

/// The tensors of all shards; for mutations that write them anew.
using Tensors = std::vector<TensorToWrite>;

Tensors good_tensors();
/// Writes the three shards and their index.
void put_tensors(DirectoryImage& image, const Tensors& tensors);
TensorToWrite& find(Tensors& tensors, const std::string& name);

/// Collects mutations.
struct Table {
  std::vector<Mutation> rows;

  void add(std::string name, Words words, std::function<void(DirectoryImage&)> apply) {
    rows.push_back({std::move(name), std::move(words), std::move(apply)});
  }
  /// The whole file becomes `text`.
  void file(const std::string& file,
            const std::string& what,
            const std::string& text,
            Words words) {
    words.push_back(file);
    add(file + ": " + what, std::move(words),
        [=](DirectoryImage& image) { image.files[file] = text; });
  }
  void text(const std::string& file, const std::string& from, const std::string& to, Words words) {
    words.push_back(file);
    add(file + ": " + from + " -> " + to, std::move(words),
        [=](DirectoryImage& image) { image.replace(file, from, to); });
  }
  void header(const std::string& from, const std::string& to, Words words) {
    words.push_back(kShard1);
    add("header: " + from + " -> " + to, std::move(words),
        [=](DirectoryImage& image) { image.replace_in_header(kShard1, from, to); });
  }
  void tensors(const std::string& name, Words words, std::function<void(Tensors&)> change) {
    add("tensors: " + name, std::move(words), [=](DirectoryImage& image) {
      Tensors all = good_tensors();
      change(all);
      put_tensors(image, all);
    });
  }
};

void add_config_mutations(Table& table);
void add_index_mutations(Table& table);
void add_header_mutations(Table& table);
void add_shard_mutations(Table& table);
void add_tensor_mutations(Table& table);
/// Texts that are no JSON object, for any file that must be one.
void add_bad_json(Table& table, const std::string& file);

}  // namespace koho::testing
