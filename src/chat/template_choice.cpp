// SPDX-License-Identifier: Apache-2.0
#include "chat/template_choice.h"

#include <array>
#include <cstddef>
#include <utility>
#include <xxhash.h>

#include <fmt/core.h>

#include "base/mapped_file.h"
#include "chat/json.h"
#include "tokenizer/utf8.h"

namespace koho::chat {
namespace {

constexpr std::size_t kTemplateBytesMax = 16U
                                          << 20U;  // of chat_template.jinja, tokenizer_config.json

/// A template file whose renderings render() reproduces (tests/chat).
struct KnownTemplate {
  std::string_view hash;
  TemplateStyle style;
};
constexpr std::array<KnownTemplate, 2> kKnownTemplates{{
    {"36c6cca0b2be3bd19908ff553a4cc3df", TemplateStyle::glm_4_7},
    {"081539360c4d739ec01d296b28d76fdf", TemplateStyle::glm_4_6},
}};

/// The "default" entry of a list of named templates in tokenizer_config.json.
const Json* default_template(const Json& list) {
  for (const Json& entry : list.items) {
    const Json* name = entry.find("name");
    if (name != nullptr && *name == Json::string("default")) return entry.find("template");
  }
  return nullptr;
}

/// `chat_template` of tokenizer_config.json, if there is one.
Result<std::optional<std::string>> template_of_config(
    const std::filesystem::path& model_directory) {
  const std::filesystem::path path = model_directory / "tokenizer_config.json";
  Result<std::string> config_text = read_file(path, kTemplateBytesMax);
  if (!config_text.ok()) {
    if (config_text.error().code == ErrorCode::not_found) return std::optional<std::string>{};
    return std::move(config_text).error();
  }
  Result<Json> config = parse_json(*config_text);
  if (!config.ok())
    return make_error(ErrorCode::corrupt_data, "{}: {}", path.string(), config.error().message);
  const Json* text = config->find("chat_template");
  if (text != nullptr && text->is_array()) text = default_template(*text);
  if (text == nullptr || !text->is_string()) return std::optional<std::string>{};
  return std::optional<std::string>(text->text);
}

}  // namespace

std::string template_hash(std::string_view template_text) {
  if (template_text.ends_with('\n')) template_text.remove_suffix(1);
  const XXH128_hash_t hash = XXH3_128bits(template_text.data(), template_text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

Result<std::optional<TemplateStyle>> parse_template_style(std::string_view name) {
  if (name == "auto") return std::optional<TemplateStyle>{};
  for (const TemplateStyle style :
       {TemplateStyle::glm_4_7, TemplateStyle::glm_4_6, TemplateStyle::glm_4_5})
    if (name == template_style_name(style)) return std::optional<TemplateStyle>{style};
  return make_error(ErrorCode::invalid_argument,
                    "chat template must be one of auto, glm-4.7, glm-4.6, glm-4.5, found \"{}\"",
                    name);
}

Result<std::optional<std::string>> read_template_text(
    const std::filesystem::path& model_directory) {
  KOHO_TRY_ASSIGN(std::optional<std::string> in_config, template_of_config(model_directory));
  const std::filesystem::path path = model_directory / "chat_template.jinja";
  Result<std::string> jinja = read_file(path, kTemplateBytesMax);
  if (!jinja.ok()) {
    if (jinja.error().code == ErrorCode::not_found) return in_config;
    return std::move(jinja).error();
  }
  if (const std::size_t valid = utf8_valid_bytes(*jinja); valid != jinja->size())
    return make_error(ErrorCode::corrupt_data, "{} is not UTF-8 at byte {}", path.string(), valid);
  return std::optional<std::string>(std::move(jinja).value());
}

TemplateChoice choose_template(const std::optional<std::string>& template_text,
                               std::optional<TemplateStyle> asked) {
  TemplateChoice choice;
  std::optional<TemplateStyle> known;
  if (template_text) {
    choice.hash = template_hash(*template_text);
    for (const KnownTemplate& row : kKnownTemplates)
      if (row.hash == choice.hash) known = row.style;
  }
  choice.style = asked.value_or(known.value_or(TemplateStyle::glm_4_7));
  const std::string_view name = template_style_name(choice.style);
  if (choice.style == TemplateStyle::glm_4_5) {
    choice.warning =
        "the glm-4.5 chat template renders as glm-4.6; it is not verified against GLM-4.5's own "
        "template file";
  } else if (!known && !asked) {
    choice.warning =
        template_text
            ? fmt::format(
                  "the checkpoint's chat template (XXH3-128 {}) is not one that koho is verified "
                  "against; using {}'s: choose with --chat-template glm-4.7, glm-4.6 or glm-4.5",
                  choice.hash, name)
            : fmt::format(
                  "the checkpoint has no chat template; using {}'s: choose with "
                  "--chat-template glm-4.7, glm-4.6 or glm-4.5",
                  name);
  } else if (known && *known != choice.style) {
    choice.warning =
        fmt::format("--chat-template {} overrides the checkpoint's own template, which is {}'s",
                    name, template_style_name(*known));
  }
  return choice;
}

}  // namespace koho::chat
