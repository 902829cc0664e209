"""The facts that ship: every card says the same things, and nothing absurd."""

from __future__ import annotations

import pytest

from muhmod import rulebook

CARDS = ["a100", "bi100", "h100", "h200", "l40s", "mi300x", "p40", "rtx3090", "rtx4090", "t4", "v100"]
MODELS = [
    "deepseek-v2-lite", "gemma-2-9b", "llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b", "qwen3.6-35b-a3b",
]  # fmt: skip


def value(card, name):
    return rulebook.load_facts(card, "hardware")[name][0].value


def test_what_ships():
    assert list(rulebook.builtin("hardware")) == CARDS
    assert list(rulebook.builtin("models")) == MODELS


@pytest.mark.parametrize("card", [card for card in CARDS if card != "bi100"])
def test_a_card_states_what_the_kernel_models_ask_for(card):
    assert set(rulebook.load_facts(card, "hardware")) == set(rulebook.load_facts("h200", "hardware"))


@pytest.mark.parametrize("card", [card for card in CARDS if card != "bi100"])
def test_limits_of_a_card_agree_with_each_other(card):
    assert value(card, "smem_per_block") + value(card, "smem_reserved") <= value(card, "smem_per_sm")
    assert value(card, "max_threads_per_block") <= value(card, "max_threads_per_sm")
    assert value(card, "max_threads_per_sm") % value(card, "warp_size") == 0


@pytest.mark.parametrize(
    ("card", "smem", "warp"),
    [("p40", 49152, 32), ("v100", 98304, 32), ("t4", 65536, 32), ("l40s", 101376, 32),
     ("a100", 166912, 32), ("h100", 232448, 32), ("h200", 232448, 32), ("mi300x", 65536, 64)],
)  # fmt: skip
def test_the_limits_that_users_ran_into(card, smem, warp):
    assert value(card, "smem_per_block") == smem
    assert value(card, "warp_size") == warp


@pytest.mark.parametrize("model", MODELS)
def test_every_claim_has_a_source(model):
    for claims in rulebook.load_facts(model, "models").values():
        assert all(claim.source for claim in claims)


def test_a_dense_model_has_no_experts():
    assert "num_experts" not in rulebook.load_facts("llama-3.1-8b", "models")


@pytest.mark.parametrize(
    ("text", "says"),
    [('[smem_per_sm]\nunit = "KB/s"\nvalue = 1\nstatus = "measured"\nsource = "x"', "unit 'KB/s' is wrong"),
     ('[warp_siz]\nunit = "threads"\nvalue = 32\nstatus = "measured"\nsource = "x"', "'warp_size'"),
     ('[architecture]\nunit = "generation"\nvalue = "hoper"\nstatus = "measured"\nsource = "x"', "hopper"),
     ('[sm_count]\nunit = "multiprocessors"\nvalue = -4\nstatus = "measured"\nsource = "x"', "out of range"),
     ('[smem_reserved]\nunit = "bytes"\nvalue = 1024\nsource = "x"', "lacks 'status'")],
)  # fmt: skip
def test_a_bad_fact_is_named_with_file_and_line(tmp_path, text, says):
    path = tmp_path / "card.toml"
    path.write_text(text)
    with pytest.raises(rulebook.UsageError, match=r"card\.toml:\d+") as error:
        rulebook.load_facts(str(path), "hardware")
    assert says in str(error.value)


def test_units_are_converted(tmp_path):
    path = tmp_path / "card.toml"
    path.write_text('[smem_per_sm]\nunit = "KiB"\nvalue = 228\nstatus = "measured"\nsource = "x"')
    assert rulebook.load_facts(str(path), "hardware")["smem_per_sm"][0].value == 233472
