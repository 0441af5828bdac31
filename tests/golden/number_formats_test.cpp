// SPDX-License-Identifier: Apache-2.0
// tensor/number.h against torch's casts: all 256 E4M3 bytes, every bf16 and every f16.
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tensor/number.h"
#include "tests/golden/golden_file.h"

namespace koho::testing {
namespace {

class NumberFormats : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<GoldenFile> file = GoldenFile::open("number_formats.safetensors");
    ASSERT_TRUE(file.ok()) << file.error().message;
    golden_.emplace(std::move(file).value());
  }
  const GoldenFile& golden() const { return *golden_; }

 private:
  std::optional<GoldenFile> golden_;
};

/// Equal bits, or both NaN (whose sign torch drops on the way to bf16).
void expect_same(float found, float expected, std::size_t code) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(found)) << "code " << code;
  } else {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(found), std::bit_cast<std::uint32_t>(expected))
        << "code " << code;
  }
}

TEST_F(NumberFormats, WidenEveryE4M3CodeAsTorchDoes) {
  const std::vector<float> expected = golden().floats("e4m3_as_f32");
  ASSERT_EQ(expected.size(), 256U);
  for (std::size_t code = 0; code < expected.size(); ++code)
    expect_same(to_float(Float8E4M3{static_cast<std::uint8_t>(code)}), expected[code], code);
}

TEST_F(NumberFormats, WidenEveryE4M3CodeToHalfFormatsAsTorchDoes) {
  const std::vector<float> bf16 = golden().floats("e4m3_as_bf16");
  const std::vector<float> f16 = golden().floats("e4m3_as_f16");
  for (std::size_t code = 0; code < 256; ++code) {
    const float value = to_float(Float8E4M3{static_cast<std::uint8_t>(code)});
    expect_same(to_float(to_bf16(value)), bf16[code], code);
    expect_same(to_float(to_f16(value)), f16[code], code);
  }
}

TEST_F(NumberFormats, RoundEveryBf16ToE4M3AsTorchDoes) {
  const std::vector<std::int32_t> expected = golden().integers("bf16_as_e4m3");
  ASSERT_EQ(expected.size(), 65536U);
  for (std::size_t word = 0; word < expected.size(); ++word)
    ASSERT_EQ(to_e4m3(to_float(BFloat16{static_cast<std::uint16_t>(word)})).bits, expected[word])
        << "bf16 bits " << word;
}

TEST_F(NumberFormats, RoundEveryF16ToE4M3AsTorchDoes) {
  const std::vector<std::int32_t> expected = golden().integers("f16_as_e4m3");
  ASSERT_EQ(expected.size(), 65536U);
  for (std::size_t word = 0; word < expected.size(); ++word)
    ASSERT_EQ(to_e4m3(to_float(Float16{static_cast<std::uint16_t>(word)})).bits, expected[word])
        << "f16 bits " << word;
}

}  // namespace
}  // namespace koho::testing
