// SPDX-License-Identifier: Apache-2.0
// A body's JSON as a tree with members left out and arrays packed: what is kept is what the whole
// tree has, in its order, and a bound on the number of values holds.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "chat/json.h"

namespace koho::chat {
namespace {

bool needs(std::string_view name) {
  return name.size() != 1;
}

bool packs(std::string_view name) {
  return name == "ids" || name == "prompt";
}

/// Whether `shaped` is `whole` with packed arrays; writes both as JSON to see.
void check_member(const Json& shaped, const Json& whole) {
  KOHO_CHECK(dump_json(shaped) == dump_json(whole));
}

void check(std::string_view text) {
  const Result<Json> whole = parse_json(text);
  const Result<Json> shaped = parse_json(text, {.needs = needs, .packs = packs});
  // Duplicate keys and large numbers of a member that is left out are nobody's concern.
  if (!whole.ok()) return;
  KOHO_CHECK(shaped.ok());
  const std::size_t values = count_values(*whole);
  KOHO_CHECK(parse_json(text, {.values_max = values}).ok());
  if (values > 1) {
    const Result<Json> few = parse_json(text, {.values_max = values - 1});
    KOHO_CHECK(!few.ok() && few.error().reason == ErrorReason::too_long);
  }
  if (!whole->is_object()) {
    check_member(*shaped, *whole);
    return;
  }
  KOHO_CHECK(shaped->keys == whole->keys);
  for (std::size_t i = 0; i < whole->keys.size(); ++i) {
    if (needs(whole->keys[i])) {
      check_member(shaped->items[i], whole->items[i]);
    } else {
      KOHO_CHECK(shaped->items[i].is_null());
    }
  }
}

}  // namespace
}  // namespace koho::chat

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  koho::chat::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
