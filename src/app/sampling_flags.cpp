// SPDX-License-Identifier: Apache-2.0
#include "app/sampling_flags.h"

#include <string>

#include "app/command.h"

namespace koho::app {
namespace {

/// A row's meaning and range, as --help has it.
std::string help_of(const SamplingParameter& row) {
  std::string help(row.help);
  if (help.front() >= 'a' && help.front() <= 'z') help.front() -= 'a' - 'A';
  return row.type == ParameterType::boolean ? help : help + " (" + range_text(row) + ")";
}

}  // namespace

void SamplingFlags::apply(Request& request) const {
  SamplingParameters& p = request.sampling;
  for (std::size_t i = 0; i < std::size(kSamplingParameters); ++i) {
    const SamplingParameter& row = kSamplingParameters[i];
    if (numbers[i]) p.*row.number = *numbers[i];
    if (integers[i]) p.*row.integer = *integers[i];
  }
  if (seed) p.seed = seed;
  request.max_tokens = tokens_max;
  if (ignore_eos) request.stop_tokens.clear();
  request.stop_tokens.insert(request.stop_tokens.end(), stop_token_ids.begin(),
                             stop_token_ids.end());
  request.stop_strings = stop;
}

Status SamplingFlags::validate(std::int32_t vocabulary) const {
  Request request;
  apply(request);
  // Lengths are each request's own affair: here a token has all the room there is.
  request.prompt = {0};
  request.max_tokens = 0;
  EngineLimits limits;
  limits.vocabulary = vocabulary;
  limits.scheduler.context_max = 1;
  limits.scheduler.pages = 1;
  return koho::validate(request, limits);
}

void add_sampling_flags(CommandLine& command, SamplingFlags& flags) {
  const std::string group = "Sampling (what is not given is the model's generation_config.json)";
  command
      .add_option(
          "--max-tokens", flags.tokens_max,
          "Largest number of tokens of an answer; -1 = until the model stops or the context "
          "is full")
      ->check(at_least(1, -1))
      ->capture_default_str()
      ->group(group);
  for (std::size_t i = 0; i < std::size(kSamplingParameters); ++i) {
    const SamplingParameter& row = kSamplingParameters[i];
    if ((row.interfaces & kCommandLine) == 0) continue;
    if (row.number != nullptr)
      command.add_option(flag_of(row), flags.numbers[i], help_of(row))->group(group);
    if (row.integer != nullptr)
      command.add_option(flag_of(row), flags.integers[i], help_of(row))->group(group);
  }
  command
      .add_option("--stop", flags.stop, help_of(parameter("stop")) + "; may be given several times")
      ->allow_extra_args(false)  // the next word may be PROMPT
      ->group(group);
  command
      .add_option("--stop-token-ids", flags.stop_token_ids,
                  "Ends with one of these token ids, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  command.add_option("--seed", flags.seed, "The same seed gives the same text")
      ->check(at_least(0))
      ->group(group);
  command.add_flag("--ignore-eos", flags.ignore_eos, help_of(parameter("ignore_eos")))
      ->group(group);
}

}  // namespace koho::app
