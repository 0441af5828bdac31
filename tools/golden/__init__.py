# SPDX-License-Identifier: Apache-2.0
"""Goldens: random checkpoints, their reference outputs, and the rules that compare them (docs/goldens.md)."""
