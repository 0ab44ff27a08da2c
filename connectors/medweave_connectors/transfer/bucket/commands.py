"""What is run at the ends of a copy by way of a bucket. Pure."""

from __future__ import annotations

from importlib.resources import files

from medweave_connectors.transfer.direct import far_end

_IMPORT = "from medweave_connectors.transfer.direct import far_end\n"


def program() -> bytes:
    """The far end's program, with its length in front; the parts that direct copies have too are a module within it."""
    shared = files("medweave_connectors.transfer.direct").joinpath("far_end.py").read_text("utf-8")
    first, found, rest = files(__package__).joinpath("far_end.py").read_text("utf-8").partition(_IMPORT)
    assert found
    # Imports from __future__ stay the first ones.
    module = (
        "import types\n"
        f"far_end = types.ModuleType({far_end.__name__.rpartition('.')[2]!r})\n"
        f"exec(compile({shared!r}, 'far_end', 'exec'), far_end.__dict__)\n"
    )
    text = f"{first}{module}{rest}".encode()
    return f"{len(text)}\n".encode() + text
