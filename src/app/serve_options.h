// SPDX-License-Identifier: Apache-2.0
// Every choice that `koho serve` has, in one table: flags with their aliases, environment names,
// the config file, help and documentation all come from it. vLLM's names first.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/model.h"
#include "base/error.h"
#include "runtime/runtime.h"
#include "server/service_manager.h"
#include "server/settings.h"

namespace koho::app {

struct ServeOptions {
  std::string model;
  std::vector<std::string> names;
  std::string device = "auto";
  RuntimeOptions runtime;  // but for its device's kind: what `device` means is asked at the start
  bool random_weights = false;
  // As other engines say --experts and --attention; carried over into `runtime`.
  std::optional<std::int64_t> expert_parallel_size;
  std::optional<std::int64_t> data_parallel_size;
  server::ServerSettings server;
  api::PreserveThinking preserve_thinking = api::PreserveThinking::automatic;
  bool enable_thinking = true;
  bool strict_fields = false;
  bool any_name = false;
  std::int64_t shutdown_timeout_s = 30;
  std::string log_level = "info";
  std::string log_format = "auto";
  std::vector<std::string> given_keys;     // by the command line and the environment
  std::vector<std::string> api_key_files;  // further ones, read again at SIGHUP
  server::ServiceManager::Settings service_manager;
  std::optional<std::int64_t> seed;
  std::vector<std::string> warnings;  // of flags without effect
  bool print_config = false;
  bool check = false;
};

/// One choice.
struct ServeOption {
  enum class Takes : std::uint8_t { value, list, nothing };

  std::string_view group;
  std::string_view flags;  // "--max-model-len,--context-length"; the first one names it
  std::string_view value;  // what stands behind it in the help; "" for a flag
  std::string_view help;
  Takes takes = Takes::value;
  /// Sets it; of a list, adds to it. Errors: invalid_argument, without the flag's name.
  Status (*set)(ServeOptions& options, const std::string& value) = nullptr;
  /// What is set now, as one would write it.
  std::string (*shown)(const ServeOptions& options) = nullptr;

  /// "--max-model-len"
  std::string_view name() const;
  /// "KOHO_MAX_MODEL_LEN"
  std::string environment_name() const;
};

const std::vector<ServeOption>& serve_option_table();

/// Reads the environment, then the config file, then `arguments` (what stands behind
/// `koho serve`): the later wins. Underscores in names count as hyphens. A refusal names the
/// nearest flag there is. Errors: invalid_argument; not_found, io_error (the config file).
Result<ServeOptions> read_serve_options(const std::vector<std::string>& arguments);

/// All keys there are now: those given, and those in the files. Errors: not_found, io_error (a
/// file; `again`: anything but a regular one, which cannot be read twice); invalid_argument (a file
/// without a key).
Result<std::vector<std::string>> read_api_keys(const ServeOptions& options, bool again);

/// The table as help text, and as the table of docs/server.md.
std::string serve_help();
std::string serve_options_markdown();
/// What is set, one "name: value" a line: a config file that gives the same again.
std::string print_serve_config(const ServeOptions& options);

}  // namespace koho::app
