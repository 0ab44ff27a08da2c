"""Images of the testbed, with commands that are only looked at."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from medweave_testbed import images
from medweave_testbed.layout import Layout

NAME = "localhost/a:1"


class Recorded:
    """Instead of programs: `push` writes the archive, and `import` reads it a moment later."""

    def run(self, words: Sequence[str | Path], **_: Any) -> str:
        if "push" in words:
            Path(str(words[-1]).removeprefix("docker-archive:").removesuffix(f":{NAME}")).write_text("archive")
        elif "import" in words:
            time.sleep(0.05)
            Path(words[-1]).read_text()
        return f"{NAME} sha256:1\n"


def test_one_image_can_be_given_by_two_at_once(tmp_path: Path) -> None:
    layout = Layout(folder=tmp_path, instance=0)
    with ThreadPoolExecutor(4) as pool:
        for loading in [pool.submit(images.load, layout, Recorded(), NAME) for _ in range(8)]:  # type: ignore[arg-type]
            loading.result()
    note = images.note_of(layout, NAME)
    assert note.read_text() == "sha256:1"
    assert list(note.parent.glob("*.tar")) == []
