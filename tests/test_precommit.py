"""The hooks as pre-commit runs them: built once from this clone, then without a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import FIXTURES, ROOT, tree_bytes
from .trees import MISSING

BUILT_FROM = ("src", "codemods", "rules", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in",
              ".pre-commit-hooks.yaml")  # fmt: skip
HICCUP = re.compile(
    r"Connection|[Tt]imed out|Could not find a version|Temporary failure|ReadTimeout|HTTP error 5"
)
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_INDEX_URL": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9",
           "HTTP_PROXY": "http://127.0.0.1:9"}  # fmt: skip
TREE = "src dir/vllm"
TILE = f"{TREE}/attention/ops/prefix_prefill.py"
OPS = f"{TREE}/_custom_ops.py"
SETTINGS = f'rules = "bi100"\ntree = "{TREE}"\n'


class Repo:
    """A git repository whose hooks are muhmod's."""

    def __init__(self, top, home, hooks, rev):
        self.top, self.home, self.hooks, self.rev = top, home, hooks, rev

    def run(self, *words, cwd=".", **env):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        return subprocess.run(
            words, cwd=self.top / cwd, capture_output=True, text=True,
            env={**clean, "PRE_COMMIT_HOME": str(self.home), **env},
        )  # fmt: skip

    def git(self, *words):
        ran = self.run("git", *words, **OFFLINE)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def commit(self):
        return self.run("git", "commit", "-m", "change", **OFFLINE)

    def pre_commit(self, *words, cwd=".", **env):
        return self.run(sys.executable, "-m", "pre_commit", *words, cwd=cwd, **(env or OFFLINE))

    def configure(self, *ids, args=""):
        hooks = "".join(f"      - id: {name}\n{f'        args: {args}' if args else ''}\n" for name in ids)
        (self.top / ".pre-commit-config.yaml").write_text(
            f"repos:\n  - repo: {self.hooks}\n    rev: {self.rev}\n    hooks:\n{hooks}"
        )

    def edit(self, file, old, new):
        path = self.top / file
        text = path.read_text()
        assert text.count(old) == 1, old
        path.write_text(text.replace(old, new))

    def read(self, file):
        return (self.top / file).read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """PRE_COMMIT_HOME with the hooks' environment, the repository it is of, and its revision."""
    place = tmp_path_factory.mktemp("hooks")
    hooks = place / "muhmod"
    for name in BUILT_FROM:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (hooks / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, hooks / name)
    repo = Repo(hooks, place / "home", hooks, "")
    _start(repo)
    repo.rev = repo.git("rev-parse", "HEAD").strip()
    _install(repo)
    return repo.home, hooks, repo.rev


def _start(repo):
    repo.git("init", "-q")
    repo.git("config", "user.name", "t")
    repo.git("config", "user.email", "t@example.invalid")
    repo.git("add", "-A")
    repo.git("commit", "-qm", "start")


def _install(repo):
    """Skips, and says so, where the package index cannot be reached; any other failure is one."""
    repo.configure("muhmod-check", "muhmod-apply")
    for attempt in range(3):
        ran = repo.pre_commit("install-hooks", PIP_DISABLE_PIP_VERSION_CHECK="1")
        said = ran.stdout + ran.stderr
        if ran.returncode == 0:
            return
        assert HICCUP.search(said), said
        time.sleep(5 * attempt)
    MISSING["pre-commit's hooks"] = "the package index is not to be reached"
    pytest.skip(MISSING["pre-commit's hooks"])


@pytest.fixture(scope="module")
def started(built, tmp_path_factory):
    """A repository with a space in its name, muhmod's settings in pyproject.toml, and the hooks installed."""
    top = tmp_path_factory.mktemp("started") / "my repo"
    shutil.copytree(FIXTURES / "enginex" / "vllm", top / TREE)
    (top / "pyproject.toml").write_text(f"[tool.muhmod]\n{SETTINGS}")
    (top / "README.md").write_text("A fork.\n")
    made = Repo(top, *built)
    made.configure("muhmod-apply", "muhmod-check")
    _start(made)
    assert made.pre_commit("install").returncode == 0
    return made


