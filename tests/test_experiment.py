"""The experiment: one vendor literal over four upstream changes, by muhmod and ten ways of patch and git."""

from __future__ import annotations

import json
import shutil

import pytest

from benchmarks import experiment
from benchmarks.experiment import FILE, UPSTREAMS, WAYS

SAYS = {
    "twin above, literal changed": ("drifted", "NUM_WARPS is 8; pinned 4"),
    "twin above": ("applied", ""),
    "function renamed": ("lost", "context_attention_fwd is now prefix_attention, as it seems"),
    "`if` above turned round": ("drifted", "became `if not current_platform.is_cuda()`"),
}
BY_NAME = pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda upstream: upstream.name)


@BY_NAME
@pytest.mark.parametrize("command", ["apply", "pin"])
def test_muhmod_is_right_or_refuses(muhmod, upstream, command):
    """With the lock of the applied tree, or of the pristine one."""
    ran = []

    def run(*arguments):
        ran.append(
            muhmod(*arguments, "--output-format", "json") if "-q" not in arguments else muhmod(*arguments)
        )
        return ran[-1].code

    code, text = experiment.muhmod(upstream, run, command=command)
    (row,) = json.loads(ran[-1].out)["sites"]
    state, says = SAYS[upstream.name]
    assert (row["state"], code) == (state, 0 if upstream.right else 3)
    assert says in row.get("reason", "")
    assert text == (upstream.right or upstream.text)
    if state == "lost":
        assert "prefix.py:8 prefix_attention (score" in row["candidates"][0]


@pytest.fixture(scope="module", params=UPSTREAMS, ids=lambda upstream: upstream.name)
def made(request, tmp_path_factory):
    """A repository for each upstream change."""
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    folder = tmp_path_factory.mktemp("repository") / "made"
    return request.param, experiment.repository(folder, request.param)


@pytest.mark.parametrize("way", WAYS)
def test_the_ten_ways_carry_the_literal_somewhere(made, way):
    """What each makes of it is for the table; here only that the experiment is one: each way ran."""
    if shutil.which(WAYS[way][1][0]) is None:
        pytest.skip(f"there is no {WAYS[way][1][0]}")
    upstream, folder = made
    code, text = experiment.carried(way, folder)
    assert (folder / FILE).read_text() == upstream.text
    said = experiment.outcome(upstream, code, text)
    assert said in ("right", "refused", "silent", "wrong function")
    if said != "refused":
        assert text.count("num_warps=16") == 1
    if way == "git apply" and upstream.name == "twin above, literal changed":
        # Exact context, the same in the twin: no version of git can tell.
        assert said == "wrong function"


def test_each_outcome_is_told_apart():
    assert experiment.outcome(UPSTREAMS[1], 0, UPSTREAMS[1].right) == "right"
    assert experiment.outcome(UPSTREAMS[1], 0, UPSTREAMS[1].text) == "nothing written"
    wrong = UPSTREAMS[0].text.replace("num_warps=4", "num_warps=16")
    assert experiment.outcome(UPSTREAMS[0], 0, wrong) == "wrong function"
    assert experiment.outcome(UPSTREAMS[3], 0, experiment.written(UPSTREAMS[3].text)) == "silent"
    assert experiment.outcome(UPSTREAMS[3], 1, "") == "refused"
