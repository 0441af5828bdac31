// SPDX-License-Identifier: Apache-2.0
#include "app/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <set>
#include <sstream>
#include <system_error>
#include <unistd.h>

#include "base/child_process.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/text.h"

namespace koho::app {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kIndexBytesMax = 64 << 20;
constexpr std::size_t kAnswerBytesMax = 16 << 10;

bool is_word(std::string_view word, std::string_view further) {
  return !word.empty() && word.front() != '.' && word.front() != '-' &&
         std::ranges::all_of(word, [further](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  further.find(c) != std::string_view::npos;
         });
}

/// The first of these variables of the environment that is set and not empty.
std::optional<std::string> first_set(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  return std::nullopt;
}

fs::path home_expanded(const std::string& path) {
  const char* home = std::getenv("HOME");
  return path.starts_with("~/") && home != nullptr ? fs::path(home) / path.substr(2)
                                                   : fs::path(path);
}

/// Where huggingface_hub keeps what it fetched.
std::optional<fs::path> hub_cache() {
  if (const auto cache = first_set({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}))
    return home_expanded(*cache);
  if (const auto home = first_set({"HF_HOME"})) return home_expanded(*home) / "hub";
  if (const auto caches = first_set({"XDG_CACHE_HOME"}))
    return home_expanded(*caches) / "huggingface/hub";
  if (const auto home = first_set({"HOME"})) return fs::path(*home) / ".cache/huggingface/hub";
  return std::nullopt;
}

/// The files of weights that the snapshot's index names; without an index, those of a small model.
std::set<std::string> weight_files(const fs::path& snapshot) {
  const Result<std::string> text =
      read_file(snapshot / "model.safetensors.index.json", kIndexBytesMax);
  std::set<std::string> files;
  if (text.ok()) {
    const Result<json::Value> index = json::parse(*text);
    const json::Value* map = index.ok() ? index->find("weight_map") : nullptr;
    if (map != nullptr && map->object() != nullptr)
      for (const auto& [tensor, file] : *map->object())
        if (file.string() != nullptr) files.insert(*file.string());
  }
  if (files.empty()) files.insert("model.safetensors");
  return files;
}

std::optional<ErrorCode> code_of_name(std::string_view name) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::internal); ++code)
    if (error_code_info(static_cast<ErrorCode>(code)).name == name)
      return static_cast<ErrorCode>(code);
  return std::nullopt;
}

/// All that comes out of a pipe until its last writer has closed it.
std::string read_to_end(int descriptor) {
  std::string text;
  char piece[512];
  ssize_t count = 0;
  while (text.size() < kAnswerBytesMax && (count = read(descriptor, piece, sizeof piece)) != 0) {
    if (count > 0)
      text.append(piece, static_cast<std::size_t>(count));
    else if (errno != EINTR)
      break;
  }
  return text;
}

}  // namespace

std::string HubName::text() const {
  return revision == "main" ? repository : repository + "@" + revision;
}

std::string HubName::download_command() const {
  return "hf download " + repository + (revision == "main" ? "" : " --revision " + revision);
}

std::optional<HubName> parse_hub_name(std::string_view text) {
  HubName name;
  if (const std::size_t at = text.find('@'); at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    if (!is_word(name.revision, "-_./") || name.revision.find("..") != std::string::npos)
      return std::nullopt;
    text = text.substr(0, at);
  }
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos || !is_word(text.substr(0, slash), "-_.") ||
      !is_word(text.substr(slash + 1), "-_."))
    return std::nullopt;
  name.repository = text;
  return name;
}

std::optional<HubSnapshot> find_snapshot(const HubName& name) {
  const std::optional<fs::path> cache = hub_cache();
  if (!cache) return std::nullopt;
  std::string folder = "models--" + name.repository;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path repository = *cache / folder;
  const Result<std::string> commit = read_file(repository / "refs" / name.revision, 4096);
  const fs::path snapshot =
      repository / "snapshots" / (commit.ok() ? trimmed(*commit, " \n\r") : name.revision);
  std::error_code ignored;
  if (!fs::is_directory(snapshot, ignored)) return std::nullopt;
  HubSnapshot found{.directory = snapshot.string(), .missing = {}};
  std::set<std::string> needed = weight_files(snapshot);
  needed.insert("config.json");
  for (const std::string& file : needed)
    if (!fs::exists(snapshot / file, ignored)) found.missing.push_back(file);
  return found;
}

bool hub_is_offline() {
  const auto value = first_set({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"});
  if (!value) return false;
  const std::string word = lower_case(*value);
  return word == "1" || word == "on" || word == "yes" || word == "true";
}

Result<std::optional<std::string>> fetch_model(const HubName& name) {
  const auto command = first_set({"KOHO_FETCH"});
  if (!command) return std::optional<std::string>();
  std::vector<std::string> arguments;
  std::istringstream lines(*command);
  for (std::string line; std::getline(lines, line);) arguments.push_back(line);
  arguments.insert(arguments.end(), {name.repository, name.revision});
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return make_error(ErrorCode::resource_exhausted, "no pipe for {}", arguments.front());
  const Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  KOHO_TRY_ASSIGN(ChildProcess fetcher, ChildProcess::spawn({.program = arguments.front(),
                                                             .arguments = arguments,
                                                             .descriptors = {writing.get()}}));
  writing.reset();
  const std::string answer = read_to_end(reading.get());
  const std::string ending(fetcher.ended(-1).value_or("did not end"));
  const std::size_t blank = answer.find(' ');
  const std::string_view word = std::string_view(answer).substr(0, std::min(blank, answer.size()));
  const std::string rest(
      blank == std::string::npos ? "" : trimmed(std::string_view(answer).substr(blank), " \n"));
  if (word == "ok" && !rest.empty()) return std::optional<std::string>(rest);
  if (const std::optional<ErrorCode> code = code_of_name(word)) return Error{*code, rest};
  return make_error(ErrorCode::unavailable, "{} was not fetched: {} {}", name.text(),
                    arguments.front(), ending);
}

}  // namespace koho::app