@pytest.fixture(scope="module")
def done(started, tmp_path_factory):
    """The same with all applied and committed, lock and all."""
    made = _copied(started, tmp_path_factory.mktemp("done"))
    assert made.pre_commit("run", "--all-files", "muhmod-apply").returncode == 1
    made.git("add", "-A")
    made.git("commit", "-qnm", "applied")
    return made


def _copied(repo, into):
    top = shutil.copytree(repo.top, into / "my repo", symlinks=True)
    return Repo(top, repo.home, repo.hooks, repo.rev)


@pytest.fixture
def repo(started, tmp_path):
    return _copied(started, tmp_path)


@pytest.fixture
def applied(done, tmp_path):
    return _copied(done, tmp_path)


def outcomes(ran):
    """What pre-commit says of each hook."""
    return re.findall(r"^(muhmod \w+)\.+(?:\(.*\))?(\w+)$", ran.stdout, re.MULTILINE)


def test_the_whole_repository_is_applied_once(repo):
    first = repo.pre_commit("run", "--all-files")
    assert first.returncode == 1
    assert outcomes(first) == [("muhmod apply", "Failed"), ("muhmod check", "Passed")]
    assert "files were modified by this hook" in first.stdout
    assert "NUM_WARPS = 4" in repo.read(TILE)
    assert "exit code" not in first.stdout
    repo.git("add", "-A")
    assert "src dir/muhmod.lock" in repo.git("diff", "--cached", "--name-only")
    again = repo.pre_commit("run", "--all-files")
    assert again.returncode == 0, again.stdout
    assert {outcome for _, outcome in outcomes(again)} == {"Passed"}
    assert repo.git("diff", "--name-only") == ""


def test_a_commit_with_staged_changes_in_a_file_to_be_written(repo):
    """To git, all that is about to be committed is uncommitted; that must not stop the hook."""
    repo.edit(OPS, "    return 32 * 1024", "    # ours\n    return 32 * 1024")
    repo.git("add", "-A")
    refused = repo.commit()
    assert refused.returncode == 1
    assert "files were modified by this hook" in refused.stderr + refused.stdout
    assert "# ours\n    return 49152" in repo.read(OPS)
    assert "return 32 * 1024" in repo.git("show", f":{OPS}")
    repo.git("add", "-A")
    assert repo.commit().returncode == 0
    assert repo.git("status", "--porcelain") == ""


def test_commit_a_with_a_drifted_literal_is_refused(applied):
    applied.edit(TILE, "NUM_WARPS = 4", "NUM_WARPS = 16")
    ran = applied.run("git", "commit", "-am", "change", **OFFLINE)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 1
    assert "exit code: 3" in said
    assert "somebody edited" in said
    assert "base 8, ours 4, theirs 16" in said


def test_a_partial_commit_is_judged_by_what_is_staged(applied):
    """The drift is staged, its repair is not: refused. The repair is staged, new drift is not: taken."""
    applied.edit(TILE, "NUM_WARPS = 4", "NUM_WARPS = 16")
    applied.git("add", TILE)
    applied.edit(TILE, "NUM_WARPS = 16", "NUM_WARPS = 4")
    assert applied.commit().returncode == 1
    assert "NUM_WARPS = 4" in applied.read(TILE)
    applied.edit(TILE, "        NUM_WARPS = 4\n", "        NUM_WARPS = 4  # as derived\n")
    applied.git("add", TILE)
    applied.edit(TILE, "NUM_WARPS = 4", "NUM_WARPS = 16")
    taken = applied.commit()
    assert taken.returncode == 0, taken.stdout + taken.stderr
    assert "NUM_WARPS = 4  # as derived" in applied.git("show", f"HEAD:{TILE}")
    assert "NUM_WARPS = 16  # as derived" in applied.read(TILE)


def test_apply_leaves_unstaged_changes_of_the_same_file_alone(repo):
    path = repo.top / OPS
    path.write_text("# staged\n" + path.read_text())
    repo.git("add", OPS)
    path.write_text("# unstaged\n" + path.read_text())
    assert repo.commit().returncode == 1
    assert path.read_text().startswith("# unstaged\n# staged\n")
    assert "return 49152" in path.read_text()
    assert "unstaged" not in repo.git("show", f":{OPS}")


