# SPDX-License-Identifier: Apache-2.0
"""Tools that everybody offers (weather, search, calculator, ...), in many spellings.

Each family draws a tool with names and parameters of its own and returns it with a maker of requests:
what the user says, the calls that answer it, the tool's result and the final reply. Invented tools
and whole conversations are tool_tasks' business.
"""

from .action_tools import calendar, light, mail, music, note, timer
from .lookup_tools import calculator, currency, route, search, stock, time_in, translate, weather

FAMILIES = [
    weather,
    weather,
    search,
    calculator,
    mail,
    calendar,
    timer,
    translate,
    currency,
    stock,
    music,
    time_in,
    route,
    note,
    light,
]
