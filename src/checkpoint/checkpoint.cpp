// SPDX-License-Identifier: Apache-2.0
// Opens the index or the single file, maps each shard and merges their headers into one table of
// names.
#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <system_error>

#include "base/printable.h"

namespace koho {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;  // an unreadable path is reported when it is opened
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

Result<SafetensorsHeader> read_header(const MappedFile& file) {
  Result<SafetensorsHeader> header = parse_safetensors_header(file.bytes(), file.bytes().size());
  if (!header.ok()) return std::move(header).error().with_context(file.path().string());
  return header;
}

Result<CheckpointIndex> read_index(const std::filesystem::path& path) {
  KOHO_TRY_ASSIGN(const std::string text, read_file(path, kIndexBytesMax));
  Result<CheckpointIndex> index = parse_checkpoint_index(text);
  if (!index.ok()) return std::move(index).error().with_context(path.string());
  return index;
}

/// Opens a file of the checkpoint. If it is missing, the error says which index entry names it.
Result<MappedFile> open_shard(const std::filesystem::path& directory,
                              const std::string& name,
                              const CheckpointIndex& index) {
  Result<MappedFile> file = MappedFile::open(directory / name);
  if (file.ok() || file.error().code != ErrorCode::not_found) return file;
  const auto at_file = [&](const IndexEntry& entry) { return index.files[entry.file] == name; };
  const auto first = std::find_if(index.entries.begin(), index.entries.end(), at_file);
  if (first == index.entries.end()) return file;
  return make_error(ErrorCode::not_found, "{}; {} names it, for tensor '{}' and {} more",
                    file.error().message, kIndexName, printable(first->tensor),
                    std::count_if(first + 1, index.entries.end(), at_file));
}

/// Safetensors files of the directory that `files` does not have.
Result<std::vector<std::string>> unnamed_files(const std::filesystem::path& directory,
                                               std::span<const std::string> files) {
  KOHO_TRY_ASSIGN(std::vector<std::string> names, file_names(directory));
  std::erase_if(names, [files](const std::string& name) {
    return !name.ends_with(".safetensors") || std::binary_search(files.begin(), files.end(), name);
  });
  return names;
}

}  // namespace

std::string describe(const CheckpointTensor& tensor) {
  return std::string(tensor.stored->name) + " " + to_string(tensor.shape);
}

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& directory) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  const bool has_index = is_there(directory / kIndexName);
  if (!has_index && !is_there(directory / kSingleName))
    return make_error(ErrorCode::not_found,
                      "{} holds neither {} nor {}: is it a model's directory?", directory.string(),
                      kIndexName, kSingleName);
  CheckpointIndex index;
  if (has_index) {
    KOHO_TRY_ASSIGN(index, read_index(directory / kIndexName));
  } else {
    index.files.emplace_back(kSingleName);
  }
  for (const std::string& name : index.files) {
    KOHO_TRY_ASSIGN(MappedFile file, open_shard(directory, name, index));
    KOHO_TRY_ASSIGN(SafetensorsHeader header, read_header(file));
    checkpoint.stats_.mapped_bytes += file.bytes().size();
    checkpoint.mappings_.push_back(std::move(file));
    checkpoint.headers_.push_back(std::move(header));
  }
  if (!has_index) index = index_of_single_file(index.files[0], checkpoint.headers_[0]);

  Result<std::vector<TensorLocation>> located = locate_tensors(index, checkpoint.headers_);
  if (!located.ok()) return std::move(located).error().with_context(directory.string());
  checkpoint.tensors_.reserve(located->size());
  for (const TensorLocation& at : *located) {
    const SafetensorsHeader& header = checkpoint.headers_[at.file];
    const SafetensorsEntry& entry = header.entries[at.entry];
    const std::span<const std::byte> bytes = checkpoint.mappings_[at.file].bytes().subspan(
        header.data_offset + entry.begin, entry.bytes());
    checkpoint.tensors_.push_back({entry.name, at.file, entry.stored, entry.shape, bytes});
    checkpoint.stats_.tensor_bytes += entry.bytes();
  }
  checkpoint.files_ = std::move(index.files);
  checkpoint.stats_.num_files = static_cast<std::int64_t>(checkpoint.files_.size());
  checkpoint.stats_.num_tensors = static_cast<std::int64_t>(checkpoint.tensors_.size());
  KOHO_TRY_ASSIGN(const std::vector<std::string> unnamed,
                  unnamed_files(directory, checkpoint.files_));
  for (const std::string& name : unnamed)
    checkpoint.warnings_.push_back(
        fmt::format("{} is not used: {} does not name it", printable(name),
                    has_index ? kIndexName : "a single-file checkpoint"));
  if (index.total_size &&
      static_cast<std::uint64_t>(*index.total_size) != checkpoint.stats_.tensor_bytes)
    checkpoint.warnings_.push_back(
        fmt::format("{}: metadata.total_size is {}, the tensors have {} bytes", kIndexName,
                    *index.total_size, checkpoint.stats_.tensor_bytes));
  return checkpoint;
}

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const auto at =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const CheckpointTensor& a, std::string_view b) { return a.name < b; });
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

Result<ConstTensorView> Checkpoint::view(const CheckpointTensor& tensor) {
  if (!tensor.stored->dtype)
    return make_error(
        ErrorCode::unsupported, "tensor '{}' in {} is {}: koho does not compute with {}",
        printable(tensor.name), file_name(tensor), describe(tensor), tensor.stored->name);
  const DType dtype = *tensor.stored->dtype;
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.bytes.data());
  if (address % static_cast<std::uintptr_t>(dtype_bytes(dtype)) == 0)
    return ConstTensorView(tensor.bytes.data(), dtype, tensor.shape);
  KOHO_TRY_ASSIGN(Tensor copy, Tensor::host(dtype, tensor.shape));
  std::memcpy(copy.view().data, tensor.bytes.data(), tensor.bytes.size());
  return keep(std::move(copy));
}

ConstTensorView Checkpoint::keep(Tensor copy) {
  const ConstTensorView view = std::as_const(copy).view();
  ++stats_.num_copied;
  stats_.copied_bytes += static_cast<std::uint64_t>(view.bytes());
  copies_.push_back(std::move(copy));
  return view;
}

bool Checkpoint::is_mapped(const ConstTensorView& view) const {
  return std::any_of(mappings_.begin(), mappings_.end(), [&](const MappedFile& file) {
    const std::span<const std::byte> bytes = file.bytes();
    return view.data >= bytes.data() && view.data + view.bytes() <= bytes.data() + bytes.size();
  });
}

}  // namespace koho
