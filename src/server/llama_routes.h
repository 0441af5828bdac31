// SPDX-License-Identifier: Apache-2.0
// What llama.cpp's clients ask a server: /props and /slots. A slot is one of the sequences of a
// batch.
#pragma once

#include "server/core.h"
#include "server/handlers.h"
#include "server/http_message.h"

namespace koho::server {

/// Context, number of slots, sampling defaults, model and build. Requires: core.serving().
Response answer_props(Core& core, const RoutedRequest& call);

/// One object a slot, the first ones at work. Requires: core.serving().
Response answer_slots(Core& core, const RoutedRequest& call);

}  // namespace koho::server
