# SPDX-License-Identifier: Apache-2.0
"""`python -m koho` is `koho`."""

from koho.program import main

main()
