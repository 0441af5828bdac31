// SPDX-License-Identifier: Apache-2.0
// The index as events: weight_map is read without a tree, everything else is checked and passed
// over.
#include "checkpoint/index.h"

#include <algorithm>
#include <unordered_map>

#include "base/json.h"
#include "base/printable.h"

namespace koho {
namespace {

constexpr std::string_view kShardSuffix = ".safetensors";
constexpr std::size_t kNameBytesMax = 255;  // of a file name, as Linux has it

/// Fills the index from the events of its JSON. Everything but weight_map and metadata.total_size
/// is skipped.
class IndexEvents : public json::Events {
 public:
  Status begin_object() override {
    if (depth_ == 1 && place_ == Place::weight_map) place_ = Place::tensors;
    if (depth_ == 1 && place_ == Place::metadata) place_ = Place::metadata_members;
    ++depth_;
    return {};
  }
  Status end_object() override {
    --depth_;
    if (depth_ == 1) place_ = Place::top;
    return {};
  }
  Status begin_array() override {
    KOHO_TRY(other("an array"));
    ++depth_;
    return {};
  }
  Status end_array() override {
    --depth_;
    return {};
  }
  Status key(std::string name) override {
    if (depth_ == 1) {
      const bool map = name == "weight_map";
      if (map && has_weight_map_)
        return make_error(ErrorCode::corrupt_data, "weight_map appears twice");
      has_weight_map_ = has_weight_map_ || map;
      place_ = map ? Place::weight_map : name == "metadata" ? Place::metadata : Place::top;
    } else if (depth_ == 2) {
      key_ = std::move(name);
    }
    return {};
  }
  Status string(std::string value) override {
    if (depth_ != 2 || place_ != Place::tensors) return other("a string");
    KOHO_TRY_ASSIGN(const std::uint32_t file, file_index(std::move(value)));
    index_.entries.push_back({std::move(key_), file});
    return {};
  }
  Status integer(std::int64_t value) override {
    if (depth_ == 2 && place_ == Place::metadata_members && key_ == "total_size")
      index_.total_size = value;
    return other("an integer");
  }
  Status null() override { return other("null"); }
  Status boolean(bool) override { return other("a boolean"); }
  Status real(double) override { return other("a number"); }

  bool has_weight_map() const { return has_weight_map_; }
  CheckpointIndex& index() { return index_; }

 private:
  enum class Place : std::uint8_t { top, weight_map, tensors, metadata, metadata_members };

  /// A value that is neither a file name nor an object: fine where it is skipped.
  Status other(std::string_view found) const {
    if (depth_ == 0)
      return make_error(ErrorCode::corrupt_data, "the index is {}; expected an object", found);
    if (place_ == Place::weight_map)
      return make_error(ErrorCode::corrupt_data, "weight_map is {}; expected an object", found);
    if (place_ == Place::tensors)
      return make_error(ErrorCode::corrupt_data,
                        "weight_map has {} for tensor '{}'; expected a file name", found,
                        printable(key_));
    return {};
  }

  Result<std::uint32_t> file_index(std::string name) {
    const auto found = files_.find(name);
    if (found != files_.end()) return found->second;
    KOHO_TRY(check_shard_name(name).with_context(
        fmt::format("weight_map, tensor '{}'", printable(key_))));
    if (index_.files.size() == kCheckpointFilesMax)
      return make_error(ErrorCode::corrupt_data, "weight_map names more than {} files",
                        kCheckpointFilesMax);
    const auto index = static_cast<std::uint32_t>(index_.files.size());
    index_.files.push_back(name);
    files_.emplace(std::move(name), index);
    return index;
  }

