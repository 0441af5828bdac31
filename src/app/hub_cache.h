// SPDX-License-Identifier: Apache-2.0
// Models by their names on Hugging Face's hub: what its cache on this machine holds, and the
// fetcher that the Python package brings along for the rest. This program opens no connection.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace koho::app {

/// "zai-org/GLM-4.7-FP8", or with a revision "zai-org/GLM-4.7-FP8@main".
struct HubName {
  std::string repository;
  std::string revision = "main";

  /// As a user writes it: without a revision that is main.
  std::string text() const;
  /// The command of huggingface_hub that fetches it into the cache.
  std::string download_command() const;
};

/// The name in `text`: two words of letters, digits, '-', '_' and '.', and behind '@' a revision;
/// nothing if it is none.
std::optional<HubName> parse_hub_name(std::string_view text);

/// One revision of a repository in the cache.
struct HubSnapshot {
  std::string directory;
  /// Of config.json and the weights that it must have. A fetch that was interrupted leaves some.
  std::vector<std::string> missing;
};

/// Looks in the cache of huggingface_hub (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME) for the commit
/// that the revision names or is. Nothing: it has none of this revision.
std::optional<HubSnapshot> find_snapshot(const HubName& name);

/// Whether HF_HUB_OFFLINE forbids to fetch.
bool hub_is_offline();

/// The directory of a model that the fetcher has brought into the cache and verified; nothing if
/// there is no fetcher. KOHO_FETCH is its command, an argument a line; it is given the repository
/// and the revision, shows its progress on standard error, and writes "ok DIRECTORY", or an error
/// code's name and a message, to descriptor 3. Errors: the fetcher's.
Result<std::optional<std::string>> fetch_model(const HubName& name);

}  // namespace koho::app
