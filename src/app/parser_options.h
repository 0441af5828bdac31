// SPDX-License-Identifier: Apache-2.0
// How the answers of a conversation are parsed: shared by `koho run`, `koho chat` and `koho batch`.
#pragma once

#include "chat/message.h"
#include "chat/output_parser.h"
#include "runtime/runtime.h"

namespace koho::app {

/// How the answer to `conversation` is parsed. Requires: runtime.text().
chat::OutputParserOptions parser_options(const Runtime& runtime,
                                         const chat::Conversation& conversation);

}  // namespace koho::app
