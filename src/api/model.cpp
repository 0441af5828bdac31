// SPDX-License-Identifier: Apache-2.0
#include "api/model.h"

#include <algorithm>

namespace koho::api {

std::int32_t Model::context_max() const {
  const Limits& scheduler = limits.scheduler;
  return std::min(scheduler.context_max,
                  scheduler.pages_per_partition() * scheduler.tokens_per_page);
}

bool Model::serves(std::string_view name) const {
  return any_name || std::ranges::find(names, name) != names.end();
}

std::string Model::answer_name(const std::string& asked) const {
  return std::ranges::find(names, asked) != names.end() ? names.front() : asked;
}

chat::TagIds tag_ids_of(const Tokenizer& tokenizer) {
  chat::TagIds ids = chat::kNoTagIds;
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = tokenizer.id_of(chat::tag_text(static_cast<chat::Tag>(i))).value_or(-1);
  return ids;
}

}  // namespace koho::api
