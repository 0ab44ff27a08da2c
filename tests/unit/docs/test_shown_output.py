"""How the tests of tutorials read a page and compare its output."""

from __future__ import annotations

from support.shown_output import Block, blocks_of, first_missing

PAGE = """\
Run it:

<!-- needs: a cluster -->
```bash
one
```

```text
first …
second
```

1. In a list:

   ```bash
   for the reader
   ```

```yaml
# a.yml
```
"""


def test_blocks_have_their_output_and_their_mark() -> None:
    assert blocks_of(PAGE) == [
        Block("bash", "one\n", ("first …", "second"), needs=True),
        Block("yaml", "# a.yml\n"),
    ]


def test_missing_output_line_is_noticed() -> None:
    printed = "medweave: run on-slurm, folder runs/on-slurm\n  check        done in 2 s, peak memory 88 MiB\n"
    assert first_missing(("  check        done in …",), printed) is None
    assert first_missing(("  segment      done in …",), printed) == "  segment      done in …"
    assert first_missing(("  check        done in …", "medweave: run …"), printed) == "medweave: run …", (
        "the order counts"
    )
