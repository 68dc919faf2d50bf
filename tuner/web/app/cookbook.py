"""The saved queries of the SQL page: those of the database's cookbook."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

EXAMPLE_STUDY = "gpt2-2-nodes"
"""The study that the cookbook's queries name."""

_QUERY = re.compile(
    r"^### (?P<question>[^\n]+)\n(?P<note>[^`]*?)```sql\n(?P<sql>.*?)\n```", re.M | re.S
)


@dataclass(frozen=True)
class SavedQuery:
    """One question of the cookbook with its answer in SQL."""

    slug: str
    """Its name in addresses."""
    section: str
    question: str
    sql: str

    def for_study(self, name: str) -> str:
        """The SQL with this study in place of the example's."""
        quoted = name.replace("'", "''")
        return self.sql.replace(f"'{EXAMPLE_STUDY}'", f"'{quoted}'")

    @property
    def names_a_study(self) -> bool:
        """Whether the query asks of one study."""
        return EXAMPLE_STUDY in self.sql


@lru_cache(maxsize=1)
def saved_queries() -> tuple[SavedQuery, ...]:
    """All queries in the cookbook's order."""
    found = []
    for part in re.split(r"^## ", _text(), flags=re.M)[1:]:
        section = part.partition("\n")[0].strip()
        for match in _QUERY.finditer(part):
            question = match["question"].strip()
            slug = re.sub(r"[^a-z0-9]+", "-", question.lower()).strip("-")
            found.append(SavedQuery(slug, section, question, match["sql"]))
    return tuple(found)


def _text() -> str:
    """The cookbook: beside this file in an installed package, in docs/ in the source tree."""
    packaged = Path(__file__).with_name("cookbook.md")
    source = Path(__file__).parents[3] / "docs" / "database" / "cookbook.md"
    for path in (packaged, source):
        if path.exists():
            return path.read_text(encoding="utf-8")
    return ""
