// SPDX-License-Identifier: Apache-2.0
#include "grammar/string_formats.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace koho {
namespace {

/// A form of a format: the expression "^(parts…)$". Lengths are in characters.
struct Form {
  std::string_view format;
  std::array<std::string_view, 10> parts;
  std::int32_t shortest = 0;
  std::int32_t longest = -1;  // -1: no bound
  /// If >= 0: lengths are counted beside the pattern; each prefix of so many characters is a text.
  std::int32_t settled = -1;
  /// If > 0: parts[1] is repeated between a minimum and a maximum that the bounds give, and each
  /// repetition has 1 to so many characters; shortest and longest are those of the other parts.
  std::int32_t unit_longest = 0;
};

// No 31st of February; leap seconds, which only some minutes have, are left out.
constexpr std::string_view kDate =
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
    "02-(0[1-9]|1[0-9]|2[0-8]))|"
    "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
constexpr std::string_view kTime = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]";
constexpr std::string_view kFraction = "([.][0-9]{1,9})?";
constexpr std::string_view kOffset = "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
constexpr std::string_view kByte = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
// A label of a host name may have 63 characters; here 31, as each is a state: 6 ms to compile at
// 150,000 tokens.
constexpr std::string_view kLabel = "[A-Za-z0-9](-?[A-Za-z0-9]){0,15}";
constexpr std::string_view kLocal = "[A-Za-z0-9_+-]";  // of an address
constexpr std::string_view kLocalUnit = "([.]?[A-Za-z0-9_+-])";
// RFC 3986. [A-Za-z0-9._~!$&'()*+,;=:@-] are the characters of a path.
constexpr std::string_view kAuthority =
    "//(([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?"
    "([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*(:[0-9]*)?"
    "(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*";
constexpr std::string_view kPath =
    "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+"
    "(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*";
constexpr std::string_view kFirstWithoutColon =
    "([A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})+"
    "(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*";
constexpr std::string_view kQuery =
    "([?]([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?"
    "(#([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?";
constexpr std::string_view kPlainQuery =
    "([?][A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?(#[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?";
constexpr std::string_view kPointer = "(/([^/~\"\\\\\\x00-\\x1f]|~[01])*)*";
// A regular expression without backslashes and quotation marks: characters, ".", classes of
// characters and of common ranges, repetitions whose bounds are in order, groups within groups.
constexpr std::string_view kAtom =
    "([^\\^$.*+?()\\[\\]{}|\"\\\\\\x00-\\x1f]|[.]|"
    "\\[\\^?(a-z|A-Z|0-9|a-f|A-F|[^\\^\\-\\[\\]\"\\\\\\x00-\\x1f])+-?\\])";
constexpr std::string_view kRepeats =
    "([*+?]|\\{([1-9][0-9]?|[1-9][0-9]?,|[01],[1-9][0-9]?)\\})?[|]*";

/// In the order of preference.
constexpr Form kForms[] = {
    {"email", {kLocal, "+([.][A-Za-z0-9_+-]+)*@", kLabel, "([.]", kLabel, ")+"}, 5},
    {"email",
     {kLocal, kLocalUnit, "@[A-Za-z0-9]([.-]?[A-Za-z0-9]){0,11}[.][A-Za-z]{2,8}"},
     6,
     34,
     -1,
     2},
    {"email",
     {kLocal, kLocalUnit, "@[A-Za-z0-9]([.-]?[A-Za-z0-9]){0,6}[.][A-Za-z]{2,6}"},
     6,
     22,
     -1,
     2},
    {"email", {kLocal, kLocalUnit, "@[A-Za-z0-9]{1,9}[.][A-Za-z]{2,3}"}, 6, 15, -1, 2},
    {"email", {kLocal, kLocalUnit, "@[A-Za-z0-9][.][A-Za-z]{2}"}, 6, 6, -1, 2},
    {"date", {kDate}, 10, 10},
    {"time", {kTime, kFraction, kOffset}, 9, 24},
    {"time", {kTime, kOffset}, 9, 14},
    {"time", {kTime, "Z"}, 9, 9},
    {"date-time", {kDate, "T", kTime, kFraction, kOffset}, 20, 35},
    {"date-time", {kDate, "T", kTime, kOffset}, 20, 25},
    {"date-time", {kDate, "T", kTime, "Z"}, 20, 20},
    {"duration",
     {"P(([0-9]+D|[0-9]+M([0-9]+D)?|[0-9]+Y([0-9]+M([0-9]+D)?)?)",
      "(T([0-9]+S|[0-9]+M([0-9]+S)?|[0-9]+H([0-9]+M([0-9]+S)?)?))?|",
      "T([0-9]+S|[0-9]+M([0-9]+S)?|[0-9]+H([0-9]+M([0-9]+S)?)?)|[0-9]+W)"},
     3},
    {"ipv4", {kByte, "[.]", kByte, "[.]", kByte, "[.]", kByte}, 7, 15},
    {"ipv6",
     {"([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|([0-9A-Fa-f]{1,4}:){1,7}:|",
      "([0-9A-Fa-f]{1,4}:){1,6}:[0-9A-Fa-f]{1,4}|([0-9A-Fa-f]{1,4}:){1,5}(:[0-9A-Fa-f]{1,4}){1,2}|",
      "([0-9A-Fa-f]{1,4}:){1,4}(:[0-9A-Fa-f]{1,4}){1,3}|",
      "([0-9A-Fa-f]{1,4}:){1,3}(:[0-9A-Fa-f]{1,4}){1,4}|",
      "([0-9A-Fa-f]{1,4}:){1,2}(:[0-9A-Fa-f]{1,4}){1,5}|",
      "[0-9A-Fa-f]{1,4}:(:[0-9A-Fa-f]{1,4}){1,6}|", ":(:[0-9A-Fa-f]{1,4}){1,7}|::"},
     2,
     39},
    {"hostname", {kLabel, "([.]", kLabel, ")*"}, 1},
    {"hostname", {"[A-Za-z0-9]", "([.-]?[A-Za-z0-9])"}, 1, 1, -1, 2},
    {"uuid", {"[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"}, 36, 36},
    {"uri", {"[A-Za-z][A-Za-z0-9+.-]*:(", kAuthority, "|/?(", kPath, ")?)", kQuery}, 2},
    {"uri",
     {"[a-z]{2,12}://[A-Za-z0-9._~-]*(:[0-9]*)?(/[A-Za-z0-9._~!$&'()*+,;=:@/-]*)?", kPlainQuery},
     5,
     -1,
     15},
    {"uri", {"[a-z]{2,6}://[A-Za-z0-9]", "[A-Za-z0-9._~/-]"}, 6, 10, -1, 1},
    {"uri", {"[a-z]{1,2}:", "[A-Za-z0-9._~-]"}, 2, 3, -1, 1},
    {"uri-reference", {"(", kAuthority, "|/(", kPath, ")?|", kFirstWithoutColon, ")?", kQuery}, 0},
    {"uri-reference", {"[A-Za-z0-9._~/-]*", kPlainQuery}, 0, -1, 0},
    {"uri-reference", {"", "[A-Za-z0-9._~/-]"}, 0, 0, -1, 1},
    {"uri-template",
     {"([!#$&(-;=?-\\[\\]_a-z~]|%[0-9A-Fa-f]{2}|",
      "\\{[+#./;?&=,!@|]?[A-Za-z0-9_]+([.][A-Za-z0-9_]+)*(:[1-9][0-9]{0,3}|[*])?",
      "(,[A-Za-z0-9_]+([.][A-Za-z0-9_]+)*(:[1-9][0-9]{0,3}|[*])?)*\\})*"},
     0},
    {"json-pointer", {kPointer}, 0},
    {"relative-json-pointer", {"(0|[1-9][0-9]*)(#|", kPointer, ")"}, 1},
    {"regex",
     {"\\^?((", kAtom, kRepeats, ")|\\((\\?:)?(", kAtom, kRepeats, ")*\\)", kRepeats, ")*[$]?"},
     0},
};

