"""YAML files with a head."""

from collections.abc import Mapping
from typing import Any

import yaml


def yaml_file(title: str, document: Mapping[str, Any]) -> str:
    """The document in its own order, after the comment lines of its head."""
    return title + yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True)
