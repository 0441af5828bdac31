// SPDX-License-Identifier: Apache-2.0
// What clients upload: a form, or a line of OpenAI's batch format. An accepted line's body is the
// text of that member, and what is written of the line is read back.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/batch_line.h"
#include "base/check.h"
#include "chat/json.h"
#include "server/multipart.h"

namespace koho {
namespace {

void read_line(std::string_view text) {
  static_cast<void>(api::is_batch_line(text));
  api::BatchLine line;
  const api::Refusal refused = api::read_batch_line(text, 7, line);
  const std::string written = refused ? api::batch_error_line(line, *refused)
                                      : api::batch_answer_line(line, 200, "id", line.body);
  // The body stands in for an answer; nobody has looked for a key that comes twice in it.
  if (refused || chat::parse_json(line.body).ok())
    KOHO_CHECK(chat::parse_json(written, chat::kJsonDepthMax + 8).ok());
  api::BatchOutcome outcome;
  KOHO_CHECK(api::read_batch_outcome(written, outcome));
  KOHO_CHECK_EQ(outcome.number, 7);
  KOHO_CHECK_EQ(outcome.answered, !refused);
  if (refused) return;
  KOHO_CHECK(api::is_batch_line(text).value_or(false));
  const Result<chat::Json> whole = chat::parse_json(text);
  const Result<chat::Json> body = chat::parse_json(line.body);
  if (!whole.ok()) return;  // the body is as deep as a text may be, or has too many keys
  KOHO_CHECK(body.ok());
  KOHO_CHECK(*whole->find("body") == *body);
  KOHO_CHECK(whole->find("custom_id")->text == line.custom_id);
}

void read_form(std::string_view text) {
  const Result<std::vector<server::FormPart>> parts =
      server::read_form("multipart/form-data; boundary=b", text);
  if (!parts.ok()) return;
  for (const server::FormPart& part : *parts) {
    KOHO_CHECK(!part.name.empty());
    KOHO_CHECK(part.content.data() >= text.data());
    KOHO_CHECK(part.content.data() + part.content.size() <= text.data() + text.size());
    KOHO_CHECK(part.content.find("\r\n--b") == std::string_view::npos);
  }
}

}  // namespace
}  // namespace koho

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  koho::read_line(text);
  koho::read_form(text);
  return 0;
}