/// Formats of Unicode, whose ASCII form the table has.
constexpr std::pair<std::string_view, std::string_view> kAscii[] = {
    {"idn-email", "email"},
    {"idn-hostname", "hostname"},
    {"iri", "uri"},
    {"iri-reference", "uri-reference"}};

std::string_view ascii_form(std::string_view format) {
  for (const auto& [unicode, ascii] : kAscii)
    if (format == unicode) return ascii;
  return format;
}

std::string joined(const Form& form, std::string_view repeats) {
  std::string out = "^(";
  for (std::size_t i = 0; i < form.parts.size(); ++i) {
    out += form.parts[i];
    if (i == 1) out += repeats;
  }
  return out + ")$";
}

/// The bounds "{lo,hi}" of a form's repeated part; nullopt: no number of them fits, or fewer than
/// `enough`.
std::optional<std::string> repeats(const Form& form, LengthBounds bounds, std::int32_t enough) {
  // Each repetition is a state or two of the grammar.
  constexpr std::int32_t kRepeatsMax = 24;
  const std::int32_t least = std::max(0, bounds.least - form.shortest);
  std::int32_t most = kRepeatsMax;
  if (bounds.most >= 0) {
    if (bounds.most < form.longest) return std::nullopt;
    most = std::min(most, (bounds.most - form.longest) / form.unit_longest);
  }
  if (least > most || most < enough) return std::nullopt;
  return fmt::format("{{{},{}}}", least, most);
}

std::optional<FormatPattern> first_form(std::string_view format,
                                        LengthBounds bounds,
                                        bool may_count,
                                        std::int32_t enough) {
  for (const Form& form : kForms) {
    if (form.format != format) continue;
    if (form.unit_longest > 0) {
      if (const std::optional<std::string> counts = repeats(form, bounds, enough))
        return FormatPattern{joined(form, *counts)};
    } else if (form.settled >= 0) {
      if (may_count && (bounds.most < 0 || bounds.most >= form.settled))
        return FormatPattern{joined(form, ""), true};
    } else if (bounds.least <= form.shortest &&
               (bounds.most < 0 || (form.longest >= 0 && form.longest <= bounds.most))) {
      return FormatPattern{joined(form, "")};
    }
  }
  return std::nullopt;
}

}  // namespace

bool is_known_format(std::string_view format) {
  return std::ranges::any_of(kForms,
                             [&](const Form& form) { return form.format == ascii_form(format); });
}

std::optional<FormatPattern> pattern_of_format(std::string_view format,
                                               LengthBounds bounds,
                                               bool may_count) {
  constexpr std::int32_t kEnough = 8;  // a form that leaves the repeated part some room
  const std::string_view name = ascii_form(format);
  std::optional<FormatPattern> form = first_form(name, bounds, may_count, kEnough);
  return form ? form : first_form(name, bounds, may_count, 0);
}

}  // namespace koho
