// SPDX-License-Identifier: Apache-2.0
// All options of `koho serve` in one table: flags with their aliases, environment names, config
// file, help and documentation come from it. The first name of an option is vLLM's where vLLM has
// it.
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
  std::string model;      // as it was given
  std::string directory;  // where it is
  std::vector<std::string> names;
  std::string device = "auto";
  /// serve() sets device.kind from `device`, and ranks, which are 0 for the number that fits.
  RuntimeOptions runtime{.ranks = 0, .experts = {}};
  bool random_weights = false;
  // Other engines' names of --experts and --attention; read_serve_options() sets `runtime` from
  // them.
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
  std::vector<std::string> given_keys;     // from the command line and the environment
  std::vector<std::string> api_key_files;  // SIGHUP reads these again
  server::ServiceManager::Settings service_manager;
  std::int64_t log_stats_s = 10;
  // Of requests that do not say it; nothing: generation_config.json.
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<std::int64_t> top_k;
  std::optional<std::int64_t> seed;
  std::vector<std::string> warnings;  // about flags without effect; serve logs them
  bool print_config = false;
  bool check = false;
};

/// One option.
struct ServeOption {
  enum class Takes : std::uint8_t { value, list, nothing };

  std::string_view group;
  std::string_view flags;  // "--max-model-len,--context-length"; the first is its name
  std::string_view value;  // name of its value in the help; "" for a boolean
  std::string_view help;
  Takes takes = Takes::value;
  /// Sets the option, or appends to a list. Errors: invalid_argument, without the flag's name.
  Status (*set)(ServeOptions& options, const std::string& value) = nullptr;
  /// The value in effect, as a user would write it; null: --print-config leaves the option out.
  std::string (*shown)(const ServeOptions& options) = nullptr;

  /// "--max-model-len"
  std::string_view name() const;
  /// "KOHO_MAX_MODEL_LEN"
  std::string environment_name() const;
};

const std::vector<ServeOption>& serve_option_table();

/// Reads the environment, then the config file, then `arguments` (those after `koho serve`); a
/// later source overrides an earlier one. Underscores in names count as hyphens. An unknown flag is
/// refused with the nearest known one. Errors: invalid_argument; not_found, io_error (config file).
Result<ServeOptions> read_serve_options(const std::vector<std::string>& arguments);

/// All API keys: those given directly and those of the files as they are now. `again`: only regular
/// files are accepted, as a pipe cannot be read twice. Errors: not_found, io_error (a file);
/// invalid_argument (a file without a key).
Result<std::vector<server::ApiKeySettings>> read_api_keys(const ServeOptions& options, bool again);

/// Sets the defaults of enable_thinking and clear_thinking from a JSON object. Errors:
/// invalid_argument.
Status read_template_defaults(ServeOptions& options, const std::string& text);

/// The table as help text.
std::string serve_help();
/// The options in effect, one "name: value" per line: a config file that sets the same.
std::string print_serve_config(const ServeOptions& options);

}  // namespace koho::app