  CheckpointIndex index_;
  std::unordered_map<std::string, std::uint32_t> files_;
  Place place_ = Place::top;
  int depth_ = 0;
  bool has_weight_map_ = false;
  std::string key_;
};

/// Sorts the files by name and renumbers the entries.
void sort_files(CheckpointIndex& index) {
  std::vector<std::uint32_t> order(index.files.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return index.files[a] < index.files[b]; });
  std::vector<std::uint32_t> renumbered(order.size());
  std::vector<std::string> files;
  files.reserve(order.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    renumbered[order[i]] = i;
    files.push_back(std::move(index.files[order[i]]));
  }
  index.files = std::move(files);
  for (IndexEntry& entry : index.entries) entry.file = renumbered[entry.file];
}

Status sort_entries(CheckpointIndex& index) {
  const auto by_tensor = [](const IndexEntry& a, const IndexEntry& b) {
    return a.tensor < b.tensor;
  };
  std::sort(index.entries.begin(), index.entries.end(), by_tensor);
  const auto twice = std::adjacent_find(
      index.entries.begin(), index.entries.end(),
      [](const IndexEntry& a, const IndexEntry& b) { return a.tensor == b.tensor; });
  if (twice == index.entries.end()) return {};
  return make_error(ErrorCode::corrupt_data, "weight_map has the tensor '{}' twice",
                    printable(twice->tensor));
}

}  // namespace

Status check_shard_name(std::string_view name) {
  const char* wrong = nullptr;
  if (name.empty())
    wrong = "is empty";
  else if (name.size() > kNameBytesMax)
    wrong = "is longer than 255 bytes";
  else if (name.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos)
    wrong = "leaves the checkpoint's directory: only plain names are followed";
  else if (name.front() == '.')
    wrong = "starts with a dot";
  else if (name.size() <= kShardSuffix.size() ||
           name.substr(name.size() - kShardSuffix.size()) != kShardSuffix)
    wrong = "does not end in .safetensors";
  if (wrong == nullptr) return {};
  return make_error(ErrorCode::corrupt_data, "the file name '{}' {}", printable(name), wrong);
}

Result<CheckpointIndex> parse_checkpoint_index(std::string_view text) {
  IndexEvents events;
  KOHO_TRY(json::parse_events(text, {.depth_max = 16, .string_bytes_max = 1U << 16U}, events));
  if (!events.has_weight_map())
    return make_error(ErrorCode::corrupt_data, "the index has no weight_map");
  CheckpointIndex index = std::move(events.index());
  if (index.entries.empty()) return make_error(ErrorCode::corrupt_data, "weight_map is empty");
  sort_files(index);
  KOHO_TRY(sort_entries(index));
  return index;
}

Result<std::vector<TensorLocation>> locate_tensors(const CheckpointIndex& index,
                                                   std::span<const SafetensorsHeader> headers) {
  KOHO_CHECK_EQ(headers.size(), index.files.size());
  std::vector<TensorLocation> locations(index.entries.size());
  std::vector<bool> found(index.entries.size(), false);
  for (std::uint32_t file = 0; file < headers.size(); ++file) {
    const std::vector<SafetensorsEntry>& entries = headers[file].entries;
    for (std::uint32_t i = 0; i < entries.size(); ++i) {
      const std::string& name = entries[i].name;
      const auto at =
          std::lower_bound(index.entries.begin(), index.entries.end(), name,
                           [](const IndexEntry& a, const std::string& b) { return a.tensor < b; });
      if (at == index.entries.end() || at->tensor != name)
        return make_error(ErrorCode::corrupt_data, "tensor '{}' stands in {} but not in the index",
                          printable(name), index.files[file]);
      if (at->file != file)
        return make_error(ErrorCode::corrupt_data,
                          "tensor '{}' stands in {}, but the index says that it stands in {}",
                          printable(name), index.files[file], index.files[at->file]);
      const auto position = static_cast<std::size_t>(at - index.entries.begin());
      locations[position] = {file, i};
      found[position] = true;
    }
  }
  const auto lost = std::find(found.begin(), found.end(), false);
  if (lost == found.end()) return locations;
  const IndexEntry& entry = index.entries[static_cast<std::size_t>(lost - found.begin())];
  return make_error(ErrorCode::corrupt_data,
                    "tensor '{}' is not in {}, where the index says it stands",
                    printable(entry.tensor), index.files[entry.file]);
}

CheckpointIndex index_of_single_file(std::string file, const SafetensorsHeader& header) {
  CheckpointIndex index;
  index.files.push_back(std::move(file));
  for (const SafetensorsEntry& entry : header.entries) index.entries.push_back({entry.name, 0});
  std::sort(index.entries.begin(), index.entries.end(),
            [](const IndexEntry& a, const IndexEntry& b) { return a.tensor < b.tensor; });
  return index;
}

}  // namespace koho
