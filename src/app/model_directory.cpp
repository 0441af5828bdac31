// SPDX-License-Identifier: Apache-2.0
#include "app/model_directory.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "app/hub_cache.h"
#include "app/nearest_word.h"
#include "base/text.h"

namespace koho::app {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOrganisation = "zai-org/";
/// Its models. A user may leave it out, and write small letters.
constexpr std::string_view kModels[] = {
    "GLM-4.5",          "GLM-4.5-FP8", "GLM-4.5-Air", "GLM-4.5-Air-FP8", "GLM-4.5-Base",
    "GLM-4.5-Air-Base", "GLM-4.6",     "GLM-4.6-FP8", "GLM-4.7",         "GLM-4.7-FP8"};

constexpr std::string_view kReads =
    "koho reads a model directory of Hugging Face: config.json, tokenizer.json, *.safetensors";

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::ranges::any_of(ends, [name](std::string_view end) { return name.ends_with(end); });
}

Error not_gguf(const std::string& given) {
  return make_error(
      ErrorCode::unsupported,
      "{} is GGUF, which koho does not read: {}. The FP8 weights are at Hugging Face: hf download "
      "zai-org/GLM-4.7-FP8",
      given, kReads);
}

Error not_pytorch(const std::string& given) {
  return make_error(ErrorCode::unsupported,
                    "{} holds PyTorch pickles, which koho does not read: {}. transformers rewrites "
                    "them: model.save_pretrained(DIR, safe_serialization=True)",
                    given, kReads);
}

/// A whole snapshot in Hugging Face's cache; or what the fetcher brings; or else the command that
/// brings it. `whole`: with the weights.
Result<std::string> hub_model(const HubName& name, bool whole) {
  std::optional<HubSnapshot> snapshot = find_snapshot(name);
  if (snapshot && (snapshot->missing.empty() || !whole)) return std::move(snapshot->directory);
  if (!hub_is_offline()) {
    KOHO_TRY_ASSIGN(std::optional<std::string> fetched, fetch_model(name));
    if (fetched) return *std::move(fetched);
  }
  const std::string found =
      snapshot
          ? fmt::format("is in Hugging Face's cache, but {} of its files are missing, first {}",
                        snapshot->missing.size(), snapshot->missing.front())
          : "is neither a directory here nor in Hugging Face's cache";
  const std::string_view why = hub_is_offline()
                                   ? "HF_HUB_OFFLINE is set, so nothing is downloaded"
                                   : "this program downloads nothing (pip's koho does)";
  return make_error(ErrorCode::not_found,
                    "{} {}, and {}. Fetch it into the cache with\n    pip install -U "
                    "huggingface_hub && {}\nand start koho as now{}",
                    name.text(), found, why, name.download_command(),
                    lower_case(name.repository).find("glm") == std::string::npos
                        ? ". koho runs GLM-4.5, 4.6 and 4.7 (glm4_moe) and no other model"
                        : "");
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

std::optional<HubName> hub_name_of(const std::string& given) {
  std::error_code ignored;
  const fs::path parent = fs::path(given).parent_path();
  if (!parent.empty() && fs::is_directory(parent, ignored)) return std::nullopt;
  const std::string low = lower_case(given);
  const std::size_t at = low.starts_with(kOrganisation) ? kOrganisation.size() : 0;
  if (at == 0 && !parent.empty()) return parse_hub_name(given);
  if (!low.substr(at).starts_with("glm-")) return std::nullopt;
  std::string name = given.substr(at);
  for (const std::string_view known : kModels)
    if (low.substr(at, low.find('@') - at) == lower_case(known))
      name.replace(0, known.size(), known);
  return parse_hub_name(fmt::format("{}{}", kOrganisation, name));
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
  if (const std::optional<HubName> name = hub_name_of(given)) return hub_model(*name, whole);
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
