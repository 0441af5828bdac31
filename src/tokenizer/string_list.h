// SPDX-License-Identifier: Apache-2.0
// A list of many short strings in one buffer, such as the tokens of a vocabulary: one allocation
// instead of one per string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace koho {

class StringList {
 public:
  void reserve(std::size_t strings, std::size_t bytes) {
    ends_.reserve(strings);
    text_.reserve(bytes);
  }
  void push_back(std::string_view string) {
    text_.append(string);
    ends_.push_back(text_.size());
  }
  std::size_t size() const { return ends_.size(); }
  std::size_t bytes() const { return text_.size(); }
  std::string_view operator[](std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return {text_.data() + begin, ends_[i] - begin};
  }

 private:
  std::string text_;
  std::vector<std::size_t> ends_;
};

}  // namespace koho
