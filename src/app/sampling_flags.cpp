// SPDX-License-Identifier: Apache-2.0
#include "app/sampling_flags.h"

#include "app/command.h"

namespace koho::app {

void SamplingFlags::apply(Request& request) const {
  SamplingParameters& p = request.sampling;
  p.temperature = temperature.value_or(p.temperature);
  p.top_p = top_p.value_or(p.top_p);
  p.min_p = min_p.value_or(p.min_p);
  p.top_k = top_k.value_or(p.top_k);
  p.repetition_penalty = repetition_penalty.value_or(p.repetition_penalty);
  p.frequency_penalty = frequency_penalty.value_or(p.frequency_penalty);
  p.presence_penalty = presence_penalty.value_or(p.presence_penalty);
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

void add_sampling_flags(CommandLine& command,
                        SamplingFlags& flags,
                        std::int32_t tokens_max_default) {
  flags.tokens_max = tokens_max_default;
  const std::string group = "Sampling (what is not given is the model's generation_config.json)";
  command.add_option("--max-tokens", flags.tokens_max, "Most tokens to generate")
      ->check(at_least(1))
      ->capture_default_str()
      ->group(group);
  command.add_option("--temperature", flags.temperature, "0 = always the likeliest token")
      ->group(group);
  command.add_option("--top-p", flags.top_p, "Keep the likeliest tokens that add up to this")
      ->group(group);
  command.add_option("--top-k", flags.top_k, "Keep the k likeliest tokens, 0 = all")->group(group);
  command
      .add_option("--min-p", flags.min_p,
                  "Keep tokens at least this times as likely as the likeliest")
      ->group(group);
  command
      .add_option("--repetition-penalty", flags.repetition_penalty,
                  "Over prompt and output; 1 = off")
      ->group(group);
  command
      .add_option("--frequency-penalty", flags.frequency_penalty,
                  "For each time a token was generated; 0 = off")
      ->group(group);
  command
      .add_option("--presence-penalty", flags.presence_penalty,
                  "For tokens generated at all; 0 = off")
      ->group(group);
  command.add_option("--stop", flags.stop, "Stop before this text; may be given several times")
      ->allow_extra_args(false)  // the next word may be PROMPT
      ->group(group);
  command
      .add_option("--stop-token-ids", flags.stop_token_ids, "Stop at these token ids, with commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  command.add_option("--seed", flags.seed, "Same seed, same text")
      ->check(at_least(0))
      ->group(group);
  command.add_flag("--ignore-eos", flags.ignore_eos, "Go on after the model's own stop tokens")
      ->group(group);
}

}  // namespace koho::app
