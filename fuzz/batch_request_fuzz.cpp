// SPDX-License-Identifier: Apache-2.0
// Lines of a batch file: each becomes a request that the engine's check takes or refuses, or an
// error with a text; its id is JSON. The same line gives the same request twice.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "app/batch_request.h"
#include "base/check.h"
#include "chat/json.h"
#include "runtime/runtime.h"

namespace koho::app {
namespace {

Runtime& runtime() {
  static const std::unique_ptr<Runtime> started = [] {
    RuntimeOptions options;
    options.device.kind = DeviceKind::cpu;
    options.device.threads = 1;
    options.sequences_max = 1;
    options.context_max = 512;
    options.grammars.whitespace_max = 2;  // most of the work of many a schema
    return std::move(*Runtime::start(KOHO_SOURCE_DIR "/models/tiny", options));
  }();
  return *started;
}

void check(std::string_view line) {
  static const SamplingFlags flags{.tokens_max = 16};
  BatchRequestReader reader(runtime(), flags);
  const BatchLine first = reader.read(line);
  const BatchLine second = reader.read(line);
  KOHO_CHECK(chat::parse_json(first.id).ok());
  KOHO_CHECK(first.id == second.id);
  KOHO_CHECK_EQ(first.request.ok(), second.request.ok());
  if (!first.request.ok()) {
    KOHO_CHECK(!first.request.error().message.empty());
    KOHO_CHECK(first.request.error().code != ErrorCode::internal);
    return;
  }
  KOHO_CHECK(first.request->prompt == second.request->prompt);
  const Status valid = validate(*first.request, runtime().engine().limits());
  KOHO_CHECK(valid.ok() || valid.error().code == ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace koho::app

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  koho::app::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
