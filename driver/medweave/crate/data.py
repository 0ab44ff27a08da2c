"""Data of jobs in a crate: files and folders by their digests, numbers and enum values as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from medweave.crate.entities import Entities, extend, fragment, named_by

FOLDER_NOTE = (
    "the sha256 is that of the output of `find -L . -type f -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 "
    "sha256sum` in the folder"
)
CARD = "model_card.json"  # in the folder of a model
Item = Mapping[str, Any]


class Data:
    """Adds data to a crate.

    Args:
        by_digest: path in the crate and source path of each included file or folder, by digest.
    """

    def __init__(self, entities: Entities, by_digest: Mapping[str, tuple[str, Path]]) -> None:
        self._entities, self._by_digest = entities, by_digest

    def of_port(self, name: str, items: Iterable[Item], classes: Sequence[str], parameter: Any) -> list[Any]:
        """Return the entities of the data of an input or output.

        Args:
            classes: of data.
            parameter: its entity, if it has one.
        """
        port_entities = []
        for item in items:
            entity = self._file(name, item, classes) if "sha256" in item else self._value(name, item, parameter)
            if parameter is not None:
                extend(entity, "exampleOfWork", [parameter])
            port_entities.append(entity)
        return port_entities

    def _file(self, name: str, item: Item, classes: Sequence[str]) -> Any:
        sha256, is_file = str(item["sha256"]), item["class"] == "File"
        access = f"data class: {', '.join(classes)}" if classes else "data class: unknown"
        properties = {"name": name, "sha256": sha256, "contentSize": str(item["bytes"]), "conditionsOfAccess": access}
        if not is_file:
            properties["description"] = f"a folder of {item['files']} files; {FOLDER_NOTE}"
        if sha256 not in self._by_digest:
            return self._entities.add_data(named_by(sha256), "File" if is_file else "Dataset", properties)
        place, source = self._by_digest[sha256]
        known = self._entities.crate.get(place if is_file else f"{place}/")
        if known is not None:
            return known
        add = self._entities.crate.add_file if is_file else self._entities.crate.add_dataset
        entity = add(source, place, properties=properties)
        if (source / CARD).is_file():
            about = {"name": "model card", "encodingFormat": "application/json", "about": {"@id": f"{place}/"}}
            entity["subjectOf"] = self._entities.crate.add_file(source / CARD, f"{place}/{CARD}", properties=about)
        return entity

    def _value(self, name: str, item: Item, parameter: Any) -> Any:
        if "value" in item:
            value = item["value"]
        elif "characters" in item:
            value = f"a text of {item['characters']} characters (not included)"
        else:
            size = f" of {item['bytes']} bytes" if "bytes" in item else ""
            value = f"a {str(item['class']).lower()}{size}, content not included"
        where = fragment("value", parameter.id if parameter is not None else name, str(value))
        return self._entities.add(where, "PropertyValue", {"name": name, "value": str(value)})
