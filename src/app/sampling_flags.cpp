// SPDX-License-Identifier: Apache-2.0
#include "app/sampling_flags.h"

namespace koho::app {

void add_sampling_flags(CLI::App& command, SamplingFlags& flags, std::int64_t tokens_max_default) {
  SamplingParameters& p = flags.parameters;
  flags.tokens_max = tokens_max_default;
  const std::string group = "Sampling";
  command.add_option("--max-tokens", flags.tokens_max, "Most tokens to generate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(group);
  command.add_option("--temperature", p.temperature, "0 = always the likeliest token")
      ->capture_default_str()
      ->group(group);
  command.add_option("--top-p", p.top_p, "Keep the likeliest tokens that add up to this")
      ->capture_default_str()
      ->group(group);
  command.add_option("--top-k", p.top_k, "Keep the k likeliest tokens, 0 = all")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--min-p", p.min_p, "Keep tokens at least this times as likely as the likeliest")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--repetition-penalty", p.repetition_penalty, "Over prompt and output; 1 = off")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--frequency-penalty", p.frequency_penalty,
                  "For each time a token was generated; 0 = off")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--presence-penalty", p.presence_penalty, "For tokens generated at all; 0 = off")
      ->capture_default_str()
      ->group(group);
  command.add_option("--stop", flags.stop, "Stop before this text; may be given several times")
      ->group(group);
  command
      .add_option("--stop-token-ids", flags.stop_token_ids, "Stop at these token ids, with commas")
      ->delimiter(',')
      ->group(group);
  command.add_option("--seed", flags.seed, "Same seed, same text")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  command.add_flag("--ignore-eos", flags.ignore_eos, "Go on after the model's own stop tokens")
      ->group(group);
}

}  // namespace koho::app
