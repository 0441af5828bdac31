// SPDX-License-Identifier: Apache-2.0
// The checkpoint's index: arbitrary text, and an index with headers that agree with it except for
// one change. Every file name stays in the directory, every tensor is found exactly once, every
// change is detected. Input: two bytes that choose the change, then the index's JSON.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "checkpoint/index.h"

namespace koho {
namespace {

void check_index(const CheckpointIndex& index) {
  KOHO_CHECK(!index.files.empty() && !index.entries.empty());
  for (std::size_t i = 0; i < index.files.size(); ++i) {
    const std::string& name = index.files[i];
    KOHO_CHECK(name.size() > 12 && name.size() <= 255 && name[0] != '.');
    KOHO_CHECK(name.find('/') == std::string::npos && name.find('\\') == std::string::npos &&
               name.find('\0') == std::string::npos);
    KOHO_CHECK_EQ(name.substr(name.size() - 12), std::string(".safetensors"));
    if (i > 0) KOHO_CHECK(index.files[i - 1] < name);
  }
  std::vector<bool> used(index.files.size(), false);
  for (std::size_t i = 0; i < index.entries.size(); ++i) {
    if (i > 0) KOHO_CHECK(index.entries[i - 1].tensor < index.entries[i].tensor);
    used.at(index.entries[i].file) = true;
  }
  KOHO_CHECK(std::find(used.begin(), used.end(), false) == used.end());
}

std::vector<SafetensorsHeader> headers_of(const CheckpointIndex& index) {
  std::vector<SafetensorsHeader> headers(index.files.size());
  // From the back, so that positions in a header differ from those in the index.
  for (std::size_t i = index.entries.size(); i-- > 0;) {
    SafetensorsEntry entry;
    entry.name = index.entries[i].tensor;
    headers[index.entries[i].file].entries.push_back(std::move(entry));
  }
  return headers;
}

void check_locations(const CheckpointIndex& index, const std::vector<SafetensorsHeader>& headers) {
  const Result<std::vector<TensorLocation>> found = locate_tensors(index, headers);
  KOHO_CHECK(found.ok());
  KOHO_CHECK_EQ(found->size(), index.entries.size());
  for (std::size_t i = 0; i < found->size(); ++i) {
    KOHO_CHECK_EQ((*found)[i].file, index.entries[i].file);
    KOHO_CHECK_EQ(headers[(*found)[i].file].entries.at((*found)[i].entry).name,
                  index.entries[i].tensor);
  }
}

/// One change after which index and headers disagree.
void change(std::vector<SafetensorsHeader>& headers, unsigned kind, std::size_t place) {
  const std::size_t file = place % headers.size();
  std::vector<SafetensorsEntry>& entries = headers[file].entries;
  const std::size_t at = place % entries.size();
  switch (kind % 3) {
    case 0:
      entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(at));
      return;  // lost
    case 1:
      entries[at].name += "'";
      return;   // renamed, unless taken
    default: {  // moved, or doubled in its file
      SafetensorsEntry entry = entries[at];
      if (headers.size() > 1) entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(at));
      headers[(file + 1) % headers.size()].entries.push_back(std::move(entry));
    }
  }
}

}  // namespace
}  // namespace koho

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace koho;
  if (size < 2) return 0;
  const Result<CheckpointIndex> index =
      parse_checkpoint_index(std::string_view(reinterpret_cast<const char*>(data) + 2, size - 2));
  if (!index.ok()) {
    KOHO_CHECK(!index.error().message.empty());
    return 0;
  }
  check_index(*index);
  std::vector<SafetensorsHeader> headers = headers_of(*index);
  check_locations(*index, headers);
  change(headers, data[0], data[1]);
  // A tensor that appears twice in one file is the header's error (safetensors_header_fuzz).
  if (data[0] % 3 == 2 && headers.size() == 1) return 0;
  const Result<std::vector<TensorLocation>> found = locate_tensors(*index, headers);
  KOHO_CHECK(!found.ok());
  return 0;
}
