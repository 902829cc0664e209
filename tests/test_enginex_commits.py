"""bi100 on the twenty EngineX commits that touch its files, against a table that was made by reading them.

`enginex_commits.json`: by commit and site, the state without a lock and with the pristine tree's.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from .conftest import tree_bytes
from .trees import enginex_commit

TABLE = json.loads((Path(__file__).parent / "enginex_commits.json").read_text())
PRISTINE = "ef6abf3d"


def test_the_table_is_whole():
    assert len(TABLE) == 20
    assert {len(row) for row in TABLE.values()} == {6}
    for commit in ("dc9ac0a7", "29f119c0", "dd59ec95"):
        assert TABLE[commit]["v1-override"] == ["satisfied-upstream", "drifted"]


@pytest.mark.parametrize("commit", TABLE)
def test_each_site_ends_in_the_state_that_a_reader_expects(muhmod, tmp_path, commit):
    tree = Path(shutil.copytree(enginex_commit(PRISTINE), tmp_path / "vllm"))
    assert muhmod("pin", "--rules", "bi100", "-q", tree).code == 0
    lock = tmp_path / "muhmod.lock"
    shutil.rmtree(tree)
    shutil.copytree(enginex_commit(commit), tree)
    for column, path in enumerate((tmp_path / "none.lock", lock)):
        ran = muhmod("check", "--rules", "bi100", "--output-format", "json", "--lock", path, tree)
        states = {row["site"]: row["state"] for row in json.loads(ran.out)["sites"]}
        assert states == {site: row[column] for site, row in TABLE[commit].items()}
        assert ran.code == (3 if "drifted" in states.values() else 1)


@pytest.mark.parametrize("commit", list(TABLE)[1:])
def test_a_bump_from_the_applied_tree(muhmod, tmp_path, commit):
    """Accepted after a look, applied, checked, and taken back to upstream's bytes."""
    tree = Path(shutil.copytree(enginex_commit(PRISTINE), tmp_path / "vllm"))
    assert muhmod("apply", "--rules", "bi100", "-q", tree).code == 0
    shutil.rmtree(tree)
    shutil.copytree(enginex_commit(commit), tree)
    report = json.loads(muhmod("check", "--output-format", "json", tree).out)
    drifted = [row for row in report["sites"] if row["state"] == "drifted"]
    assert {row["cause"] for row in drifted} <= {"upstream moved"}
    assert {row["site"] for row in drifted} == {
        site for site, (_, pinned) in TABLE[commit].items() if pinned == "drifted"
    }
    for row in drifted:
        assert muhmod("accept", row["site"], tree, "--reason", "read").code == 0
    assert muhmod("apply", "--rules", "bi100", "-q", tree).code == 0
    assert muhmod("check", tree).code == 0
    assert muhmod("revert", "-q", tree).code == 0
    assert tree_bytes(tree) == tree_bytes(enginex_commit(commit))
