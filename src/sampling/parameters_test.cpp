// SPDX-License-Identifier: Apache-2.0
#include "sampling/parameters.h"

#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "sampling/parameter_table.h"

namespace koho {
namespace {

constexpr std::int64_t kVocabulary = 1000;

/// What validate says about one number; empty: nothing.
std::string fault_of(const SamplingParameter& row, double value) {
  SamplingParameters parameters;
  if (row.number != nullptr) parameters.*row.number = value;
  if (row.integer != nullptr) parameters.*row.integer = static_cast<std::int64_t>(value);
  const Status status = validate(parameters, kVocabulary);
  return status.ok() ? "" : status.error().message;
}

TEST(SamplingParameters, EachNumberIsHeldToItsRowsRange) {
  for (const SamplingParameter& row : kSamplingParameters) {
    if (row.number == nullptr && row.integer == nullptr) continue;
    const double high = row.range.high == kVocabularySize ? double{kVocabulary} : row.range.high;
    const double step = row.integer != nullptr ? 1.0 : 0.001;
    EXPECT_EQ(fault_of(row, high), "");
    EXPECT_EQ(fault_of(row, row.range.low).empty(), !row.range.above_low) << row.name;
    for (const double outside : {row.range.low - step, high + step})
      EXPECT_TRUE(fault_of(row, outside).starts_with(std::string(row.name) + " must be"))
          << fault_of(row, outside);
    if (row.number == nullptr) continue;
    for (const double odd : {std::nan(""), std::numeric_limits<double>::infinity()})
      EXPECT_TRUE(fault_of(row, odd).starts_with(std::string(row.name) + " must be")) << row.name;
  }
}

TEST(SamplingParameters, TheInitialValuesAreInRange) {
  EXPECT_TRUE(validate({}, kVocabulary).ok());
}

TEST(SamplingParameters, BiasesAreOfTokensOfTheVocabulary) {
  SamplingParameters parameters;
  parameters.logit_bias = {{kVocabulary - 1, 100.0F}};
  EXPECT_TRUE(validate(parameters, kVocabulary).ok());
  parameters.logit_bias = {{kVocabulary, 1.0F}};
  EXPECT_FALSE(validate(parameters, kVocabulary).ok());
  parameters.logit_bias = {{0, 100.5F}};
  EXPECT_FALSE(validate(parameters, kVocabulary).ok());
}

TEST(SamplingParameters, TheRowHasEveryNumberOfTheTable) {
  SamplingParameters parameters;
  for (const SamplingParameter& row : kSamplingParameters)
    if (row.number != nullptr) parameters.*row.number = row.range.high;
  const SamplingRow made = make_sampling_row(parameters, 7, 3);
  for (const SamplingParameter& row : kSamplingParameters) {
    if (row.number == nullptr) continue;
    ASSERT_NE(row.row, nullptr) << row.name;
    EXPECT_EQ(made.*row.row, static_cast<float>(row.range.high)) << row.name;
  }
  EXPECT_EQ(made.seed, 7U);
  EXPECT_EQ(made.output_position, 3);
}

TEST(SamplingParameters, OnlyPenaltiesNeedTokenCounts) {
  EXPECT_FALSE(has_penalties({}));
  for (const SamplingParameter& row : kSamplingParameters) {
    if (row.number == nullptr) continue;
    SamplingParameters parameters;
    parameters.*row.number = 0.5;
    EXPECT_EQ(has_penalties(parameters), row.penalty) << row.name;
  }
}

TEST(SamplingParameters, TinyTemperaturesAreGreedy) {
  SamplingParameters parameters;
  parameters.temperature = 9e-6;
  EXPECT_EQ(make_sampling_row(parameters, 0, 0).temperature, 0.0F);
  parameters.temperature = 2e-5;
  EXPECT_EQ(make_sampling_row(parameters, 0, 0).temperature, 2e-5F);
}

TEST(ParameterTable, NamesAreUniqueAndFound) {
  for (const SamplingParameter& row : kSamplingParameters) {
    EXPECT_EQ(find_parameter(row.name), &row);
    EXPECT_FALSE(row.help.empty());
    EXPECT_FALSE(default_text(row).empty()) << row.name;
    EXPECT_FALSE(range_text(row).empty()) << row.name;
  }
  EXPECT_EQ(find_parameter("no_such_parameter"), nullptr);
  EXPECT_EQ(flag_of(parameter("repetition_penalty")), "--repetition-penalty");
}

TEST(ParameterTable, OnlyInterfacesThatOfferAParameterDiffer) {
  for (const SamplingParameter& row : kSamplingParameters)
    for (const ParameterDifference& difference : row.differences) {
      EXPECT_EQ(difference.where & ~row.interfaces, 0) << row.name;
      EXPECT_EQ(difference.where == 0, difference.reason.empty()) << row.name;
    }
}

}  // namespace
}  // namespace koho
