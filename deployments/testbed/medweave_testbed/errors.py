"""The one error that a user of the testbed sees."""

from __future__ import annotations

STILL_WORKS = "`make demo` and `make test` need no testbed and still work"


class TestbedError(Exception):
    """Something a person has to act on: what failed and where, what was seen, what was expected, what to do."""

    __test__ = False  # pytest collects classes whose name begins with "Test"

    def __init__(self, what: str, *, seen: str, expected: str, do: str) -> None:
        super().__init__(what)
        self.what = what
        self.seen = seen
        self.expected = expected
        self.do = do

    def __str__(self) -> str:
        rows = [("seen", self.seen), ("expected", self.expected), ("do", self.do)]
        body = [f"  {label + ':':<10}" + text.replace("\n", "\n            ") for label, text in rows]
        return "\n".join([f"testbed: {self.what}", *body])

    def about(self, part: str) -> TestbedError:
        """Return the same error with the part's name in its first line."""
        what = self.what if self.what.startswith(part) else f"{part}: {self.what}"
        return TestbedError(what, seen=self.seen, expected=self.expected, do=self.do)


def last_lines(text: str, count: int = 5) -> str:
    """Return the end of a program's output, as it is quoted in errors; says so when there is none."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-count:]) or "(no output)"
