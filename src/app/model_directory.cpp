// SPDX-License-Identifier: Apache-2.0
#include "app/model_directory.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "app/nearest_word.h"
#include "base/mapped_file.h"
#include "base/text.h"

namespace koho::app {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kReads =
    "koho reads a model directory of Hugging Face: config.json, tokenizer.json, *.safetensors";

/// Where the hub's clients keep what they fetched.
std::optional<fs::path> hub_cache() {
  if (const char* cache = std::getenv("HF_HUB_CACHE")) return fs::path(cache);
  if (const char* home = std::getenv("HF_HOME")) return fs::path(home) / "hub";
  if (const char* home = std::getenv("HOME"))
    return fs::path(home) / ".cache" / "huggingface" / "hub";
  return std::nullopt;
}

/// The snapshot of `name` in the hub's cache that its ref main names.
std::optional<std::string> cached_snapshot(const std::string& name) {
  const std::optional<fs::path> cache = hub_cache();
  if (!cache) return std::nullopt;
  std::string folder = "models--" + name;
  folder.replace(folder.find('/'), 1, "--");
  const Result<std::string> revision = read_file(*cache / folder / "refs" / "main", 4096);
  if (!revision.ok()) return std::nullopt;
  const fs::path snapshot = *cache / folder / "snapshots" / trimmed(*revision, " \n\r");
  std::error_code ignored;
  if (!fs::exists(snapshot / "config.json", ignored)) return std::nullopt;
  return snapshot.string();
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::ranges::any_of(ends, [name](std::string_view end) { return name.ends_with(end); });
}

Error not_gguf(const std::string& given) {
  return make_error(
      ErrorCode::unsupported,
      "{} is GGUF, which koho does not read: {}. The FP8 weights are at Hugging Face: hf download "
      "zai-org/GLM-4.7-FP8 --local-dir GLM-4.7-FP8",
      given, kReads);
}

Error not_pytorch(const std::string& given) {
  return make_error(ErrorCode::unsupported,
                    "{} holds PyTorch pickles, which koho does not read: {}. transformers rewrites "
                    "them: model.save_pretrained(DIR, safe_serialization=True)",
                    given, kReads);
}

Error to_fetch(const std::string& name) {
  const std::string local = name.substr(name.find('/') + 1);
  return make_error(
      ErrorCode::not_found,
      "{} is neither a directory here nor in Hugging Face's cache, and koho downloads "
      "nothing. Fetch it with\n    pip install -U huggingface_hub && hf download {} "
      "--local-dir {}\nand give {} as the model",
      name, name, local, local);
}

Status check_file(const std::string& given) {
  const std::string name = lower_case(given);
  if (name.ends_with(".gguf")) return not_gguf(given);
  if (ends_with_any(name, {".bin", ".pt", ".pth", ".ckpt"})) return not_pytorch(given);
  const fs::path parent = fs::path(given).parent_path();
  return make_error(ErrorCode::invalid_argument, "{} is a file; give the model's directory: {}",
                    given, parent.empty() ? "." : parent.string());
}

Status check_directory(const std::string& given) {
  bool config = false;
  bool safetensors = false;
  bool gguf = false;
  bool pytorch = false;
  std::error_code error;
  for (fs::directory_iterator file(given, error), end; !error && file != end;
       file.increment(error)) {
    const std::string name = lower_case(file->path().filename().string());
    config = config || name == "config.json";
    safetensors = safetensors || ends_with_any(name, {".safetensors", ".safetensors.index.json"});
    gguf = gguf || name.ends_with(".gguf");
    pytorch = pytorch || ends_with_any(name, {".bin", ".pt", ".pth"});
  }
  if (error || safetensors) return {};  // the readers of the files know more
  if (gguf) return not_gguf(given);
  if (pytorch) return not_pytorch(given);
  if (!config) return make_error(ErrorCode::not_found, "{} has no config.json: {}", given, kReads);
  return {};
}

/// What there is where `given` was looked for: the nearest name in its parent, if one is near.
std::string near_directory(const std::string& given) {
  const fs::path path = fs::path(given).lexically_normal();
  std::vector<std::string> names;
  std::error_code error;
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (fs::directory_iterator file(parent, error), end; !error && file != end;
       file.increment(error))
    if (file->is_directory(error)) names.push_back(file->path().filename().string());
  const std::string near = nearest_word(path.filename().string(), names);
  return near.empty() ? ""
                      : fmt::format("; did you mean {}?", (path.parent_path() / near).string());
}

}  // namespace

bool is_hub_name(std::string_view text) {
  const auto is_name = [](std::string_view name) {
    return !name.empty() && name.front() != '.' && name.front() != '-' && name.front() != '~' &&
           std::ranges::all_of(name, [](char c) {
             return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '-' || c == '_' || c == '.';
           });
  };
  const std::size_t slash = text.find('/');
  return slash != std::string_view::npos && is_name(text.substr(0, slash)) &&
         is_name(text.substr(slash + 1));
}

Result<std::string> find_model(const std::string& given, bool whole) {
  std::error_code ignored;
  if (fs::is_directory(given, ignored)) {
    if (whole) KOHO_TRY(check_directory(given));
    return given;
  }
  if (fs::exists(given, ignored)) {
    KOHO_TRY(check_file(given));
  }
  if (lower_case(given).find("gguf") != std::string::npos) return not_gguf(given);
  const fs::path parent = fs::path(given).parent_path();
  if (is_hub_name(given) && !fs::is_directory(parent, ignored)) {
    if (std::optional<std::string> snapshot = cached_snapshot(given)) return *std::move(snapshot);
    return to_fetch(given);
  }
  if (lower_case(given).starts_with("glm-") && given.find('/') == std::string::npos)
    return to_fetch("zai-org/" + given);
  return make_error(ErrorCode::not_found, "{} is no directory{}", given, near_directory(given));
}

Status take_model_word(std::string& model, std::initializer_list<std::string*> words) {
  const std::vector<std::string*> places(words);
  if (!model.empty()) {
    if (!places.back()->empty())
      return make_error(ErrorCode::invalid_argument,
                        "'{}' is one word too many: -m has named the model", *places.back());
    for (std::size_t i = places.size(); i-- > 1;) *places[i] = std::move(*places[i - 1]);
    places.front()->clear();
    return {};
  }
  model = *places.front();
  return {};
}

}  // namespace koho::app
