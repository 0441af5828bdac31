// SPDX-License-Identifier: Apache-2.0
#include "server/active_batch.h"

#include <utility>

#include "base/json_writer.h"

namespace koho::server {

Result<ActiveBatch::Next> ActiveBatch::next_line(api::BatchLine& read, const Pauses& pauses) {
  if (!input.ok()) return input.error();
  while (!at_end) {
    std::string_view line;
    KOHO_TRY_ASSIGN(const LineReader::State state, input->next(line, -1));
    if (state == LineReader::State::nothing_yet) continue;
    if (state == LineReader::State::end) {
      at_end = true;
      break;
    }
    if (state == LineReader::State::line && api::is_blank_line(line)) continue;
    read = {};
    api::Refusal refused;
    if (state == LineReader::State::too_long) {
      read.number = input->number();
      refused = api::line_too_long();
    } else {
      refused = api::read_batch_line(line, input->number(), read);
    }
    const std::string name = read.custom_id.empty() ? "null" : json_string(read.custom_id);
    if (!errors.refused(read.number, name) && !output.answered().contains(hash_of(name))) {
      if (!refused) return Next::line;
      KOHO_TRY(give_up(read, *refused));
    }
    if (pauses()) return Next::paused;
  }
  return Next::end;
}

Result<bool> ActiveBatch::give_up_lines(const api::ApiError& why, const Pauses& pauses) {
  while (!unsent.empty()) {
    const api::BatchLine line = std::move(unsent.front().line);
    unsent.pop_front();
    KOHO_TRY(give_up(line, why));
  }
  api::BatchLine line;
  while (true) {
    KOHO_TRY_ASSIGN(const Next next, next_line(line, pauses));
    if (next == Next::end) return true;
    if (next == Next::line) KOHO_TRY(give_up(line, why));
    if (pauses()) return false;
  }
}

Status ActiveBatch::give_up(const api::BatchLine& line, const api::ApiError& why) {
  keep(api::batch_error_line(line, why), false);
  return flush();
}

void ActiveBatch::keep(std::string text, bool answered) {
  kept_.push_back({.text = std::move(text), .answered = answered});
}

Status ActiveBatch::flush() {
  for (; !kept_.empty(); kept_.pop_front()) {
    const Outcome& next = kept_.front();
    KOHO_TRY((next.answered ? output : errors).write(next.text));
    ++(next.answered ? completed : failed);
  }
  return {};
}

}  // namespace koho::server