def test_a_fix_that_meets_an_unstaged_change_is_taken_back(repo):
    """pre-commit rolls the files back; a lock that stays behind must not pass for what was written."""
    path = repo.top / OPS
    path.write_text("# staged\n" + path.read_text())
    repo.git("add", OPS)
    repo.edit(OPS, "return 32 * 1024", "return 40 * 1024")
    before = path.read_text()
    ran = repo.pre_commit("run")
    assert ran.returncode == 1
    assert "Rolling back fixes" in ran.stdout + ran.stderr
    assert path.read_text() == before
    assert "return 32 * 1024" in repo.git("show", f":{OPS}")
    repo.git("checkout", "--", TREE)
    again = repo.pre_commit("run")
    assert again.returncode == 1
    assert "return 49152" in path.read_text()
    repo.git("add", "-A")
    assert repo.pre_commit("run").returncode == 0


def test_unstaged_changes_are_not_written_over(repo):
    """With --all-files pre-commit stashes nothing."""
    repo.edit(OPS, "    return 32 * 1024", "    # mine\n    return 32 * 1024")
    before = tree_bytes(repo.top / TREE)
    ran = repo.pre_commit("run", "--all-files", "muhmod-apply")
    assert ran.returncode == 1
    assert "exit code: 3" in ran.stdout
    assert f"uncommitted changes in {OPS}" in ran.stdout
    assert tree_bytes(repo.top / TREE) == before


def test_from_a_sub_folder(applied):
    ran = applied.pre_commit("run", "--all-files", cwd=f"{TREE}/attention")
    assert ran.returncode == 0, ran.stdout
    applied.edit(TILE, "NUM_WARPS = 4", "NUM_WARPS = 16")
    applied.git("add", "-A")
    ran = applied.pre_commit("run", "muhmod-check", cwd=f"{TREE}/attention")
    assert ran.returncode == 1
    assert "prefill-tile" in ran.stdout


@pytest.mark.parametrize("way", ["muhmod.toml", "args"])
def test_settings_from_elsewhere(applied, way):
    (applied.top / "pyproject.toml").unlink()
    if way == "args":
        applied.configure("muhmod-check", args=f'[--rules, bi100, "{TREE}"]')
    else:
        (applied.top / "muhmod.toml").write_text(SETTINGS)
    applied.git("add", "-A")
    ran = applied.pre_commit("run", "muhmod-check", "--all-files")
    assert ran.returncode == 0, ran.stdout


def test_without_settings_the_hook_says_what_it_needs(applied):
    (applied.top / "pyproject.toml").write_text("[project]\n")
    ran = applied.pre_commit("run", "muhmod-check", "--all-files")
    assert ran.returncode == 1
    assert "exit code: 2" in ran.stdout
    assert "no TREE" in ran.stdout


@pytest.mark.parametrize(
    ("file", "outcome"),
    [
        (OPS, "Passed"),
        ("src dir/muhmod.lock", "Failed"),
        ("pyproject.toml", "Passed"),
        ("README.md", "Skipped"),
    ],
)
def test_what_a_commit_must_touch(applied, file, outcome):
    (applied.top / file).open("a").write("\n")
    applied.git("add", "-A")
    ran = applied.pre_commit("run", "muhmod-check")
    assert outcomes(ran) == [("muhmod check", outcome)], ran.stdout


def test_a_hook_leaves_nothing_behind(applied):
    before = tree_bytes(applied.top)
    assert applied.pre_commit("run", "--all-files").returncode == 0
    after = {name: data for name, data in tree_bytes(applied.top).items() if not name.startswith(".git/")}
    assert after == {name: data for name, data in before.items() if not name.startswith(".git/")}
    assert applied.git("status", "--porcelain", "--ignored") == ""


def test_the_manifest_is_one_that_pre_commit_takes():
    from pre_commit.clientlib import load_manifest

    hooks = {hook["id"]: hook for hook in load_manifest(str(ROOT / ".pre-commit-hooks.yaml"))}
    assert hooks.keys() == {"muhmod-check", "muhmod-apply"}
    for hook in hooks.values():
        assert (hook["language"], hook["pass_filenames"], hook["require_serial"]) == ("python", False, True)
        assert Path(hook["entry"].split()[0]).name == "muhmod"
