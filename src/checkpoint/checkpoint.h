// SPDX-License-Identifier: Apache-2.0
// A checkpoint directory: its safetensors files mapped read-only for the object's lifetime, every
// header validated, every tensor found by its name. Knows names, dtypes and shapes, but no model.
// Follows model.safetensors.index.json, else the single file model.safetensors; opens only files
// that one of them names. Plain symbolic links to regular files are followed, wherever they point:
// the Hugging Face cache lays a snapshot out so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"
#include "tensor/tensor.h"
#include "tensor/tensor_view.h"

namespace koho {

/// One tensor of a checkpoint. `bytes` lie in the mapping of file `file`.
struct CheckpointTensor {
  std::string_view name;
  std::uint32_t file = 0;
  const StoredDType* stored = nullptr;
  Shape shape;
  std::span<const std::byte> bytes;
};

/// "F8_E4M3 [1024, 5120]".
std::string describe(const CheckpointTensor& tensor);

struct CheckpointStats {
  std::int64_t num_files = 0;
  std::int64_t num_tensors = 0;
  std::uint64_t mapped_bytes = 0;  // of the files
  std::uint64_t tensor_bytes = 0;
  std::int64_t num_copied = 0;  // tensors that could not be used in place
  std::uint64_t copied_bytes = 0;
};

/// Movable, not copyable. Views and names live as long as the object. Threads: const methods from
/// any number of threads; the others from one.
class Checkpoint {
 public:
  /// Opens and validates the files of `directory`. A file must not change while it is mapped.
  /// Errors: not_found; io_error; corrupt_data; unsupported. The message names the file.
  static Result<Checkpoint> open(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  std::span<const CheckpointTensor> tensors() const { return tensors_; }  // by name
  const CheckpointTensor* find(std::string_view name) const;              // or nullptr
  std::span<const std::string> files() const { return files_; }
  const std::string& file_name(const CheckpointTensor& tensor) const { return files_[tensor.file]; }

  /// The tensor as a packed view: into the mapping, or into an aligned copy (kept and counted)
  /// where the file has it misaligned for its dtype. Errors: unsupported: a dtype koho does not
  /// have; resource_exhausted.
  Result<ConstTensorView> view(const CheckpointTensor& tensor);

  /// Takes over a converted copy of a tensor and counts it.
  ConstTensorView keep(Tensor copy);

  /// Whether all elements of a packed view lie in one of the mappings.
  bool is_mapped(const ConstTensorView& view) const;

  const CheckpointStats& stats() const { return stats_; }
  /// What is odd but harmless: files that the index does not name, a wrong total_size.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  Checkpoint() = default;

  std::filesystem::path directory_;
  std::vector<std::string> files_;
  std::vector<MappedFile> mappings_;        // of files_
  std::vector<SafetensorsHeader> headers_;  // of files_
  std::vector<CheckpointTensor> tensors_;
  std::vector<Tensor> copies_;
  CheckpointStats stats_;
  std::vector<std::string> warnings_;
};

}  // namespace koho
