"""Golden databases of every released schema are brought to the current one, with their data."""

import shutil
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, inspect, text

import results_db
from results_db import upgrades, versions
from results_db.checks import check
from results_db.errors import DatabaseUnreadable, NewerDatabase, NotFound, OutdatedDatabase
from results_db.records import TrialStatus
from results_db.schema import SCHEMA_VERSION
from results_db.testing.postgres import PostgresServer
from results_db.views import view_statements

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def golden_url(request, tmp_path):
    """Gives the URL of a copy of the golden database of a version."""

    def make(version: str) -> str:
        if request.param == "sqlite":
            return shutil.copy(GOLDEN / f"{version}.db", tmp_path / "golden.db")
        import psycopg

        server: PostgresServer = request.getfixturevalue("postgres_server")
        name = f"golden_{version}_{request.node.name.split('[')[0][-20:]}"
        url = server.new_database(name)
        dump = (GOLDEN / f"{version}.postgresql.sql").read_text()
        with psycopg.connect(f"host={server.folder} user=postgres dbname={name}") as link:
            link.execute(dump)
        return url

    return make


@pytest.mark.parametrize("version", versions.KNOWN_VERSIONS)
def test_golden_databases_are_upgraded(golden_url, version):
    url = golden_url(version)
    if version != SCHEMA_VERSION:
        with pytest.raises(OutdatedDatabase, match="tuner db upgrade"):
            results_db.open(url)
    assert upgrades.upgrade(url) == (version, SCHEMA_VERSION)
    with results_db.open(url) as store:
        assert check(store) == []
        study = store.get_study("golden")
        statuses = [item.trial.status for item in store.trials(study.id)]
        assert statuses == [TrialStatus.COMPLETED] * 4 + [
            TrialStatus.INFEASIBLE,
            TrialStatus.QUEUED,
        ]
        best = store.trial("golden", 1)
        assert best.measurement.versions == {"torch": "2.13.0", "python": "3.11.4"}
        assert best.measurement.num_parameters == 10**12
        assert str(best.measurement.final_loss) == "nan"
        assert len(store.steps(best.trial.id)) == 5
        assert store.ranks(best.trial.id)[1].timeline[0] == ("F", 0, 1, 0.0, 0.1)
        assert store.failures(store.trial("golden", 5).trial.id)[0].kind == "oom"
        assert store.untried(study.id)[0].reason == "4 > 2"
        store.tag_study(study.id, "old")
    assert upgrades.upgrade(url) == (SCHEMA_VERSION, SCHEMA_VERSION), "twice does no harm"


def test_there_is_a_golden_database_of_every_version():
    for version in versions.KNOWN_VERSIONS:
        assert (GOLDEN / f"{version}.db").exists()
        assert (GOLDEN / f"{version}.postgresql.sql").exists()


def test_an_upgrade_keeps_a_copy(tmp_path):
    path = shutil.copy(GOLDEN / "0001.db", tmp_path / "old.db")
    copy = tmp_path / "copy.db"
    upgrades.upgrade(path, copy)
    assert upgrades.upgrade(copy)[0] == "0001"
    upgrades.upgrade(path, tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists(), "a current database needs no copy"


def test_a_failed_upgrade_changes_nothing(tmp_path, monkeypatch):
    path = shutil.copy(GOLDEN / "0001.db", tmp_path / "old.db")

    def broken(connection):
        raise DatabaseUnreadable("the power went")

    monkeypatch.setattr(upgrades, "create_views", broken)
    with pytest.raises(DatabaseUnreadable):
        upgrades.upgrade(path)
    monkeypatch.undo()
    assert upgrades.upgrade(path) == ("0001", SCHEMA_VERSION)


def test_there_is_nothing_to_upgrade(tmp_path):
    (tmp_path / "empty.db").touch()
    for name in ("missing.db", "empty.db"):
        with pytest.raises(NotFound):
            upgrades.upgrade(tmp_path / name)
    results_db.open(tmp_path / "new.db").close()
    engine = create_engine(f"sqlite:///{tmp_path}/new.db")
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'zz'"))
    engine.dispose()
    with pytest.raises(NewerDatabase):
        upgrades.upgrade(tmp_path / "new.db")


def test_a_foreign_database_is_left_alone(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/other.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE recipes (id INTEGER)"))
    engine.dispose()
    with pytest.raises(DatabaseUnreadable, match="something else"):
        results_db.open(tmp_path / "other.db")


def test_the_list_of_versions_is_that_of_the_scripts():
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "results_db:migrations")
    script = ScriptDirectory.from_config(config)
    found = [revision.revision for revision in script.walk_revisions()]
    assert tuple(reversed(found)) == versions.KNOWN_VERSIONS
    assert versions.KNOWN_VERSIONS[-1] == SCHEMA_VERSION


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_url(request, tmp_path):
    """Gives the URL of a database without tables."""

    def make(name: str) -> str:
        if request.param == "sqlite":
            return f"sqlite:///{tmp_path}/{name}.db"
        return request.getfixturevalue("postgres_server").new_database(f"schema_{name}")

    return make


def test_migrations_make_the_schema_of_the_program(empty_url):
    """Columns, keys, indexes and references are equal, whether migrated or made anew."""
    fresh, migrated = empty_url("fresh"), empty_url("migrated")
    results_db.open(fresh).close()
    with create_engine(migrated, poolclass=NullPool).begin() as connection:
        upgrades.run_migrations(connection)
    shapes = []
    for url in (fresh, migrated):
        with create_engine(url, poolclass=NullPool).connect() as connection:
            shapes.append(_shape(inspect(connection)))
    assert shapes[0] == shapes[1]


def _shape(inspector):
    shape = {}
    for name in inspector.get_table_names():
        if name == "alembic_version":  # Alembic makes its own, with another text type
            continue
        shape[name] = (
            [(c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(name)],
            inspector.get_pk_constraint(name)["constrained_columns"],
            sorted(
                (key["constrained_columns"], key["referred_table"], str(key["options"]))
                for key in inspector.get_foreign_keys(name)
            ),
            sorted(
                (index["name"], index["column_names"], bool(index["unique"]))
                for index in inspector.get_indexes(name)
            ),
            sorted(item["column_names"] for item in inspector.get_unique_constraints(name)),
            sorted(item["name"] for item in inspector.get_check_constraints(name)),
        )
    return shape


def test_views_are_made_anew_by_an_upgrade(golden_url):
    url = golden_url("0001")
    upgrades.upgrade(url)
    with results_db.open(url) as store, store.database.read() as connection:
        assert set(inspect(connection).get_view_names()) == set(view_statements())
