// SPDX-License-Identifier: Apache-2.0
#include "app/sampling_markdown.h"

#include <array>
#include <string_view>

#include <fmt/core.h>

#include "sampling/parameter_table.h"

namespace koho::app {
namespace {

struct Column {
  Interfaces where;
  std::string_view title;
};

constexpr Column kColumns[] = {
    {kChatApi, "chat"},           {kCompletionsApi, "completions"},
    {kGenerateApi, "/generate"},  {kMessagesApi, "messages"},
    {kResponsesApi, "responses"}, {kBatchLines, "batch"},
    {kCommandLine, "flag"},       {kCAbi, "C"},
    {kPythonApi, "Python"},
};

std::string_view type_name(ParameterType type) {
  constexpr std::array<std::string_view, 6> kNames{"number",  "integer",   "boolean",
                                                   "strings", "token ids", "object"};
  return kNames.at(static_cast<std::size_t>(type));
}

std::string titles_of(Interfaces where) {
  if (where == kEverywhere) return "everywhere";
  std::string titles;
  for (const Column& column : kColumns)
    if ((where & column.where) != 0)
      titles += fmt::format("{}{}", titles.empty() ? "" : ", ", column.title);
  return titles;
}

/// The difference in words: a name, a range, or what the row says.
std::string words_of(const ParameterDifference& difference, const SamplingParameter& row) {
  std::string words;
  const auto add = [&words](std::string_view text) {
    words += fmt::format("{}{}", words.empty() ? "" : "; ", text);
  };
  if (!difference.name.empty()) add(fmt::format("`{}`", difference.name));
  if (!difference.what.empty()) add(difference.what);
  if (difference.what.empty() && difference.range) {
    SamplingParameter there = row;
    there.range = *difference.range;
    there.range_text = {};
    add(range_text(there));
  }
  return words;
}

}  // namespace

std::string sampling_parameters_markdown() {
  std::string out = "### Parameters\n\n| parameter | type | range | default | what it does |\n";
  out += "|---|---|---|---|---|\n";
  for (const SamplingParameter& row : kSamplingParameters)
    out += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.name, type_name(row.type),
                       range_text(row), default_text(row), row.help);

  out += "\n### Names\n\n| parameter |";
  std::string rule = "|---|";
  for (const Column& column : kColumns) {
    out += fmt::format(" {} |", column.title);
    rule += "---|";
  }
  out += "\n" + rule + "\n";
  for (const SamplingParameter& row : kSamplingParameters) {
    out += fmt::format("| `{}` |", row.name);
    for (const Column& column : kColumns) {
      const bool offered = (row.interfaces & column.where) != 0;
      const std::string_view name = name_in(row, column.where);
      if (!offered)
        out += " – |";
      else if (column.where == kCommandLine)
        out += fmt::format(" `{}` |", flag_of(row));
      else if (name == row.name)
        out += " = |";
      else
        out += fmt::format(" `{}` |", name);
    }
    out += '\n';
  }

  out += "\n### Differences\n\n| parameter | where | there | why |\n|---|---|---|---|\n";
  for (const SamplingParameter& row : kSamplingParameters)
    for (const ParameterDifference& difference : row.differences)
      if (difference.where != 0)
        out += fmt::format("| `{}` | {} | {} | {} |\n", row.name, titles_of(difference.where),
                           words_of(difference, row), difference.reason);
  return out;
}

}  // namespace koho::app
