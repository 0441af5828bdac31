// SPDX-License-Identifier: Apache-2.0
// model.safetensors.index.json: which file of the directory holds which tensor, and the check that
// the files' headers say the same. Refuses file names that could leave the directory. Opens
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/safetensors.h"

namespace koho {

inline constexpr std::size_t kIndexBytesMax = 100'000'000;
inline constexpr std::size_t kCheckpointFilesMax = 10'000;

/// One line of the index: the tensor and the index of its file in `CheckpointIndex::files`.
struct IndexEntry {
  std::string tensor;
  std::uint32_t file = 0;
};

struct CheckpointIndex {
  std::vector<std::string> files;          // each once, by name
  std::vector<IndexEntry> entries;         // by tensor
  std::optional<std::int64_t> total_size;  // metadata.total_size, if it is an integer
};

/// Where a tensor stands: entry `entry` of the header of file `file`.
struct TensorLocation {
  std::uint32_t file = 0;
  std::uint32_t entry = 0;
};

/// A plain name of a .safetensors file in the checkpoint's directory: no separator, no leading dot,
/// at most 255 bytes. Errors: corrupt_data.
Status check_shard_name(std::string_view name);

/// Reads the index. Errors: corrupt_data: not JSON, no weight_map, a tensor twice, a file name that
/// check_shard_name refuses.
Result<CheckpointIndex> parse_checkpoint_index(std::string_view text);

/// Holds the index against the headers, one for each of `index.files`: every tensor of the index
/// stands in the file it names, every tensor of a file stands in the index under that file. Returns
/// the locations in the order of `index.entries`. Errors: corrupt_data, naming tensor and file.
Result<std::vector<TensorLocation>> locate_tensors(const CheckpointIndex& index,
                                                   std::span<const SafetensorsHeader> headers);

/// The index of a checkpoint in the single file `file`.
CheckpointIndex index_of_single_file(std::string file, const SafetensorsHeader& header);

}  // namespace koho
