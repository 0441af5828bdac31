// SPDX-License-Identifier: Apache-2.0
// What tests of the CUDA backend beside the list of cases share.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <utility>

#include <gtest/gtest.h>

#include "cuda/cuda_backend.h"
#include "support/environment.h"

namespace koho::testing {

/// A CUDA backend, or the test is skipped; and what its random data are drawn from.
class OnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Backend>> opened = make_cuda_backend({});
    if (!opened.ok()) {
      ASSERT_EQ(opened.error().code, ErrorCode::not_found) << opened.error().message;
      GTEST_SKIP() << "no GPU";
    }
    backend_ = std::move(*opened);
  }

  std::unique_ptr<Backend> backend_;
  std::uint64_t seed_ = number_from_environment("KOHO_OP_SEED", std::random_device{}());
};

}  // namespace koho::testing
