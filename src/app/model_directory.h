// SPDX-License-Identifier: Apache-2.0
// What a user calls a model, as a directory: a path, or a name of Hugging Face's hub
// (app/hub_cache.h). What koho cannot read is refused here with what to do instead.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "app/hub_cache.h"
#include "base/error.h"

namespace koho::app {

/// The directory that `given` names. `whole`: it must have config.json and safetensors files; or
/// else only be a directory. A name of the hub, ORG/NAME or ORG/NAME@REVISION, is its snapshot in
/// the cache, fetched first where KOHO_FETCH is set. Errors: not_found, with the command that
/// fetches it; those of fetch_model; unsupported (GGUF, PyTorch); invalid_argument (a file inside
/// the directory).
Result<std::string> find_model(const std::string& given, bool whole = true);

/// The name of the hub that `given` is, where no directory stands there: ORG/NAME, or a GLM of
/// zai-org without its organisation and in small letters ("glm-4.7-fp8").
std::optional<HubName> hub_name_of(const std::string& given);

/// Where -m has not named the model, the first of a command's positional arguments does: then
/// `model` takes it, and the others move up by one. `words` has one place more than the command has
/// words of its own. Errors: invalid_argument (a word too many).
Status take_model_word(std::string& model, std::initializer_list<std::string*> words);

}  // namespace koho::app
