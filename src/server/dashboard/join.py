#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the page's files together into one and writes it as a C++ string, with the content security policy that lets a browser run
exactly this style and this script. CMake calls it:

    join.py OUTPUT.cpp page.html STYLE.css ... SCRIPT.js ...
"""

import base64
import hashlib
import pathlib
import sys

PAGE_BYTES_MAX = 300_000
PART_CHARACTERS = 8_000  # of a string literal; C++ compilers need not take longer ones than 65,536


def joined(names):
    """The files one after the other, without the lines that only say the licence."""
    lines = [line for name in names for line in pathlib.Path(name).read_text().splitlines() if "SPDX-License-Identifier" not in line]
    return "\n" + "\n".join(lines) + "\n"


def source_hash(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def literal(text):
    parts = [text[i:i + PART_CHARACTERS] for i in range(0, len(text), PART_CHARACTERS)]
    return "\n".join(f'R"koho_page({part})koho_page"' for part in parts)


def main():
    output, page, *files = sys.argv[1:]
    style = joined(name for name in files if name.endswith(".css"))
    script = joined(name for name in files if name.endswith(".js"))
    for text, tag in ((style, "</style"), (script, "</script")):
        if tag in text.lower():
            sys.exit(f"join.py: {tag} inside what it would end")
    text = pathlib.Path(page).read_text().replace("<style></style>", f"<style>{style}</style>")
    text = text.replace("<script></script>", f"<script>{script}</script>")
    if len(text.encode()) > PAGE_BYTES_MAX:
        sys.exit(f"join.py: the page has {len(text.encode())} bytes, {PAGE_BYTES_MAX} are allowed")
    policy = (f"default-src 'none'; style-src {source_hash(style)}; script-src {source_hash(script)}; connect-src 'self'; "
              "img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
              "require-trusted-types-for 'script'; trusted-types 'none'")
    pathlib.Path(output).write_text(f"""// SPDX-License-Identifier: Apache-2.0
// Written by src/server/dashboard/join.py.
#include "server/dashboard.h"

namespace koho::server {{

std::string_view dashboard_page() {{
  static constexpr std::string_view kPage =
{literal(text)};
  return kPage;
}}

std::string_view dashboard_policy() {{
  return R"policy({policy})policy";
}}

}}  // namespace koho::server
""")


if __name__ == "__main__":
    main()
