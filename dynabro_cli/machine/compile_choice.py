"""Values of the option ``--compile``, which a command checks before it loads what compiles."""

from __future__ import annotations

from dynabro_cli.errors import SpecError

CHOICES = ("auto", "on", "off")


def check_choice(choice: str) -> None:
    """Raise SpecError if ``choice`` is not one of ``CHOICES``."""
    if choice not in CHOICES:
        raise SpecError(f"compile={choice} is not legal. Try: --compile with {' or '.join(CHOICES)}")
