// SPDX-License-Identifier: Apache-2.0
// The tables of docs/sampling-parameters.md, printed from sampling/parameter_table.h.
#pragma once

#include <string>

namespace koho::app {

/// Three tables, each behind a line with its title: the parameters, their names in every interface,
/// and what an interface does differently.
std::string sampling_parameters_markdown();

}  // namespace koho::app
