// SPDX-License-Identifier: Apache-2.0
// A grammar made of a hash: some tokens are allowed after each, four at least, until a number of
// tokens is reached; it may end there and, now and then, before.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "grammar/matcher.h"

namespace koho::simulation {

class FakeGrammar final : public CompiledGrammar {
 public:
  FakeGrammar(std::uint64_t seed, std::int32_t length, std::int32_t vocabulary)
      : seed_(seed), length_(length), vocabulary_(vocabulary) {}

  Result<std::unique_ptr<Matcher>> start() const override;
  std::size_t bytes() const override { return sizeof(*this); }

  /// What `tokens` accepted so far allow. A pure function: the simulation's clients ask it, too.
  bool allows(std::span<const std::int32_t> tokens, std::int32_t token) const;
  bool can_end(std::span<const std::int32_t> tokens) const;
  std::int32_t vocabulary() const { return vocabulary_; }

 private:
  std::uint64_t seed_;
  std::int32_t length_;
  std::int32_t vocabulary_;
};

}  // namespace koho::simulation
