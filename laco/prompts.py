"""Eight beginnings of everyday text: what the degeneration check and the Try it page go on with.

Nothing here knows who reads them. Next: `evaluate/degeneration.py`.
"""

from __future__ import annotations

PROMPTS = (
    "The history of the town begins with a small harbour, where",
    "To bake a loaf of bread at home, you first",
    "When she opened the letter, she learned that her brother",
    "The heart pumps blood through the body, and the lungs",
    "Last night the council met to discuss the new bridge. The mayor said",
    "There are many reasons why people learn to play an instrument. One of them",
    "During the winter, birds that stay in the north",
    "The train was late again, so the two travellers",
)
